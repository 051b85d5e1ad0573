//! The object that is a response.

use planck_common::{SessionId, usage::Usage};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::openai::{
    responses::item::OutputItem,
    segment::{EndKind, SegmentEnd},
};

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
