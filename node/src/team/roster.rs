//! Finds the members of a team that a name refers to.

use planck_common::AgentId;

use crate::store::{AgentRecord, NAMESAKES};

/// The most members that an error about an unknown name lists.
const SHOWN: usize = 50;

/// The reason why a name refers to no agent.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTarget {
    #[error("no agent `{0}` in this team")]
    Unknown(String),
    #[error("`{wanted}` means {count} agents; use one of their ids: {ids}")]
    Ambiguous {
        wanted: String,
        count: String,
        ids: String,
    },
}

/// Finds an agent by id, else by name, else by a type that only one agent has. `meant` are the
/// agents that the name may refer to.
pub fn find<'a>(meant: &'a [AgentRecord], wanted: &str) -> Result<&'a AgentRecord, NoTarget> {
    let by_id = meant.iter().find(|agent| *agent.id == *wanted);
    if let Some(agent) = by_id.or_else(|| meant.iter().find(|agent| agent.spec.name == wanted)) {
        return Ok(agent);
    }
    let typed: Vec<_> = meant
        .iter()
        .filter(|agent| agent.spec.r#type == wanted)
        .collect();
    match typed.as_slice() {
        [one] => Ok(one),
        [] => Err(NoTarget::Unknown(wanted.into())),
        several => {
            let ids: Vec<&str> = several.iter().map(|agent| agent.id.as_str()).collect();
            let least = if several.len() >= NAMESAKES as usize {
                "at least "
            } else {
                ""
            };
            let count = format!("{least}{}", several.len());
            Err(NoTarget::Ambiguous {
                wanted: wanted.into(),
                count,
                ids: ids.join(", "),
            })
        }
    }
}

/// Returns the names of the members, up to [`SHOWN`].
pub fn names(members: &[AgentRecord]) -> String {
    let mut names: Vec<String> = members
        .iter()
        .take(SHOWN)
        .map(|agent| format!("{} ({})", agent.spec.name, agent.id))
        .collect();
    if members.len() > SHOWN {
        names.push(format!("and {} more", members.len() - SHOWN));
    }
    names.join(", ")
}

/// Returns a cycle of waiting agents with the names of its members.
pub fn path(members: &[AgentRecord], ids: &[AgentId]) -> String {
    let name = |id: &AgentId| {
        let found = members.iter().find(|agent| agent.id == *id);
        found.map_or_else(|| id.to_string(), |agent| agent.spec.name.clone())
    };
    ids.iter().map(name).collect::<Vec<_>>().join(" -> ")
}
