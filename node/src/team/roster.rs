//! Finds the members of a team by the names that agents use for them.

use planck_common::AgentId;

use planck_store::{AgentRecord, NAMESAKES};

/// The maximum number of members that an error about an unknown name lists.
const SHOWN: usize = 50;

/// The reason why a name does not identify an agent.
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

/// Finds an agent by its id, or else by its name, or else by its type if only one agent has that
/// type. `meant` are the agents that the name may refer to.
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

/// Returns a list of the members' names and ids, with at most [`SHOWN`] entries.
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

/// Returns the text of a cycle of waiting agents, with the names of the agents.
pub fn path(members: &[AgentRecord], ids: &[AgentId]) -> String {
    let name = |id: &AgentId| {
        let found = members.iter().find(|agent| agent.id == *id);
        found.map_or_else(|| id.to_string(), |agent| agent.spec.name.clone())
    };
    ids.iter().map(name).collect::<Vec<_>>().join(" -> ")
}
