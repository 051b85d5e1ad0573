//! Commands about sessions: start, list, read, change and end them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};

use super::{AgentState, SessionActivity, SessionState};
use crate::{
    AgentId, CallId, InputId, NodeId, Seq, SessionId, SessionName, TeamId, Timestamp,
    permission::{PermissionMode, Permissions},
    spec::{AgentRole, ClientTool, Member, OnNodeDeath, SessionLimits},
    usage::Usage,
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
