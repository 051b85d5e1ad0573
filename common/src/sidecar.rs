//! The protocol between nodes and sidecars: requests on `tool.<sidecar>.<tool>` and
//! `compact.<sidecar>.<compactor>`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use crate::{
    AgentId, CallId, Seq, SessionId, SidecarId, TeamId, message::Message, wait::WaitDecision,
};

/// The keys of the metadata of a sidecar's service and of its endpoints, and the values of
/// [`KIND`](metadata::KIND).
pub mod metadata {
    /// The service's key for the version of this protocol.
    pub const PLANCK: &str = "planck";
    /// The service's key for the subject prefix of the cluster.
    pub const PREFIX: &str = "prefix";
    /// The kind of an endpoint: [`TOOL`] or [`COMPACTOR`].
    pub const KIND: &str = "kind";
    pub const TOOL: &str = "tool";
    pub const COMPACTOR: &str = "compactor";
    /// The description of a tool, which the model reads, or of a compactor.
    pub const DESCRIPTION: &str = "description";
    /// The JSON Schema of a tool's arguments, as text.
    pub const PARAMETERS: &str = "parameters";
    /// The effect of a tool: `pure`, `idempotent` or `mutating`.
    pub const EFFECT: &str = "effect";
    /// How long the tool or compactor may be silent during a call, in milliseconds.
    pub const TIMEOUT_MS: &str = "timeout_ms";
}

/// How long a tool may be silent by default, in milliseconds.
pub const TOOL_TIMEOUT_MS: u64 = 300_000;

/// The maximum duration of a call whose progress reports restart its idle time-out, as a multiple
/// of that time-out.
pub const TIMEOUT_RENEWALS: u32 = 10;

/// How long a compactor may be silent by default, in milliseconds.
pub const COMPACTOR_TIMEOUT_MS: u64 = 120_000;

/// The maximum size of the schema of a tool's parameters in bytes. Every request of every agent
/// that has the tool carries the schema.
pub const MOST_PARAMETER_BYTES: usize = crate::json_schema::MOST_BYTES;

/// Returns a name that a schema, or the schema of one of its properties or items, requires but does
/// not define. Returns `None` if there is no such name. Model servers refuse every request with a
/// tool that has such a schema.
pub fn unknown_required(schema: &Value) -> Option<&str> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let mut required = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    let unknown =
        required.find(|name| !properties.is_some_and(|properties| properties.contains_key(*name)));
    let mut within = properties
        .into_iter()
        .flat_map(|properties| properties.values())
        .chain(schema.get("items"));
    unknown.or_else(|| within.find_map(unknown_required))
}

/// The error with which an instance answers a call that it is already running. The protocol has no
/// separate field for this case, so [`ToolMessage`] reads and writes it as this text.
pub const IN_PROGRESS: &str = "in progress";

/// A call of a tool. `args` matches the schema that the sidecar declared.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolRequest {
    pub v: u32,
    /// The id of the call, which is the same when the call is sent again.
    pub call_id: CallId,
    pub tool: String,
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    pub args: Box<RawValue>,
    pub agent_id: AgentId,
    pub session_id: SessionId,
    pub team_id: TeamId,
    /// The epoch of the caller's lease. A call with a lower epoch than one already seen comes from
    /// a fenced node.
    pub epoch: i64,
    /// The time left, in milliseconds.
    pub deadline_ms: u64,
    /// Whether the caller takes the reply `ask`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_ask: bool,
    /// The answer to the question with which the call ended before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<ToolAnswer>,
}

/// The question that a tool asks a person before it can go on. The call ends with the question, and the
/// node makes it again with the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolQuestion {
    pub message: String,
    /// The JSON Schema of the answer. Without one the answer is a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// A value that the tool gets back with the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Value>,
}

/// The answer to a [`ToolQuestion`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolAnswer {
    /// `answer`, `deny` or `expired`.
    pub decision: WaitDecision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Why a person gives no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Value>,
}

/// A message that a sidecar sends to the reply subject of a call: any number of `progress`, then
/// one of the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolReply {
    pub v: u32,
    #[serde(flatten)]
    pub message: ToolMessage,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(from = "WireToolMessage", into = "WireToolMessage")]
pub enum ToolMessage {
    Ok(String),
    Error(String),
    /// The call ends with a question, and is made again with the answer.
    Ask(ToolQuestion),
    /// The instance is still running this call from an earlier request.
    InProgress,
    /// Restarts the call's idle time-out.
    Progress {
        message: String,
        percent: Option<f64>,
    },
}

