//! What should run: members of teams as people write them, agents and sessions as they are
//! recorded.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An agent's part in its team, settled by its tools at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Orchestrator,
    Worker,
}

/// A model and where it is served.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModelRef {
    /// `anthropic`, `openai`, `google`, `ollama`, `llama_cpp` or `scripted`.
    pub provider: String,
    /// The provider's name of the model.
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
}

/// What ends an agent's turn early; absent means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AgentLimits {
    /// 200 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_requests_per_turn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_turn_seconds: Option<u64>,
}

/// What bounds a session over all its agents.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct SessionLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    /// 1,000 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_agents: Option<u32>,
    /// How deep questions may ask in turn; 16 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ask_depth: Option<u32>,
}

/// What becomes of a session whose orchestrator's node dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnNodeDeath {
    #[default]
    Resume,
    Stop,
}

/// What an orchestrator may hand on to agents it spawns.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Grant {
    pub tools: Vec<String>,
    pub skills: Vec<String>,
}

/// A member of a team as TEAM.json, `sessions.start` and `spawn_agent` write it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Member {
    pub r#type: String,
    /// The type unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// Text; in a TEAM.json also a `.md` or `.txt` path inside the team's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Passed to the provider: `temperature`, `max_output_tokens`, `thinking_budget`, …
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub opts: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skills: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
    /// `<sidecar>.<compactor>`; the local one unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compactor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<AgentLimits>,
    /// Labels a node must have to host it.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub labels: Map<String, Value>,
}

/// An agent as it is recorded: everything resolved, so any node can start it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentSpec {
    pub r#type: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    pub role: Role,
    pub model: ModelRef,
    /// AGENTS.md, the member's prompt and the list of skills, as the model gets them.
    pub system_prompt: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub opts: Map<String, Value>,
    /// Sorted names.
    pub tools: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<String>,
    pub grant: Grant,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compactor: Option<String>,
    pub limits: AgentLimits,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub labels: Map<String, Value>,
    /// Who spawned it; absent for a team's own members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spawned_by: Option<crate::AgentId>,
}

/// A session as it is recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionSpec {
    pub team_id: crate::TeamId,
    pub lead: crate::AgentId,
    pub workspace: String,
    /// The working directory of its agents: an absolute path for `local:<host>`, else relative to
    /// the workspace.
    pub dir: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    pub limits: SessionLimits,
    pub on_node_death: OnNodeDeath,
}
