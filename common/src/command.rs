//! The verbs of the protocol, the bodies of requests, and the bodies of the `ok` in their replies.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};

use crate::{
    AgentId, CallId, InputId, NodeId, Seq, SessionId, TeamId, Timestamp,
    message::{Part, Sender},
    permission::Permissions,
    registry::TeamEnd,
    spec::{AgentRole, ModelRef, OutputSpec},
    usage::Usage,
};

pub use self::session::*;

macro_rules! verbs {
    ($($(#[$doc:meta])* $name:ident { $($verb:ident = $text:literal,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($verb,)+ }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$verb,)+];

            /// Returns the last word of the verb's subject.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$verb => $text,)+ }
            }

            pub fn find(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$verb),)+ _ => None }
            }
        }
    )+};
}

verbs! {
    SessionVerb {
        Prompt = "prompt", Events = "events", Messages = "messages", Info = "info", Abort = "abort",
        Rewind = "rewind", Resume = "resume", Close = "close", Delete = "delete", Answer = "answer",
        Outcome = "outcome", Rename = "rename",
    }
    AgentVerb {
        Prompt = "prompt", Info = "info", Snapshot = "snapshot", Abort = "abort", Stop = "stop", Nudge = "nudge",
        Checkpoint = "checkpoint", AddTool = "add_tool", RemoveTool = "remove_tool", ChangeModel = "change_model",
    }
    SessionsVerb { Start = "start", List = "list", Waits = "waits", }
    NodeVerb {
        Info = "info", Drain = "drain", Host = "host", Wake = "wake", Relay = "relay", StopTeam = "stop_team",
    }
}

impl SessionVerb {
    /// Returns whether a client may send the command again although the first attempt may have been
    /// executed. A prompt is idempotent by its id; a client nevertheless sends a prompt once if the
    /// mode is [`InputMode::Reject`], because the client needs the first answer.
    pub const fn is_idempotent(self) -> bool {
        match self {
            Self::Abort | Self::Rewind | Self::Delete => false,
            Self::Prompt
            | Self::Events
            | Self::Messages
            | Self::Info
            | Self::Resume
            | Self::Close
            | Self::Answer
            | Self::Outcome
            | Self::Rename => true,
        }
    }
}

impl AgentVerb {
    /// Returns the same as [`SessionVerb::is_idempotent`].
    pub const fn is_idempotent(self) -> bool {
        match self {
            Self::Abort | Self::Stop | Self::Nudge | Self::Checkpoint => false,
            Self::Prompt
            | Self::Info
            | Self::Snapshot
            | Self::AddTool
            | Self::RemoveTool
            | Self::ChangeModel => true,
        }
    }
}

macro_rules! bodies {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
    )+};
}

mod session;

/// The maximum number of characters of a session's title.
pub const MOST_TITLE: usize = 200;

/// The maximum length in bytes of the name of who sends a prompt, a rewind or an answer.
pub const MOST_BY: usize = 200;

/// The body of a command without arguments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Empty {}

/// What happens to a prompt for an agent that is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", schemars(rename = "Mode"))]
pub enum InputMode {
    /// The prompt waits for the next turn.
    #[default]
    Queue,
    /// The prompt joins the running turn before its next request.
    Steer,
    /// The prompt is refused with `busy`.
    Reject,
}

impl InputMode {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Steer => "steer",
            Self::Reject => "reject",
        }
    }

    pub fn find(name: &str) -> Option<Self> {
        [Self::Queue, Self::Steer, Self::Reject]
            .into_iter()
            .find(|mode| mode.name() == name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    Open,
    Closed,
}

/// What a session is doing. It is independent of whether the session is open or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionActivity {
    Idle,
    /// An agent is working.
    Working,
    /// The process in which agents were working has ended. Their work continues when a node takes the
    /// session over. Only a store of one machine can tell.
    Interrupted,
    /// No agent is working, but an input waits for one, or an agent waits for an answer from
    /// outside.
    Waiting,
    /// No agent is working and nothing waits, and the orchestrator's last turn ended with an error,
    /// at a limit or cut off.
    Failed,
}

