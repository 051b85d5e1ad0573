//! Specifications: of members as people write them, and of agents and sessions as the store records
//! them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::permission::{PermissionMode, Permissions, Rule};

/// The prefix of the workspace that contains all paths of a host: `local:<host>`.
pub const LOCAL: &str = "local:";

/// An agent's role in its team, which its tools decide at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", schemars(rename = "Role"))]
pub enum AgentRole {
    Orchestrator,
    Worker,
}

/// A model and the provider that serves it.
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

/// The limits that end an agent's turn early. An absent limit does not apply.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AgentLimits {
    /// The maximum number of requests in a turn; 200 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_requests_per_turn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_turn_seconds: Option<u64>,
    /// What happens when `max_requests_per_turn`, `max_tokens` or `max_cost_usd` is reached; `end`
    /// by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_limit: Option<OnLimit>,
}

impl AgentLimits {
    /// Returns the lower one of each of these limits and those of `most`. `most` also says what
    /// happens at a limit, unless these limits do.
    #[must_use]
    pub fn within(self, most: Self) -> Self {
        Self {
            max_requests_per_turn: lower(self.max_requests_per_turn, most.max_requests_per_turn),
            max_tokens: lower(self.max_tokens, most.max_tokens),
            max_cost_usd: lower(self.max_cost_usd, most.max_cost_usd),
            max_turn_seconds: lower(self.max_turn_seconds, most.max_turn_seconds),
            on_limit: self.on_limit.or(most.on_limit),
        }
    }
}

/// Returns the lower limit. A limit that is absent does not apply.
fn lower<T: PartialOrd>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) if other < one => Some(other),
        (one, other) => one.or(other),
    }
}

/// What happens when an agent reaches a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnLimit {
    /// The turn ends.
    #[default]
    End,
    /// The turn waits until a person raises the limit or ends the turn.
    Ask,
}

/// The limits of a session, shared by all its agents.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct SessionLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    /// The maximum number of agents; 1,000 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_agents: Option<u32>,
    /// The maximum length of a chain of questions between agents; 16 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ask_depth: Option<u32>,
}

impl SessionLimits {
    /// Returns the lower one of each of these limits and those of `most`.
    #[must_use]
    pub fn within(self, most: Self) -> Self {
        Self {
            max_tokens: lower(self.max_tokens, most.max_tokens),
            max_cost_usd: lower(self.max_cost_usd, most.max_cost_usd),
            max_agents: lower(self.max_agents, most.max_agents),
            max_ask_depth: lower(self.max_ask_depth, most.max_ask_depth),
        }
    }
}

/// What happens to a session if the node of its orchestrator dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnNodeDeath {
    #[default]
    Resume,
    Stop,
}

/// What an orchestrator may pass on to agents that it spawns.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Grant {
    pub tools: Vec<String>,
    pub skills: Vec<String>,
}

/// A member of a team, as in TEAM.json, `sessions.start` and `spawn_agent`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Member {
    pub r#type: String,
    /// The member's name; by default its type.
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
    /// Text. In a TEAM.json it may also be a `.md` or `.txt` path inside the team's folder.
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
    /// `<sidecar>.<compactor>`, or the local compactor by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compactor: Option<String>,
    /// The maximum number of tools that the member's requests list from the start; by default
    /// `tools.listed` of its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listed_tools: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<AgentLimits>,
    /// Labels that a node must have to host the agent.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub labels: Map<String, Value>,
    /// Rules about the member's tool calls. The first rule that matches decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<Rule>,
    /// What happens to the calls that no rule matches; `auto` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission_mode: Option<PermissionMode>,
    /// The shape in which each turn of the member answers, unless its prompt has another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputSpec>,
}

/// A tool that the client runs which started the session. A call of the tool waits until the client
/// answers it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClientTool {
    pub name: String,
    #[serde(default)]
    pub description: String,
    /// The JSON Schema of the arguments, an object schema.
    pub parameters: Value,
}

/// The shape of an answer: a turn that has one ends with an object that satisfies the schema, or
/// with an error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OutputSpec {
    /// A JSON Schema (2020-12) of at most 64 KiB whose root is of the type `object`.
    pub schema: Value,
    /// The name of the object, which the model reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// An agent's specification in the store. Every reference to a file or a default is resolved, so
/// any node can start the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentSpec {
    pub r#type: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    pub role: AgentRole,
    pub model: ModelRef,
    /// The text of AGENTS.md, the member's prompt and the list of skills, as the model reads them.
    pub system_prompt: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub opts: Map<String, Value>,
    /// The names of the tools, sorted.
    pub tools: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<String>,
    pub grant: Grant,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compactor: Option<String>,
    /// The maximum number of tools that the agent's requests list from the start, if it is not
    /// `tools.listed` of its node. Older nodes ignore it and list all tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed_tools: Option<u32>,
    pub limits: AgentLimits,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub labels: Map<String, Value>,
    /// The permissions of the node, the member and its spawners. The strictest one decides. None of
    /// them lets every call run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<Permissions>,
    /// The tools that the client runs which started the session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_tools: Vec<ClientTool>,
    /// The shape in which each turn of the agent answers, unless its prompt says another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputSpec>,
    /// The agent that spawned this one; absent for an agent with which its session started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spawned_by: Option<crate::AgentId>,
}

/// A session's specification in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionSpec {
    pub team_id: crate::TeamId,
    pub lead: crate::AgentId,
    pub workspace: String,
    /// The working directory of the session's agents: an absolute path in a workspace
    /// `local:<host>`, otherwise a path relative to the workspace.
    pub dir: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    pub limits: SessionLimits,
    pub on_node_death: OnNodeDeath,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_limits_the_lower_one_holds() {
        let own = AgentLimits {
            max_tokens: Some(9),
            max_turn_seconds: Some(1),
            on_limit: Some(OnLimit::Ask),
            ..AgentLimits::default()
        };
        let most = AgentLimits {
            max_tokens: Some(3),
            max_cost_usd: Some(0.5),
            max_turn_seconds: Some(2),
            ..AgentLimits::default()
        };
        let expected = AgentLimits {
            max_turn_seconds: Some(1),
            on_limit: Some(OnLimit::Ask),
            ..most
        };
        assert_eq!(own.within(most), expected);
    }
}
