//! Who is in a team, and whom a name means.

use planck_common::AgentId;

use crate::store::{AgentRecord, NAMESAKES};

/// As many members are named to who names one that is none of them.
const SHOWN: usize = 50;

/// Why a name means nobody.
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

/// Finds an agent by id, else by a name, else by a type that is unique, among those that may be
/// meant.
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

/// The members by name, as far as they are few.
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

/// A cycle of waits as its members are called.
pub fn path(members: &[AgentRecord], ids: &[AgentId]) -> String {
    let name = |id: &AgentId| {
        let found = members.iter().find(|agent| agent.id == *id);
        found.map_or_else(|| id.to_string(), |agent| agent.spec.name.clone())
    };
    ids.iter().map(name).collect::<Vec<_>>().join(" -> ")
}