impl SessionActivity {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Working => "working",
            Self::Interrupted => "interrupted",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
        }
    }

    pub fn find(name: &str) -> Option<Self> {
        let all = [
            Self::Idle,
            Self::Working,
            Self::Interrupted,
            Self::Waiting,
            Self::Failed,
        ];
        all.into_iter().find(|activity| activity.name() == name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AgentState {
    Idle,
    Streaming,
    ExecutingTools,
    /// Every call of the round that has no result waits for an answer from outside.
    Waiting,
    Compacting,
    Stopped,
}

impl AgentState {
    /// Returns whether an agent in this state has a running turn.
    pub const fn has_turn(self) -> bool {
        match self {
            Self::Streaming | Self::ExecutingTools | Self::Waiting | Self::Compacting => true,
            Self::Idle | Self::Stopped => false,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Streaming => "streaming",
            Self::ExecutingTools => "executing_tools",
            Self::Waiting => "waiting",
            Self::Compacting => "compacting",
            Self::Stopped => "stopped",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    Alive,
    Suspended,
    Suspect,
    Draining,
    Left,
    Dead,
}

/// Prices in US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Prices {
    pub input: f64,
    pub output: f64,
    pub cache_read: f64,
    pub cache_write: f64,
}

// Commands about nodes, and lists of teams, models and sidecars.

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
        /// Why the sidecar, or a part of it, cannot be used now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    }
}

// Commands between nodes.

bodies! {
    /// Between nodes: tells the host of an agent to read the agent's rows in SQL again.
    Wake {
        session_id: SessionId,
        agent_id: AgentId,
        /// The new input, or absent if the agent is to read its whole inbox.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input_id: Option<InputId>,
        /// A question of this agent that was answered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answered: Option<InputId>,
        /// Whether workers of this orchestrator stopped, so that its log gets their `worker_exit`
        /// events.
        #[serde(default, skip_serializing_if = "is_false")]
        exits: bool,
    }
    /// Between nodes: passes a client's command on to the node that hosts its agent or session.
    Relay {
        /// The subject as the client sent it, without prefix.
        subject: String,
        #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
        body: Box<RawValue>,
    }
    /// Between nodes: asks a node to host an agent. With `spec` the agent is new; otherwise its
    /// record is in SQL and its lease can be claimed.
    HostAgent {
        session_id: SessionId,
        agent_id: AgentId,
        /// The epoch last seen, for the claim; 0 for a new agent.
        epoch: i64,
        incarnation: i64,
        lead: AgentId,
        team_id: TeamId,
        /// The complete specification of a new agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
        spec: Option<Box<RawValue>>,
        /// The task that a new agent finds in its inbox.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<FirstTask>,
        /// How long the agent's tools wait before they start, in milliseconds. During that time,
        /// tools that a dead node ran for the agent may still run.
        #[serde(default)]
        tools_wait_ms: u64,
    }
    /// The task for which an agent is spawned.
    FirstTask {
        id: InputId,
        from: Sender,
        text: String,
    }
    Hosted {
        node_id: NodeId,
        epoch: i64,
        name: String,
        /// Whether the agent was created with its task. If not, the caller has to send the task.
        #[serde(default, skip_serializing_if = "is_false")]
        has_task: bool,
    }
    /// Between nodes: asks a node to stop the agents of a team that it hosts, of this incarnation
    /// or an earlier one.
    StopTeam {
        team_id: TeamId,
        incarnation: i64,
        reason: TeamEnd,
        /// The reason written into the logs of the members; by default it follows from `reason`.
        #[serde(rename = "said", default, skip_serializing_if = "Option::is_none")]
        log_reason: Option<String>,
    }
    StoppedTeam {
        agents: u32,
    }
}

impl Wake {
    /// Creates the command that makes the host of an agent read the agent's whole inbox.
    pub fn look(session: &SessionId, agent: &AgentId) -> Self {
        Self {
            session_id: session.clone(),
            agent_id: agent.clone(),
            input_id: None,
            answered: None,
            exits: false,
        }
    }
}

// Commands about agents: prompts, descriptions and changes.

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
        /// The shape of the answer. A prompt with a shape opens a turn of its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<OutputSpec>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_are_absent_are_not_written() {
        let prompt = r#"{"text":"hi","mode":"queue"}"#;
        let start = r#"{"dir":"/srv","prompt":"hi"}"#;
        let read: Prompt = serde_json::from_str(prompt).unwrap();
        assert_eq!(
            (&read.by, crate::event::json(&read).as_str()),
            (&None, prompt)
        );
        let read: Start = serde_json::from_str(start).unwrap();
        assert_eq!(
            (&read.by, crate::event::json(&read).as_str()),
            (&None, start)
        );
        let read: Rewind = serde_json::from_str(r#"{"to":3}"#).unwrap();
        assert_eq!(
            (&read.by, crate::event::json(&read).as_str()),
            (&None, r#"{"to":3}"#)
        );
        let read: Drain = serde_json::from_str("{}").unwrap();
        assert_eq!(
            (&read.reason, crate::event::json(&read).as_str()),
            (&None, "{}")
        );
    }
}
