//! Events of agents and sessions. Durable events are rows of the session's log; live events are
//! published and not stored.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    AgentId, CallId, InputId, NodeId, Seq,
    message::Message,
    spec::{AgentRole, ModelRef, OutputSpec},
    usage::Usage,
    wait::{WaitClosed, WaitOpened},
};

macro_rules! events {
    ($($(#[$doc:meta])* $kind:ident($data:ty) = $name:literal $durability:ident,)+) => {
        /// The `type` of an event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "snake_case")]
        pub enum EventKind { $($(#[$doc])* $kind,)+ }

        impl EventKind {
            /// Every kind, in the order of the protocol's table.
            pub const ALL: &[Self] = &[$(Self::$kind,)+];

            /// Returns the name of the kind in JSON and in the log.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)+ }
            }

            /// Returns whether events of this kind are rows of the log.
            pub const fn is_durable(self) -> bool {
                match self { $(Self::$kind => events!(@ $durability),)+ }
            }

            /// Returns the kind with this name, or `None` if only a newer version knows it.
            pub fn find(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$kind),)+ _ => None }
            }
        }

        /// An event's `type` with its `data`.
        #[derive(Debug, Clone)]
        pub enum Event { $($(#[$doc])* $kind($data),)+ }

        impl Event {
            pub fn kind(&self) -> EventKind {
                match self { $(Self::$kind(_) => EventKind::$kind,)+ }
            }

            /// Returns the JSON of `data`.
            pub fn data(&self) -> String {
                match self { $(Self::$kind(data) => json(data),)+ }
            }

            /// Reads the `data` of an event of a known kind.
            pub fn parse(kind: EventKind, data: &str) -> Result<Self, serde_json::Error> {
                Ok(match kind { $(EventKind::$kind => Self::$kind(serde_json::from_str(data)?),)+ })
            }
        }

        /// Returns the name of each kind of event with the JSON Schema of its `data`.
        #[cfg(feature = "schema")]
        pub fn schemas() -> Vec<(&'static str, schemars::Schema)> {
            vec![$(($name, schemars::schema_for!($data)),)+]
        }
    };
    (@ durable) => { true };
    (@ live) => { false };
}

events! {
    TurnStart(TurnStart) = "turn_start" durable,
    TurnEnd(TurnEnd) = "turn_end" durable,
    /// Ends a turn, like `turn_end`.
    Error(TurnError) = "error" durable,
    TextDelta(Delta) = "text_delta" live,
    ThinkingDelta(Delta) = "thinking_delta" live,
    Message(SavedMessage) = "message" durable,
    UsageDelta(UsageDelta) = "usage_delta" durable,
    ToolStart(ToolStart) = "tool_start" durable,
    ToolProgress(ToolProgress) = "tool_progress" live,
    ToolEnd(ToolEnd) = "tool_end" durable,
    WaitOpened(WaitOpened) = "wait_opened" durable,
    WaitClosed(WaitClosed) = "wait_closed" durable,
    Retry(Retry) = "retry" durable,
    MessageQueued(MessageQueued) = "message_queued" live,
    Compacting(Compacting) = "compacting" live,
    Compacted(Compacted) = "compacted" durable,
    WorkerSpawned(WorkerSpawned) = "worker_spawned" durable,
    WorkerExit(WorkerExit) = "worker_exit" durable,
    AgentStarted(AgentStarted) = "agent_started" durable,
    AgentStopped(Reason) = "agent_stopped" durable,
    SessionStarted(SessionStarted) = "session_started" durable,
    SessionResumed(SessionResumed) = "session_resumed" durable,
    SessionClosed(Reason) = "session_closed" durable,
    Rewound(Rewound) = "rewound" durable,
    Checkpoint(Checkpoint) = "checkpoint" durable,
    ToolsChanged(ToolsChanged) = "tools_changed" durable,
    ModelChanged(ModelChanged) = "model_changed" durable,
    Warning(Warning) = "warning" durable,
}

impl EventKind {
    /// Returns whether an event of this kind ends a turn.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::TurnEnd | Self::Error)
    }
}

/// The code of a turn that ended without an answer in its shape.
pub const OUTPUT_INVALID: &str = "output_invalid";

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Returns the JSON of a value. Serialisation cannot fail for the types of this crate, because the
/// keys of their maps are text and their own `Serialize` implementations return no errors.
pub fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".into())
}

macro_rules! data {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
    )+};
}

