//! Bodies of requests and of their `ok`, a pair for each verb of the protocol's table.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};

use crate::{
    AgentId, CallId, InputId, NodeId, Seq, SessionId, SessionName, TeamId, Timestamp,
    message::{Part, Sender},
    registry::TeamEnd,
    spec::{Member, ModelRef, OnNodeDeath, Role, SessionLimits},
    usage::Usage,
};

macro_rules! verbs {
    ($($(#[$doc:meta])* $name:ident { $($verb:ident = $text:literal,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($verb,)+ }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$verb,)+];

            /// The last word of the subject.
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
        Rewind = "rewind", Resume = "resume", Close = "close", Delete = "delete",
    }
    AgentVerb {
        Prompt = "prompt", Info = "info", Snapshot = "snapshot", Abort = "abort", Stop = "stop", Nudge = "nudge",
        Checkpoint = "checkpoint", AddTool = "add_tool", RemoveTool = "remove_tool", ChangeModel = "change_model",
    }
    SessionsVerb { Start = "start", List = "list", }
    NodeVerb {
        Info = "info", Drain = "drain", Host = "host", Wake = "wake", Relay = "relay", StopTeam = "stop_team",
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

fn is_false(value: &bool) -> bool {
    !value
}

/// The body of a verb that needs none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Empty {}

/// What a prompt does to an agent that is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Waits for the next turn.
    #[default]
    Queue,
    /// Joins the running turn before its next request.
    Steer,
    /// Is refused with `busy`.
    Reject,
}

impl Mode {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Steer => "steer",
            Self::Reject => "reject",
        }
    }

    pub fn find(name: &str) -> Option<Self> {
        [Self::Queue, Self::Steer, Self::Reject].into_iter().find(|mode| mode.name() == name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    Open,
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AgentState {
    Idle,
    Streaming,
    ExecutingTools,
    Compacting,
    Stopped,
}

impl AgentState {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Streaming => "streaming",
            Self::ExecutingTools => "executing_tools",
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

/// US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Prices {
    pub input: f64,
    pub output: f64,
    pub cache_read: f64,
    pub cache_write: f64,
}

bodies! {
    Start {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<SessionId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<SessionName>,
        /// A template's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        team: Option<String>,
        /// A TEAM.json array.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        members: Option<Vec<Member>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        workspace: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dir: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt_id: Option<InputId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limits: Option<SessionLimits>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        on_node_death: Option<OnNodeDeath>,
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        metadata: Map<String, Value>,
    }
    Started {
        session_id: SessionId,
        name: SessionName,
        team_id: TeamId,
        orchestrator: AgentId,
        node_id: NodeId,
        state: SessionState,
        seq: Seq,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt_id: Option<InputId>,
    }
    ListSessions {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<SessionState>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
    }
    Sessions {
        sessions: Vec<SessionRow>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<String>,
    }
    SessionRow {
        id: SessionId,
        name: SessionName,
        state: SessionState,
        owner: Option<NodeId>,
        agents: u32,
        workspace: String,
        created_at: Timestamp,
        updated_at: Timestamp,
    }
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
    ReadEvents {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<Seq>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
    }
    Events {
        #[cfg_attr(feature = "schema", schemars(with = "Vec<serde_json::Value>"))]
        events: Vec<Box<RawValue>>,
        next: Seq,
        head: Seq,
    }
    ReadMessages {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<Seq>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
    }
    Messages {
        #[cfg_attr(feature = "schema", schemars(with = "Vec<serde_json::Value>"))]
        messages: Vec<Box<RawValue>>,
        before: Option<Seq>,
    }
    SessionInfo {
        id: SessionId,
        name: SessionName,
        state: SessionState,
        workspace: String,
        dir: String,
        team_id: TeamId,
        owner: Option<NodeId>,
        head: Seq,
        agents: Vec<AgentRow>,
        usage: Usage,
        limits: SessionLimits,
        metadata: Map<String, Value>,
    }
    AgentRow {
        id: AgentId,
        name: String,
        r#type: String,
        role: Role,
        node_id: Option<NodeId>,
        state: AgentState,
        epoch: i64,
    }
    Aborted {
        aborted: Vec<AgentId>,
    }
    Rewind {
        to: Seq,
    }
    HeadAt {
        head: Seq,
    }
    Because {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    SessionStateNow {
        state: SessionState,
    }
    Removed {
        removed: RemovedCounts,
    }
    RemovedCounts {
        agents: u64,
        events: u64,
        inputs: u64,
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
        /// Agents with an open turn.
        running: u32,
        workspaces: Vec<String>,
        providers: Vec<String>,
        started_at: Timestamp,
        silent_ms: u64,
    }
    Drain {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
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
        role: Role,
    }
    Models {
        models: Vec<ModelRow>,
    }
    ModelRow {
        /// `provider:model`.
        id: String,
        provider: String,
        model: String,
        context_window: u64,
        max_output: u64,
        prices: Option<Prices>,
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
    /// Between nodes: something of this agent changed in SQL; look there.
    Wake {
        session_id: SessionId,
        agent_id: AgentId,
        /// The input that came; absent where the agent is to look for itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input_id: Option<InputId>,
        /// Where to send `answered` news of this input: the asker's agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answered: Option<InputId>,
        /// Workers of this lead stopped: its log is to be told.
        #[serde(default, skip_serializing_if = "is_false")]
        exits: bool,
    }
    /// Between nodes: a command for an agent or session hosted there.
    Relay {
        /// The subject as the client sent it, without prefix.
        subject: String,
        #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
        body: Box<RawValue>,
    }
    /// Between nodes: start this agent; its record and lease are in SQL under the host's id or unheld.
    HostAgent {
        session_id: SessionId,
        agent_id: AgentId,
        /// The epoch last seen, for the claim; 0 for an agent that is yet to be born.
        epoch: i64,
        incarnation: i64,
        lead: AgentId,
        team_id: TeamId,
        /// The whole spec of an agent that is yet to be born.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
        spec: Option<Box<RawValue>>,
        /// What an agent that is yet to be born finds in its inbox.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<FirstTask>,
        /// How long its tools wait: what a dead node ran for it may go on until then.
        #[serde(default)]
        tools_wait_ms: u64,
    }
    /// The task that an agent is spawned for.
    FirstTask {
        id: InputId,
        from: Sender,
        text: String,
    }
    Hosted {
        node_id: NodeId,
        epoch: i64,
        name: String,
        /// Whether it was born with its task; else whoever wants it done gives it.
        #[serde(default, skip_serializing_if = "is_false")]
        has_task: bool,
    }
    /// Between nodes: end what is hosted there of this team, of this incarnation or an earlier one.
    StopTeam {
        team_id: TeamId,
        incarnation: i64,
        reason: TeamEnd,
        /// What the members' logs are told, where they are told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said: Option<String>,
    }
    StoppedTeam {
        agents: u32,
    }
}
