//! Who is in a team, and whom a name means.

use planck_common::AgentId;

use crate::store::AgentRecord;

/// Why a name means nobody.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTarget {
    #[error("no agent `{wanted}` in this team; there are {known}")]
    Unknown { wanted: String, known: String },
    #[error("`{wanted}` means {count} agents; use one of their ids: {ids}")]
    Ambiguous { wanted: String, count: usize, ids: String },
}

/// Finds an agent by id, else by a name, else by a type that is unique in the team.
pub fn find<'a>(members: &'a [AgentRecord], wanted: &str) -> Result<&'a AgentRecord, NoTarget> {
    if let Some(agent) = members.iter().find(|agent| *agent.id == *wanted) {
        return Ok(agent);
    }
    let named: Vec<_> = members.iter().filter(|agent| agent.spec.name == wanted).collect();
    let typed: Vec<_> = members.iter().filter(|agent| agent.spec.r#type == wanted).collect();
    match (named.as_slice(), typed.as_slice()) {
        ([one], _) | ([], [one]) => Ok(one),
        ([], []) => Err(NoTarget::Unknown { wanted: wanted.into(), known: names(members) }),
        ([], several) | (several, _) => {
            let ids: Vec<&str> = several.iter().map(|agent| agent.id.as_str()).collect();
            Err(NoTarget::Ambiguous { wanted: wanted.into(), count: several.len(), ids: ids.join(", ") })
        }
    }
}

fn names(members: &[AgentRecord]) -> String {
    let names: Vec<String> = members.iter().map(|agent| format!("{} ({})", agent.spec.name, agent.id)).collect();
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
