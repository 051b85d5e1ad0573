//! The object that is a response, and the items of its output.

use planck_common::{SessionId, usage::Usage};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::openai::segment::{EndKind, SegmentEnd};

/// A response.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Response {
    pub id: String,
    /// Always `response`.
    pub object: &'static str,
    /// The time in seconds.
    pub created_at: i64,
    pub completed_at: Option<i64>,
    /// `queued`, `in_progress`, `completed`, `incomplete`, `cancelled` or `failed`.
    pub status: &'static str,
    pub error: Option<ResponseError>,
    pub incomplete_details: Option<IncompleteDetails>,
    pub model: String,
    pub conversation: ConversationRef,
    pub output: Vec<OutputItem>,
    pub usage: Option<ResponseUsage>,
    #[serde(flatten)]
    pub more: MoreFields,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct MoreFields {
    /// The metadata of the request. `planck_warning` names parameters without effect, and
    /// `planck_waits` says for what the turn waits.
    pub metadata: Map<String, Value>,
    /// Fields of the request, and fields that clients expect and that mean nothing here.
    #[serde(flatten)]
    pub further: Map<String, Value>,
}

/// The reason for which a turn failed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ResponseError {
    /// Always `server_error`.
    code: &'static str,
    /// The code of the turn's error, such as `output_invalid`.
    r#type: String,
    message: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct IncompleteDetails {
    /// `max_output_tokens` or `content_filter`.
    reason: &'static str,
}

/// The session of a response.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ConversationRef {
    pub id: SessionId,
}

/// The tokens of the orchestrator's requests.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ResponseUsage {
    input_tokens: u64,
    input_tokens_details: InputTokens,
    output_tokens: u64,
    output_tokens_details: OutputTokens,
    total_tokens: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct InputTokens {
    cached_tokens: u64,
    cache_write_tokens: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct OutputTokens {
    /// Always 0, because a provider's answer does not always say it.
    reasoning_tokens: u64,
}

pub fn usage(usage: &Usage) -> ResponseUsage {
    ResponseUsage {
        input_tokens: usage.context_tokens(),
        input_tokens_details: InputTokens {
            cached_tokens: usage.cache_read_tokens,
            cache_write_tokens: usage.cache_write_tokens,
        },
        output_tokens: usage.output_tokens,
        output_tokens_details: OutputTokens {
            reasoning_tokens: 0,
        },
        total_tokens: usage.tokens(),
    }
}

pub fn incomplete(end: &SegmentEnd) -> Option<IncompleteDetails> {
    let reason = match end.how {
        EndKind::Cut => "max_output_tokens",
        EndKind::Refused => "content_filter",
        EndKind::Done
        | EndKind::Called
        | EndKind::Aborted
        | EndKind::Taken
        | EndKind::Failed { .. } => return None,
    };
    Some(IncompleteDetails { reason })
}

pub fn error(end: &SegmentEnd) -> Option<ResponseError> {
    match &end.how {
        EndKind::Failed { code, reason } => Some(ResponseError {
            code: "server_error",
            r#type: code.clone(),
            message: format!("{reason} ({code})"),
        }),
        EndKind::Cut
        | EndKind::Refused
        | EndKind::Done
        | EndKind::Called
        | EndKind::Aborted
        | EndKind::Taken => None,
    }
}

/// Returns the fields that clients expect and that mean nothing here.
pub fn unused() -> Map<String, Value> {
    let fields = json!({
        "instructions": null, "max_output_tokens": null, "max_tool_calls": null,
        "parallel_tool_calls": true, "previous_response_id": null, "prompt_cache_key": null,
        "reasoning": {"effort": null, "summary": null}, "safety_identifier": null,
        "service_tier": "default", "store": true, "temperature": 1.0, "top_p": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "top_logprobs": 0,
        "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
        "truncation": "disabled", "user": null, "background": false,
    });
    fields.as_object().cloned().unwrap_or_default()
}

/// An item of a response's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem {
    /// A reply of the orchestrator.
    Message {
        id: String,
        /// Always `assistant`.
        role: &'static str,
        status: &'static str,
        content: Vec<OutputPart>,
    },
    Reasoning {
        id: String,
        /// Always empty.
        summary: Vec<OutputPart>,
        status: &'static str,
        content: Vec<OutputPart>,
    },
    /// A call of a tool of the client.
    FunctionCall {
        id: String,
        name: String,
        /// The id that the result of the call names.
        call_id: String,
        /// The arguments, as the text of a JSON object.
        arguments: String,
        status: &'static str,
    },
}

/// The content of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputPart {
    OutputText {
        text: String,
        /// Always empty, like `logprobs`.
        annotations: Vec<()>,
        logprobs: Vec<()>,
    },
    ReasoningText {
        text: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemKind {
    Message,
    Reasoning,
    Call,
}

impl ItemKind {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Message => "msg",
            Self::Reasoning => "rs",
            Self::Call => "fc",
        }
    }

    /// Returns the name of the event with a piece of the item.
    pub const fn delta(self) -> &'static str {
        match self {
            Self::Message => "response.output_text.delta",
            Self::Reasoning => "response.reasoning_text.delta",
            Self::Call => "response.function_call_arguments.delta",
        }
    }

    /// Returns the name of the event that follows the last piece.
    pub const fn done(self) -> &'static str {
        match self {
            Self::Message => "response.output_text.done",
            Self::Reasoning => "response.reasoning_text.done",
            Self::Call => "response.function_call_arguments.done",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Item {
    pub kind: ItemKind,
    /// The number of the item's first event.
    pub first: u64,
    pub id: String,
    /// The text, or the arguments of the call.
    pub text: String,
    pub status: &'static str,
    pub call_id: String,
    pub name: String,
}

impl Item {
    pub fn new(kind: ItemKind, first: u64, response: &str) -> Self {
        Self {
            kind,
            first,
            id: format!("{}_{response}_{first:x}", kind.prefix()),
            text: String::new(),
            status: "in_progress",
            call_id: String::new(),
            name: String::new(),
        }
    }

    /// Returns the part of the content.
    pub fn part(&self) -> OutputPart {
        let text = self.text.clone();
        match self.kind {
            ItemKind::Message => OutputPart::OutputText {
                text,
                annotations: Vec::new(),
                logprobs: Vec::new(),
            },
            ItemKind::Reasoning | ItemKind::Call => OutputPart::ReasoningText { text },
        }
    }

    /// Returns the item. An item that was just added has no content yet.
    pub fn written(&self, status: &'static str) -> OutputItem {
        let id = self.id.clone();
        let content = match self.text.is_empty() {
            true => Vec::new(),
            false => vec![self.part()],
        };
        match self.kind {
            ItemKind::Message => OutputItem::Message {
                id,
                role: "assistant",
                status,
                content,
            },
            ItemKind::Reasoning => OutputItem::Reasoning {
                id,
                summary: Vec::new(),
                status,
                content,
            },
            ItemKind::Call => OutputItem::FunctionCall {
                id,
                name: self.name.clone(),
                call_id: self.call_id.clone(),
                arguments: self.text.clone(),
                status,
            },
        }
    }
}
