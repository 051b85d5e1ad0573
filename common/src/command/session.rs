//! Commands about sessions: start, list, read, change and end them, answer their waits, and ask what
//! has become of a prompt.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};

use super::{AgentState, SessionActivity, SessionState};
use crate::{
    AgentId, CallId, InputId, NodeId, Seq, SessionId, SessionName, TeamId, Timestamp,
    event::{TurnEnd, TurnError, TurnOutcome},
    permission::{PermissionMode, Permissions, Rule},
    spec::{AgentRole, ClientTool, Member, OnNodeDeath, OutputSpec, SessionLimits},
    usage::Usage,
    wait::{WaitDecision, WaitKind, WaitScope, WaitState},
};

/// For how many milliseconds the abort of a session aborts the turns that begin because of it.
pub const MOST_ABORT_MS: u64 = 5_000;

bodies! {
    #[derive(Default)]
    Start {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<SessionId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<SessionName>,
        /// The name of a template.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        team: Option<String>,
        /// The members, as in a TEAM.json.
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
        /// The name of the person or program that sends the prompt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// The shape of the answer to `prompt`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<OutputSpec>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limits: Option<SessionLimits>,
        /// A mode that applies to every member, beside the member's own permissions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        permissions: Option<PermissionMode>,
        /// Tools that the client runs. The orchestrator has them, and each call waits for an
        /// answer. At most 64.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        client_tools: Vec<ClientTool>,
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
    #[derive(Default)]
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
        activity: SessionActivity,
        owner: Option<NodeId>,
        agents: u32,
        workspace: String,
        created_at: Timestamp,
        updated_at: Timestamp,
        /// The template of the session's team.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        team: Option<String>,
        /// The cost of the session in US dollars.
        cost_usd: f64,
        /// The beginning of the orchestrator's first prompt, on one line.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first_prompt: Option<String>,
        /// The last line that the orchestrator's model wrote.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_line: Option<String>,
        /// Why the session is `failed`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
        /// The title that a person gave the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
        /// The directory in the workspace. Absent in the answer of an older node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dir: Option<String>,
    }
    #[derive(Default)]
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
    #[derive(Default)]
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
        /// The open waits of the session, at most 100.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waits: Vec<CallId>,
        /// The template of the session's team.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        team: Option<String>,
        /// The layers of permissions of the orchestrator, as its own description has them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        permissions: Vec<Permissions>,
        /// The title that a person gave the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
    }
    AgentRow {
        id: AgentId,
        name: String,
        r#type: String,
        role: AgentRole,
        node_id: Option<NodeId>,
        state: AgentState,
        epoch: i64,
    }
    AbortSession {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The prompt whose work ends. By default it is that of all prompts which agents have read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt_id: Option<InputId>,
    }
    Aborted {
        aborted: Vec<AgentId>,
    }
    Rewind {
        to: Seq,
        /// The name of the person or program that rewinds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    }
    HeadAt {
        head: Seq,
    }
    #[derive(Default)]
    Rename {
        /// At most 200 characters. The node makes line breaks and spaces in a row one space each. Without
        /// a word the session has no title.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
    }
    Renamed {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
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
}

// Commands about waits: list and answer them.

bodies! {
    #[derive(Default)]
    ListWaits {
        /// The waits in this state; the open ones by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<WaitState>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<WaitKind>,
        /// The id or name of a session; all sessions by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
        /// The waits whose id begins with this text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
        /// The `next` of the preceding page.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
        /// Whether the list begins with the waits that were opened last.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        newest: bool,
    }
    Waits {
        waits: Vec<WaitRow>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<String>,
    }
    WaitRow {
        id: CallId,
        session_id: SessionId,
        agent_id: AgentId,
        /// The number of the event `wait_opened` in the session's log.
        seq: Seq,
        kind: WaitKind,
        state: WaitState,
        title: String,
        #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
        request: Box<RawValue>,
        digest: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        options: Option<Vec<String>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
        schema: Option<Box<RawValue>>,
        /// The rule that an answer with the scope `session` adds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<Rule>,
        opened_at: Timestamp,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at: Option<Timestamp>,
        /// The answer; absent while the wait is open.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        decision: Option<WaitDecision>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answered_by: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answered_at: Option<Timestamp>,
    }
    Answer {
        /// The id of the wait.
        wait: CallId,
        /// `allow` or `deny` for an approval and a budget, `answer` for a question, `answer` or
        /// `error` for a client's tool.
        decision: WaitDecision,
        /// The arguments with which an allowed call runs in place of the model's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
        args: Option<Box<RawValue>>,
        /// The answer to a question, or the result of a client's tool.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
        value: Option<Box<RawValue>>,
        /// The reason for a denial, which the model reads.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// `once` by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scope: Option<WaitScope>,
        /// The digest of the wait that was read. The answer is refused if the wait has another one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<String>,
        /// The name of the person or program that answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    }
    Answered {
        wait: CallId,
        state: WaitState,
        decision: WaitDecision,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answered_by: Option<String>,
        answered_at: Timestamp,
    }
}

// The command that tells what has become of the work that a prompt caused.

/// The maximum of `wait_ms`. A greater value means the same.
pub const MOST_WAIT_MS: u64 = 15_000;

/// Whether the work that a prompt caused is over. The work consists of the turns that consumed the
/// prompt, of the inputs that these turns sent to agents, of the turns that consumed those, and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WorkState {
    /// An agent works, or an input waits for an agent that will read it.
    Working,
    /// Agents wait for answers from outside, and nothing else of the work can happen before there
    /// is one.
    Waiting,
    /// Every input of the work has its outcome.
    Over,
}

/// How the work that a prompt caused has ended: as the latest turn of the answering agent that
/// belongs to the work, or without a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WorkOutcome {
    Completed,
    Aborted,
    Truncated,
    /// The model refused to answer, or a filter of its provider stopped the answer.
    Refused,
    Limit,
    /// The turn failed.
    Error,
    /// The agent was busy, and the prompt had the mode `reject`.
    Busy,
    /// The agent ended before it read the prompt, or the session was closed in the middle of the
    /// work.
    Stopped,
    /// A rewind has hidden the prompt.
    Rewound,
    /// An outcome that only a later version knows.
    #[serde(other)]
    Other,
}

