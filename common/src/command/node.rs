//! Commands about nodes, and lists of teams, models and sidecars.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{NodeState, Prices};
use crate::{NodeId, Timestamp, spec::AgentRole};

/// Returns whether a flag is false. Such a flag is left out of the JSON.
fn is_false(value: &bool) -> bool {
    !value
}

bodies! {
    Nodes {
        nodes: Vec<NodeInfo>,
    }
    NodeInfo {
        id: NodeId,
        name: String,
        state: NodeState,
        version: String,
        labels: Map<String, Value>,
        capacity: u32,
        agents: u32,
        /// The number of agents with an open turn.
        running: u32,
        workspaces: Vec<String>,
        providers: Vec<String>,
        started_at: Timestamp,
        silent_ms: u64,
    }
    #[derive(Default)]
    Drain {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    Draining {
        state: NodeState,
        agents: u32,
    }
    Teams {
        teams: Vec<TeamRow>,
    }
    TeamRow {
        name: String,
        description: String,
        members: Vec<TeamMember>,
    }
    TeamMember {
        name: String,
        r#type: String,
        description: String,
        role: AgentRole,
    }
    Models {
        models: Vec<ModelRow>,
        /// The day on which limits and prices were looked up, as `YYYY-MM-DD`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        date: Option<String>,
    }
    ModelRow {
        /// `provider:model`.
        id: String,
        provider: String,
        model: String,
        context_window: u64,
        max_output: u64,
        prices: Option<Prices>,
        /// Whether agents use this model if their vendor is chosen but no model is named.
        #[serde(default, skip_serializing_if = "is_false")]
        standard: bool,
    }
    Sidecars {
        sidecars: Vec<SidecarRow>,
    }
    SidecarRow {
        name: String,
        version: String,
        instances: u32,
        tools: Vec<String>,
        compactors: Vec<String>,
    }
}