/// A [`ToolMessage`] on the wire, where [`ToolMessage::InProgress`] is the error [`IN_PROGRESS`].
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "ToolSaid"))]
#[serde(rename_all = "snake_case")]
enum WireToolMessage {
    Ok(String),
    Error(String),
    /// The call ends with a question, and is made again with the answer. Only for a request with
    /// `may_ask`.
    Ask(ToolQuestion),
    /// Restarts the call's idle time-out.
    Progress {
        message: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        percent: Option<f64>,
    },
}

impl From<WireToolMessage> for ToolMessage {
    fn from(wire: WireToolMessage) -> Self {
        match wire {
            WireToolMessage::Ok(text) => Self::Ok(text),
            WireToolMessage::Error(text) if text == IN_PROGRESS => Self::InProgress,
            WireToolMessage::Error(text) => Self::Error(text),
            WireToolMessage::Ask(question) => Self::Ask(question),
            WireToolMessage::Progress { message, percent } => Self::Progress { message, percent },
        }
    }
}

impl From<ToolMessage> for WireToolMessage {
    fn from(message: ToolMessage) -> Self {
        match message {
            ToolMessage::Ok(text) => Self::Ok(text),
            ToolMessage::Error(text) => Self::Error(text),
            ToolMessage::Ask(question) => Self::Ask(question),
            ToolMessage::InProgress => Self::Error(IN_PROGRESS.into()),
            ToolMessage::Progress { message, percent } => Self::Progress { message, percent },
        }
    }
}

/// A conversation to summarise.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompactRequest {
    pub v: u32,
    pub call_id: CallId,
    pub compactor: String,
    pub model: CompactModel,
    pub messages: Vec<Message>,
    /// An estimate for all messages.
    pub tokens: u64,
    pub agent_id: AgentId,
    pub session_id: SessionId,
    /// The time left, in milliseconds.
    pub deadline_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompactModel {
    pub id: String,
    pub context_window: u64,
}

/// A compactor's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompactReply {
    pub v: u32,
    #[serde(flatten)]
    pub message: CompactMessage,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", schemars(rename = "CompactSaid"))]
pub enum CompactMessage {
    /// The summary replaces every message before `keep_from`.
    Compact {
        summary: String,
        keep_from: Seq,
    },
    /// The conversation stays as it is.
    Skip(bool),
    Error(String),
}

/// A sidecar publishes this on `sidecar.<sidecar>` when an instance starts, or takes no more calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Presence {
    pub v: u32,
    pub r#type: PresenceKind,
    pub sidecar: SidecarId,
    /// The id of the instance, which is also the `id` of its NATS service.
    pub instance: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PresenceKind {
    Hello,
    Bye,
}

/// A node publishes this on `cancel.<sidecar>` when an answer is no longer needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cancel {
    pub v: u32,
    pub call_id: CallId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_written_as_in_the_protocol() {
        for (text, message) in [
            (r#"{"v":1,"ok":"done"}"#, ToolMessage::Ok("done".into())),
            (r#"{"v":1,"error":"in progress"}"#, ToolMessage::InProgress),
            (
                r#"{"v":1,"error":"still in progress"}"#,
                ToolMessage::Error("still in progress".into()),
            ),
            (
                r#"{"v":1,"ask":{"message":"Which?","state":"s1"}}"#,
                ToolMessage::Ask(ToolQuestion {
                    message: "Which?".into(),
                    schema: None,
                    state: Some("s1".into()),
                }),
            ),
            (
                r#"{"v":1,"progress":{"message":"half","percent":50.0}}"#,
                ToolMessage::Progress {
                    message: "half".into(),
                    percent: Some(50.0),
                },
            ),
        ] {
            let reply = ToolReply { v: 1, message };
            assert_eq!(serde_json::to_string(&reply).unwrap(), text);
            assert_eq!(serde_json::from_str::<ToolReply>(text).unwrap(), reply);
        }
        for (text, message) in [
            (
                r#"{"v":1,"compact":{"summary":"s","keep_from":7}}"#,
                CompactMessage::Compact {
                    summary: "s".into(),
                    keep_from: 7,
                },
            ),
            (r#"{"v":1,"skip":true}"#, CompactMessage::Skip(true)),
        ] {
            let reply = CompactReply { v: 1, message };
            assert_eq!(serde_json::to_string(&reply).unwrap(), text);
            assert_eq!(serde_json::from_str::<CompactReply>(text).unwrap(), reply);
        }
    }
}
