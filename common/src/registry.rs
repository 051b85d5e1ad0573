//! What stands in the registry, the KV bucket that says who is where and who is alive. What is true
//! is in SQL.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{AgentId, NodeId, SessionId, TeamId, Timestamp, spec::Role};

/// Told apart by whoever wrote it: of a write with an unknown outcome, a record that holds mine was
/// written by me.
pub type Nonce = String;

/// Under `store`: the SQL store all nodes of the cluster share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoreRecord {
    pub id: String,
    /// Where it is, without passwords, for people to read; none from a version that does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

impl std::fmt::Display for StoreRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.address {
            Some(address) => write!(f, "{address} (id {})", self.id),
            None => f.write_str(&self.id),
        }
    }
}

/// Under `node.<node>`; `left` and `dead` are final, as a node's id is minted at each start of its
/// process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeRecord {
    pub name: String,
    pub state: NodeStanding,
    pub version: String,
    pub labels: Map<String, Value>,
    pub capacity: u32,
    pub workspaces: Vec<String>,
    pub providers: Vec<String>,
    pub started_at: Timestamp,
    pub nonce: Nonce,
    /// The keys of its `[cluster]` with their values as a configuration has them; none from a
    /// version that does not tell.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub times: BTreeMap<String, String>,
    /// Who convicted it, and why; of a dead node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verdict {
    pub by: NodeId,
    pub reason: String,
    /// How long the convict had not been heard.
    pub silent_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodeStanding {
    Alive,
    Draining,
    Left,
    Dead,
}

impl NodeStanding {
    /// Whether the node is gone for good.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Left | Self::Dead)
    }
}

/// Under `team.<team>.<incarnation>`. Written at birth, hand-over and death only, so that its
/// revision fences; dead is final.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TeamRecord {
    pub state: TeamStanding,
    pub orchestrator: AgentId,
    /// Of the orchestrator.
    pub node: NodeId,
    pub session: SessionId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<TeamEnd>,
    pub nonce: Nonce,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TeamStanding {
    Alive,
    Dead,
}

/// Why a team ended, and so what becomes of its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TeamEnd {
    /// Members are dropped: nothing is written, their turns and inputs stay open for whoever claims
    /// them.
    NodeDead,
    /// Members are ended: turns aborted, inputs given an outcome.
    Stopped,
    /// As `stopped`; the session comes back with a later prompt.
    Closed,
}

/// Under `member.<team>.<incarnation>.<agent>`, written by the hosting node on the condition that
/// the team is alive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemberRecord {
    pub node: NodeId,
    pub session: SessionId,
    pub r#type: String,
    pub name: String,
    pub role: Role,
}

/// A record's key in the registry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Store,
    Node(NodeId),
    Proof(NodeId),
    Team(TeamId, i64),
    Member(TeamId, i64, AgentId),
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store => f.write_str("store"),
            Self::Node(node) => write!(f, "node.{node}"),
            Self::Proof(node) => write!(f, "proof.{node}"),
            Self::Team(team, incarnation) => write!(f, "team.{team}.{incarnation}"),
            Self::Member(team, incarnation, agent) => {
                write!(f, "member.{team}.{incarnation}.{agent}")
            }
        }
    }
}

impl Key {
    /// The key a text spells; `None` for what is no record of ours.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split('.').collect();
        Some(match words.as_slice() {
            ["store"] => Self::Store,
            ["node", node] => Self::Node(NodeId::parse(node).ok()?),
            ["proof", node] => Self::Proof(NodeId::parse(node).ok()?),
            ["team", team, incarnation] => {
                Self::Team(TeamId::parse(team).ok()?, incarnation.parse().ok()?)
            }
            ["member", team, incarnation, agent] => Self::Member(
                TeamId::parse(team).ok()?,
                incarnation.parse().ok()?,
                AgentId::parse(agent).ok()?,
            ),
            _ => return None,
        })
    }
}

/// Several records at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keys<'a> {
    Nodes,
    Proofs,
    Teams,
    MembersOf(&'a TeamId, i64),
    Everything,
}

impl std::fmt::Display for Keys<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nodes => f.write_str("node.*"),
            Self::Proofs => f.write_str("proof.*"),
            Self::Teams => f.write_str("team.*.*"),
            Self::MembersOf(team, incarnation) => write!(f, "member.{team}.{incarnation}.*"),
            Self::Everything => f.write_str(">"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_from_what_they_spell() {
        let (node, team, agent) = (NodeId::mint(), TeamId::mint(), AgentId::mint());
        for key in [
            Key::Store,
            Key::Node(node.clone()),
            Key::Proof(node),
            Key::Team(team.clone(), 3),
            Key::Member(team, 3, agent),
        ] {
            assert_eq!(Key::parse(&key.to_string()), Some(key));
        }
        assert_eq!(Key::parse("team.t1"), None);
        assert_eq!(Key::parse("node.a b"), None);
        assert_eq!(Key::parse("team.t1.x"), None);
    }
}
