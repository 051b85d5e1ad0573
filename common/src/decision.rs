//! The decisions of nodes about nodes, teams and sessions. Each is published once on
//! `cluster.<kind>` by the node that decided, with the reason.

use serde::{Deserialize, Serialize};

use crate::{AgentId, NodeId, PROTOCOL_VERSION, SessionId, TeamId, Timestamp};

/// A decision as it is published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Decision {
    pub v: u32,
    pub r#type: DecisionKind,
    pub at: Timestamp,
    /// The node that decided.
    pub node_id: NodeId,
    pub data: DecisionData,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)+) => {
        /// The `type` of a decision, and the last word of its subject.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "snake_case")]
        pub enum DecisionKind { $($(#[$doc])* $kind,)+ }

        impl DecisionKind {
            /// Returns the name of the kind in JSON.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)+ }
            }
        }
    };
}

kinds! {
    /// The deciding node is in service.
    NodeJoined = "node_joined",
    /// The deciding node left the cluster cleanly.
    NodeLeft = "node_left",
    /// The node in `data` was declared dead.
    NodeDead = "node_dead",
    /// The deciding node begins nothing new until it is resumed.
    NodeSuspended = "node_suspended",
    NodeResumed = "node_resumed",
    TeamDown = "team_down",
    Placed = "placed",
    SessionClaimed = "session_claimed",
    SessionResumed = "session_resumed",
    Drain = "drain",
}

/// The reason, and what the decision is about. Fields that do not apply are absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Decided"))]
pub struct DecisionData {
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<TeamId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
    /// How long the dead node had been silent, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_ms: Option<u64>,
}

impl DecisionData {
    pub fn because(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            ..Self::default()
        }
    }
}

impl Decision {
    /// Returns a decision made now.
    pub fn new(kind: DecisionKind, node: &NodeId, data: DecisionData) -> Self {
        Self {
            v: PROTOCOL_VERSION,
            r#type: kind,
            at: Timestamp::now(),
            node_id: node.clone(),
            data,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_kinds_are_those_on_the_wire() {
        for kind in [
            DecisionKind::NodeJoined,
            DecisionKind::TeamDown,
            DecisionKind::Drain,
        ] {
            assert_eq!(
                serde_json::to_string(&kind).unwrap(),
                format!("\"{}\"", kind.name())
            );
        }
    }
}
