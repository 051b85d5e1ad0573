//! The messages of the Agent Client Protocol, version 1, as far as this command uses them.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::rpc::RequestId;

/// The version of the protocol.
pub const VERSION: u16 = 1;

// Requests of the client. Fields that are not used are left out.

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Initialize {
    /// It is only checked: the answer has the version that this command speaks, and the client
    /// decides whether it speaks that too.
    #[serde(rename = "protocolVersion")]
    pub _version: u16,
    #[serde(default, deserialize_with = "or_default")]
    pub client_capabilities: ClientCapabilities,
}

/// What the client can do beyond what every client can. A value of another shape counts as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClientCapabilities {
    subagents: Value,
    elicitation: Value,
    session: Value,
}

/// The capabilities of the client that this command uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCan {
    /// The client shows sessions of other agents beside that of the lead.
    pub show_subagents: bool,
    /// The client asks a person to fill in a form.
    pub fill_forms: bool,
    /// The client shows notices that are no messages of the model.
    pub show_notices: bool,
    /// The client shows that the context is compacted.
    pub show_compactions: bool,
}

impl ClientCapabilities {
    pub fn used(&self) -> ClientCan {
        let in_session = |name: &str| self.session.get(name).is_some_and(Value::is_object);
        ClientCan {
            show_subagents: self.subagents.is_object(),
            fill_forms: self.elicitation.get("form").is_some_and(Value::is_object),
            show_notices: in_session("notices"),
            show_compactions: in_session("compaction"),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSession {
    pub cwd: String,
    #[serde(default, deserialize_with = "or_default")]
    pub mcp_servers: Vec<NamedServer>,
}

/// The request to load or resume a session.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenSession {
    pub session_id: String,
    pub cwd: String,
    #[serde(default, deserialize_with = "or_default")]
    pub mcp_servers: Vec<NamedServer>,
}

/// An MCP server that the client offers.
#[derive(Debug, Deserialize)]
pub struct NamedServer {
    pub name: String,
}

/// Reads a field that may be `null`.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[derive(Debug, Deserialize)]
pub struct ListSessions {
    pub cwd: Option<String>,
    pub cursor: Option<String>,
}

/// A request that names only a session.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamedSession {
    pub session_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetMode {
    pub session_id: String,
    pub mode_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetConfigOption {
    pub session_id: String,
    pub config_id: String,
    pub value: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prompt {
    pub session_id: String,
    pub prompt: Vec<PromptBlock>,
}

/// A part of a prompt.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum PromptBlock {
    Text {
        text: String,
    },
    ResourceLink {
        name: String,
        uri: String,
    },
    #[serde(rename_all = "camelCase")]
    Image {
        data: String,
        mime_type: String,
    },
    Resource {
        resource: EmbeddedResource,
    },
    #[serde(other)]
    Other,
}

/// A file that the client has read. Only one with a text is used.
#[derive(Debug, Deserialize)]
pub struct EmbeddedResource {
    pub uri: String,
    pub text: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CancelRequest {
    pub request_id: RequestId,
}

// Answers to the client.

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Initialized {
    pub protocol_version: u16,
    pub agent_capabilities: Capabilities,
    pub agent_info: AgentInfo,
    pub auth_methods: [(); 0],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    pub load_session: bool,
    pub prompt_capabilities: PromptCapabilities,
    pub session_capabilities: SessionCapabilities,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PromptCapabilities {
    pub image: bool,
    pub embedded_context: bool,
}

/// The methods of sessions beyond those of every agent.
#[derive(Debug, Serialize)]
pub struct SessionCapabilities {
    pub list: Nothing,
    pub resume: Nothing,
    pub close: Nothing,
    pub delete: Nothing,
}

#[derive(Debug, Serialize)]
pub struct AgentInfo {
    pub name: &'static str,
    pub title: &'static str,
    pub version: &'static str,
}

/// The answer to a request that opens a session.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionOpened {
    /// The id of a new session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    pub modes: Modes,
    pub config_options: Vec<ConfigOption>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Modes {
    pub current_mode_id: String,
    pub available_modes: Vec<Mode>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Mode {
    pub id: &'static str,
    pub name: &'static str,
    pub description: &'static str,
}

/// A setting of a session. Its value is one of several.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigOption {
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub id: &'static str,
    pub name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<&'static str>,
    pub current_value: String,
    pub options: Vec<ConfigValue>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigValue {
    pub value: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigOptions {
    pub config_options: Vec<ConfigOption>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionList {
    pub sessions: Vec<ListedSession>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedSession {
    pub session_id: String,
    pub cwd: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub updated_at: String,
}

/// An answer that says nothing more than that the request was performed.
#[derive(Debug, Serialize)]
pub struct Nothing {}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PromptDone {
    pub stop_reason: StopReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    MaxTurnRequests,
    Refusal,
    Cancelled,
}

// What a session does.

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionUpdate<'a> {
    pub session_id: &'a str,
    pub update: Update,
}

#[derive(Debug, Serialize)]
#[serde(tag = "sessionUpdate", rename_all = "snake_case")]
pub enum Update {
    UserMessageChunk(Chunk),
    AgentMessageChunk(Chunk),
    AgentThoughtChunk(Chunk),
    ToolCall(ToolCall),
    #[serde(rename = "tool_call_update")]
    ToolCallChanged(ToolCall),
    #[serde(rename = "available_commands_update", rename_all = "camelCase")]
    AvailableCommands {
        available_commands: Vec<AvailableCommand>,
    },
    #[serde(rename = "current_mode_update", rename_all = "camelCase")]
    CurrentMode {
        current_mode_id: String,
    },
    #[serde(rename = "config_option_update")]
    ConfigOptions(ConfigOptions),
    #[serde(rename = "session_info_update", rename_all = "camelCase")]
    SessionInfo {
        title: String,
    },
    #[serde(rename = "usage_update")]
    Usage {
        /// The number of tokens in the context.
        used: u64,
        /// The number of tokens that fit into the context.
        size: u64,
        cost: Cost,
    },
    Notice {
        severity: &'static str,
        title: String,
    },
    #[serde(rename = "subagent_update")]
    Subagent(Subagent),
    #[serde(rename = "compaction_update")]
    Compaction(Compaction),
}

/// The state of a compaction of the context.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Compaction {
    pub compaction_id: String,
    pub status: CompactionStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<[Content; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionStatus {
    InProgress,
    Completed,
    Failed,
    Cancelled,
}

#[derive(Debug, Serialize)]
pub struct AvailableCommand {
    pub name: &'static str,
    pub description: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<CommandInput>,
}

#[derive(Debug, Serialize)]
pub struct CommandInput {
    pub hint: &'static str,
}

#[derive(Debug, Serialize)]
pub struct Cost {
    pub amount: f64,
    pub currency: &'static str,
}

/// What has changed of another agent of the session.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Subagent {
    pub session_id: String,
    pub title: String,
    pub state: SubagentState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SubagentState {
    Running,
    Idle,
    RequiresAction,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Chunk {
    /// The chunks of one message have one id.
    pub message_id: String,
    pub content: Content,
}

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Content {
    Text { text: String },
}

/// A tool call, or what has changed of it.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCall {
    pub tool_call_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<ToolKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ToolStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Vec<ToolContent>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<Location>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw_input: Option<Value>,
}

/// A file that a call reads or changes.
#[derive(Debug, Clone, Serialize)]
pub struct Location {
    /// An absolute path.
    pub path: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    Read,
    Edit,
    Execute,
    Think,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolStatus {
    Pending,
    InProgress,
    Completed,
    Failed,
}

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolContent {
    Content {
        content: Content,
    },
    #[serde(rename_all = "camelCase")]
    Diff {
        /// An absolute path.
        path: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        old_text: Option<String>,
        new_text: String,
    },
}

impl ToolContent {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Content {
            content: Content::Text { text: text.into() },
        }
    }
}

// Requests for a permission.

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestPermission<'a> {
    pub session_id: &'a str,
    pub tool_call: ToolCall,
    pub options: Vec<PermissionOption>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionOption {
    pub option_id: &'static str,
    pub name: &'static str,
    pub kind: PermissionKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionKind {
    AllowOnce,
    AllowAlways,
    RejectOnce,
}

#[derive(Debug, Deserialize)]
pub struct PermissionAnswer {
    pub outcome: PermissionOutcome,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum PermissionOutcome {
    Selected {
        #[serde(rename = "optionId")]
        option_id: String,
    },
    Cancelled,
}

// Forms that a person fills in.

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateElicitation<'a> {
    pub mode: &'static str,
    pub session_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    pub message: String,
    pub requested_schema: Value,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum ElicitationAnswer {
    Accept {
        #[serde(default)]
        content: Map<String, Value>,
    },
    Decline,
    #[serde(other)]
    Other,
}
