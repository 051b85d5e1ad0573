//! The records of the registry, the KV bucket with the nodes, teams and members. Durable state is
//! in SQL.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{AgentId, NodeId, SessionId, TeamId, Timestamp, spec::AgentRole};

/// A text that identifies the writer of a record. A node that does not know whether its write
/// succeeded reads the record. The write succeeded if the record has the node's own nonce.
pub type Nonce = String;

/// The record under `store`: the SQL store that all nodes of the cluster share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoreRecord {
    pub id: String,
    /// The store's address without passwords, for people to read. Versions that do not report it
    /// leave it out.
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

/// The record under `node.<node>`. `left` and `dead` are final, because a node's id is new at each
/// start of its process.
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
    /// The keys of its `[cluster]` section with their values as in a configuration. Versions that
    /// do not report them leave them out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub times: BTreeMap<String, String>,
    /// For a dead node: which node declared it dead, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<DeathRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Verdict"))]
pub struct DeathRecord {
    pub by: NodeId,
    pub reason: String,
    /// How long the dead node had been silent, in milliseconds.
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
    /// Returns whether the node has left or is dead. Neither state ever changes.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Left | Self::Dead)
    }
}

/// The record under `team.<team>.<incarnation>`. It is written only at creation, hand-over and
/// death, so its revision is a fence; `dead` is final.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TeamRecord {
    pub state: TeamStanding,
    pub orchestrator: AgentId,
    /// The orchestrator's host.
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

/// Why a team ended, which decides what happens to its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TeamEnd {
    /// The members are dropped: nothing is written, and their turns and inputs stay open for the
    /// node that claims them.
    NodeDead,
    /// The members are ended: their turns are aborted, and their inputs get an outcome.
    Stopped,
    /// As `stopped`, but a later prompt opens the session again.
    Closed,
}

/// The record under `member.<team>.<incarnation>.<agent>`. The host writes it on condition that the
/// team is alive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemberRecord {
    pub node: NodeId,
    pub session: SessionId,
    pub r#type: String,
    pub name: String,
    pub role: AgentRole,
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
    /// Parses a key. Returns `None` if the text is not the key of a record.
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

/// A pattern for the keys of several records.
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
    fn key_is_parsed_from_its_text() {
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
