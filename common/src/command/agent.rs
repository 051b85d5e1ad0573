//! Commands about agents: prompts, descriptions and changes.

use serde::{Deserialize, Serialize};

use super::{AgentState, InputMode};
use crate::{
    AgentId, CallId, InputId, NodeId, Seq, SessionId, TeamId,
    message::Part,
    permission::Permissions,
    spec::{AgentRole, ModelRef},
    usage::Usage,
};

/// The maximum length in bytes of the system prompt in the description of an agent. A longer one is
/// cut, and ends with `…`.
pub const MOST_SYSTEM_PROMPT: usize = 16 * 1024;

impl AgentInfo {
    /// Returns a system prompt as a description has it.
    pub fn shown_prompt(system_prompt: &str) -> Option<String> {
        let cut = system_prompt.floor_char_boundary(MOST_SYSTEM_PROMPT);
        let (shown, rest) = system_prompt.split_at(cut);
        let more = if rest.is_empty() { "" } else { "…" };
        (!shown.is_empty()).then(|| format!("{shown}{more}"))
    }
}

/// Makes a prompt from a text. If the agent is busy, the prompt waits for the agent's next turn.
impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self {
            text: Some(text.to_owned()),
            ..Self::default()
        }
    }
}

bodies! {
    #[derive(Default)]
    Prompt {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<Vec<Part>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt_id: Option<InputId>,
        #[serde(default)]
        mode: InputMode,
        /// An agent's id or name; the orchestrator by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
        /// The name of the person or program that sends the prompt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    }
    Accepted {
        /// Why the prompt cannot run now, although it is stored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warning: Option<String>,
        prompt_id: InputId,
        session_id: SessionId,
        agent_id: AgentId,
        /// The number of the log's last row before the prompt. Read events from `seq + 1`.
        seq: Seq,
    }
    Because {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    AgentInfo {
        id: AgentId,
        name: String,
        r#type: String,
        role: AgentRole,
        session_id: SessionId,
        team_id: TeamId,
        node_id: Option<NodeId>,
        epoch: i64,
        state: AgentState,
        turn: u32,
        model: ModelRef,
        tools: Vec<String>,
        skills: Vec<String>,
        usage: Usage,
        context_tokens: u64,
        context_window: u64,
        /// The number of inputs that wait.
        queued: usize,
        /// The layers of permissions, of which the strictest decides. Absent if every call runs.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        permissions: Vec<Permissions>,
        /// The system prompt as the model gets it, at most 16 KiB of it. Absent if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        system_prompt: Option<String>,
    }
    Snapshot {
        head: Seq,
        info: AgentInfo,
        running: Option<Running>,
    }
    Running {
        turn: u32,
        request: u32,
        parts: Vec<RunningPart>,
        tools: Vec<RunningTool>,
        /// The calls that wait for an answer from outside.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waits: Vec<CallId>,
    }
    RunningPart {
        part: usize,
        /// `text`, `thinking` or `tool_call`.
        r#type: String,
        text: String,
    }
    RunningTool {
        call_id: CallId,
        name: String,
        elapsed_ms: u64,
    }
    AgentStateNow {
        state: AgentState,
    }
    SetCheckpoint {
        summary: String,
    }
    SavedAt {
        seq: Seq,
    }
    ToolName {
        name: String,
    }
    Tools {
        tools: Vec<String>,
    }
    ChangeModel {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<String>,
        model_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base_url: Option<String>,
    }
    Model {
        model: ModelRef,
    }
}
