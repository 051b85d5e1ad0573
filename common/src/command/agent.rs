//! Of agents: what is asked of them, what they are and do, and how they are changed.

use serde::{Deserialize, Serialize};

use super::{AgentState, Mode};
use crate::{
    AgentId, CallId, InputId, NodeId, Seq, SessionId, TeamId,
    message::Part,
    spec::{ModelRef, Role},
    usage::Usage,
};

/// A prompt of text alone, which waits for the agent's next turn.
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
        mode: Mode,
        /// An agent's id or name; the lead unless said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
    }
    Accepted {
        prompt_id: InputId,
        session_id: SessionId,
        agent_id: AgentId,
        /// The log's last seq before the prompt: read events from `seq + 1`.
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
        role: Role,
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
        /// How many inputs wait.
        queued: usize,
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