data! {
    TurnStart {
        /// The turn's number.
        index: u32,
        inputs: Vec<TurnInput>,
        /// The shape in which the turn answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<OutputDue>,
    }
    /// An input of a turn.
    TurnInput {
        id: InputId,
        kind: InputKind,
        /// The agent that sent the input; null for a client.
        from: Option<AgentId>,
        /// The name of the person or program that sent the prompt, as the prompt says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    }
    TurnEnd {
        outcome: TurnOutcome,
        /// The last text of the turn; null if there was none.
        message: Option<String>,
        usage: Usage,
        /// Whether the model refused to answer, or a filter of its provider stopped the answer.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        refused: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<String>,
        /// Why the turn was aborted, as the abort says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The answer of a completed turn that has a shape.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Map<String, serde_json::Value>>"))]
        output: Option<Box<RawValue>>,
        /// How many answers of the turn did not satisfy the shape.
        #[serde(default, skip_serializing_if = "is_zero")]
        output_repairs: u32,
        /// The shape that the turn leaves to a later one, because tasks have no response yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output_due: Option<OutputDue>,
        inputs: Vec<InputId>,
    }
    /// A shape in which an agent answers, and the tasks of the agent whose responses the answer may
    /// wait for.
    OutputDue {
        shape: OutputSpec,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tasks: Vec<InputId>,
    }
    TurnError {
        reason: String,
        /// `node_lost`, `not_storable`, `provider`, `context_full`, `auth`, `internal`, …
        code: String,
        retryable: bool,
        inputs: Vec<InputId>,
    }
    Delta {
        text: String,
        /// The index of the content part.
        part: usize,
        /// The number of Unicode scalar values of that part before this delta.
        offset: usize,
    }
    SavedMessage {
        message: Message,
    }
    UsageDelta {
        delta: Usage,
        total: Usage,
        context_tokens: u64,
    }
    ToolStart {
        call_id: CallId,
        /// The provider's own id.
        id: String,
        name: String,
        #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
        args: Box<RawValue>,
        effect: ToolEffect,
    }
    ToolProgress {
        call_id: CallId,
        message: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        percent: Option<f64>,
    }
    ToolEnd {
        call_id: CallId,
        id: String,
        name: String,
        result: String,
        error: bool,
        duration_ms: u64,
    }
    Retry {
        /// The number of the next attempt, from 2.
        attempt: u32,
        delay_ms: u64,
        reason: String,
    }
    MessageQueued {
        id: InputId,
        kind: InputKind,
        from: Option<AgentId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// The number of inputs that wait, including this one.
        queued: usize,
    }
    Compacting {
        tokens_before: u64,
    }
    Compacted {
        tokens_before: u64,
        tokens_after: u64,
        /// `local`, or the compactor of a sidecar.
        by: String,
        /// The number of messages that are kept unchanged.
        kept: usize,
    }
    WorkerSpawned {
        id: AgentId,
        name: String,
        r#type: String,
        node_id: NodeId,
    }
    WorkerExit {
        id: AgentId,
        name: String,
        reason: String,
    }
    AgentStarted {
        role: AgentRole,
        model: ModelRef,
        tools: Vec<String>,
    }
    Reason {
        reason: String,
    }
    SessionStarted {
        name: String,
        workspace: String,
    }
    SessionResumed {
        from_node: Option<NodeId>,
        reason: String,
    }
    Rewound {
        to: Seq,
        /// The name of the person or program that rewound, or `client` if it is unknown.
        by: String,
    }
    Checkpoint {
        /// The id of the last message that the summary replaces.
        covers: Seq,
    }
    ToolsChanged {
        added: Vec<String>,
        removed: Vec<String>,
        tools: Vec<String>,
    }
    ModelChanged {
        model: ModelRef,
    }
    Warning {
        code: String,
        message: String,
        /// The ids of the inputs that the agent refused. Only `input_rejected` has them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        inputs: Vec<InputId>,
    }
}

impl Warning {
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            inputs: Vec::new(),
        }
    }
}

/// The kind of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InputKind {
    /// A prompt from a client.
    Prompt,
    /// A question from an agent, which waits for the turn's text as its answer.
    Question,
    /// A task from an agent, which does not wait for the result.
    Task,
    /// The response to a task.
    Response,
    /// A note from the runtime: `task_unanswered`, `worker_exit`.
    Note,
}

/// How a turn without an error ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TurnOutcome {
    Completed,
    Aborted,
    Truncated,
    Limit,
}

// The order of the effects is that of their strictness.
/// What happens if a tool is run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", schemars(rename = "Effect"))]
pub enum ToolEffect {
    /// The tool changes nothing.
    Pure,
    /// Running the tool again under the same call id changes nothing more.
    Idempotent,
    /// The tool may change something at every run.
    #[default]
    Mutating,
}

impl ToolEffect {
    /// Returns whether an interrupted call may be run again under its call id.
    pub const fn may_run_again(self) -> bool {
        match self {
            Self::Pure | Self::Idempotent => true,
            Self::Mutating => false,
        }
    }
}

macro_rules! names {
    ($($type:ident { $($variant:ident = $name:literal,)+ })+) => {$(
        impl $type {
            /// Returns the name in JSON and in the store.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            pub fn find(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }
    )+};
}

names! {
    InputKind { Prompt = "prompt", Question = "question", Task = "task", Response = "response", Note = "note", }
    TurnOutcome { Completed = "completed", Aborted = "aborted", Truncated = "truncated", Limit = "limit", }
    ToolEffect { Pure = "pure", Idempotent = "idempotent", Mutating = "mutating", }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_earlier_versions_are_read_and_written() {
        for (kind, data) in [
            (
                EventKind::TurnStart,
                r#"{"index":1,"inputs":[{"id":"p1","kind":"prompt","from":null}]}"#,
            ),
            (
                EventKind::MessageQueued,
                r#"{"id":"p1","kind":"prompt","from":null,"queued":1}"#,
            ),
            (
                EventKind::TurnEnd,
                r#"{"outcome":"aborted","message":null,"usage":{"input_tokens":0,"output_tokens":0,"cache_read_tokens":0,"cache_write_tokens":0,"cost_usd":0.0},"inputs":["p1"]}"#,
            ),
            (EventKind::Rewound, r#"{"to":3,"by":"client"}"#),
        ] {
            assert_eq!(Event::parse(kind, data).unwrap().data(), data);
        }
    }

    #[test]
    fn names_are_those_of_serde() {
        for kind in EventKind::ALL {
            assert_eq!(
                serde_json::to_string(kind).unwrap(),
                format!("{:?}", kind.name())
            );
            assert_eq!(EventKind::find(kind.name()), Some(*kind));
        }
    }
}
