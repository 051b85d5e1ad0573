//! Spans of turns, model calls and tool calls that follow the OpenTelemetry conventions for
//! generative AI. The conventions are still in development, so this module defines their names
//! itself. Spans contain ids, names and counts. They contain texts only if `telemetry.content` is
//! set.

use opentelemetry::{Array, Value, trace::Status};
use planck_common::{AgentId, CallId, SessionId, usage::Usage};
use tracing::{Span, field::Empty, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use planck_agent::model::Names;

pub const OPERATION_NAME: &str = "gen_ai.operation.name";
pub const PROVIDER_NAME: &str = "gen_ai.provider.name";
pub const AGENT_ID: &str = "gen_ai.agent.id";
pub const AGENT_NAME: &str = "gen_ai.agent.name";
/// The attribute for the id of the session.
pub const CONVERSATION_ID: &str = "gen_ai.conversation.id";
pub const REQUEST_MODEL: &str = "gen_ai.request.model";
pub const RESPONSE_ID: &str = "gen_ai.response.id";
pub const RESPONSE_MODEL: &str = "gen_ai.response.model";
pub const SERVER_ADDRESS: &str = "server.address";
pub const SERVER_PORT: &str = "server.port";
pub const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
pub const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub const CACHE_READ_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
pub const CACHE_WRITE_TOKENS: &str = "gen_ai.usage.cache_creation.input_tokens";
pub const TOOL_NAME: &str = "gen_ai.tool.name";
pub const TOOL_CALL_ID: &str = "gen_ai.tool.call.id";
pub const TOKEN_TYPE: &str = "gen_ai.token.type";
pub const ERROR_TYPE: &str = "error.type";

/// The names of the metrics in the same conventions.
pub const OPERATION_DURATION: &str = "gen_ai.client.operation.duration";
pub const TOKEN_USAGE: &str = "gen_ai.client.token.usage";

/// Returns the span of an agent's turn. The spans of its model calls and tool calls are its
/// children.
pub fn invoke_agent(session: &SessionId, agent: &AgentId, name: &str) -> Span {
    info_span!(
        "invoke_agent",
        otel.name = format!("invoke_agent {name}"),
        { OPERATION_NAME } = "invoke_agent",
        { CONVERSATION_ID } = session.as_str(),
        { AGENT_ID } = agent.as_str(),
        { AGENT_NAME } = name,
        { INPUT_TOKENS } = Empty,
        { OUTPUT_TOKENS } = Empty,
        { CACHE_READ_TOKENS } = Empty,
        { CACHE_WRITE_TOKENS } = Empty,
        { ERROR_TYPE } = Empty,
    )
}

/// Returns the span of a model call, with the server's host and port if they are known.
pub fn chat(provider: &str, model: &str, server: Option<(&str, u16)>) -> Span {
    info_span!(
        "chat",
        otel.name = format!("chat {model}"),
        otel.kind = "client",
        { OPERATION_NAME } = "chat",
        { PROVIDER_NAME } = provider,
        { REQUEST_MODEL } = model,
        { RESPONSE_ID } = Empty,
        { RESPONSE_MODEL } = Empty,
        { SERVER_ADDRESS } = server.map(|(host, _)| host),
        { SERVER_PORT } = server.map(|(_, port)| i64::from(port)),
        { INPUT_TOKENS } = Empty,
        { OUTPUT_TOKENS } = Empty,
        { CACHE_READ_TOKENS } = Empty,
        { CACHE_WRITE_TOKENS } = Empty,
        { ERROR_TYPE } = Empty,
    )
}

/// Returns the span of a tool call.
pub fn execute_tool(tool: &str, call: &CallId) -> Span {
    info_span!(
        "execute_tool",
        otel.name = format!("execute_tool {tool}"),
        { OPERATION_NAME } = "execute_tool",
        { TOOL_NAME } = tool,
        { TOOL_CALL_ID } = call.as_str(),
        { ERROR_TYPE } = Empty,
    )
}

/// Records the token counts of a turn or a model call.
pub fn record_usage(span: &Span, usage: &Usage) {
    span.record(INPUT_TOKENS, whole(usage.context_tokens()));
    span.record(OUTPUT_TOKENS, whole(usage.output_tokens));
    span.record(CACHE_READ_TOKENS, whole(usage.cache_read_tokens));
    span.record(CACHE_WRITE_TOKENS, whole(usage.cache_write_tokens));
}

/// Records the response id and the model that the server reported, and why the model stopped. The
/// conventions define the finish reasons as a list, so the reason is recorded as a list with one
/// item.
pub fn record_finish(span: &Span, names: &Names, reason: &'static str) {
    if let Some(id) = &names.id {
        span.record(RESPONSE_ID, id);
    }
    if let Some(model) = &names.model {
        span.record(RESPONSE_MODEL, model);
    }
    span.set_attribute(
        FINISH_REASONS,
        Value::Array(Array::String(vec![reason.into()])),
    );
}

/// Records a failure. `kind` is one of a few fixed words.
pub fn record_error(span: &Span, kind: &'static str) {
    span.record(ERROR_TYPE, kind);
    span.set_status(Status::error(kind));
}

/// Converts a count to a signed integer. OpenTelemetry has no unsigned integers, so unsigned counts
/// would be sent as text.
fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