impl From<&TurnEnd> for WorkOutcome {
    fn from(end: &TurnEnd) -> Self {
        match end.outcome {
            TurnOutcome::Completed if end.refused => Self::Refused,
            TurnOutcome::Completed => Self::Completed,
            TurnOutcome::Aborted => Self::Aborted,
            TurnOutcome::Truncated => Self::Truncated,
            TurnOutcome::Limit => Self::Limit,
        }
    }
}

bodies! {
    #[derive(Default)]
    ReadOutcome {
        /// The prompt. Without it, the reply is about all inputs of the session that have no
        /// outcome yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt_id: Option<InputId>,
        /// How long the reply may be delayed while the work goes on, in milliseconds: 0 by default,
        /// 15,000 at most. A node may reply earlier.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wait_ms: Option<u64>,
    }
    Outcome {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt_id: Option<InputId>,
        /// The agent that answers the prompt: the one to which it was sent. Without a prompt, the
        /// orchestrator.
        agent_id: AgentId,
        state: WorkState,
        /// Absent until the work is over, like `message`, `seq` and `error`, and without a prompt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcome: Option<WorkOutcome>,
        /// The answer: the text of the latest of `turns` or, if that turn was completed without a
        /// text, of an earlier one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// The answer of the turn `seq` in the shape that the prompt or the agent has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(with = "Option<Map<String, Value>>"))]
        output: Option<Box<RawValue>>,
        /// Whether the strings of `message` and `output` were cut, because the reply would exceed the
        /// server's limit. The event `seq` has the whole answer.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        truncated: bool,
        /// The number of the event that ended the turn with the answer or, without an answer, the
        /// latest of `turns`. Absent if no turn has read the prompt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<Seq>,
        /// Why the work failed, if `outcome` is `error`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<TurnError>,
        /// The numbers of the answering agent's turns that belong to the work, ascending: the latest
        /// 500.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        turns: Vec<u32>,
        /// The open waits of agents that the work needs, at most 100.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waits: Vec<CallId>,
        /// The number of the log's last row. If the work is over, all its events are in the log up
        /// to here.
        head: Seq,
    }
}

impl SessionInfo {
    /// Returns the agent that receives the session's prompts unless they name another one: the
    /// orchestrator, or the only agent of a session without one.
    pub fn orchestrator(&self) -> Option<&AgentRow> {
        let mut agents = self.agents.iter();
        let orchestrator = agents.find(|agent| agent.role == AgentRole::Orchestrator);
        orchestrator.or_else(|| self.agents.first())
    }
}
