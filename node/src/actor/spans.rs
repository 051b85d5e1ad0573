//! The spans of an agent's work: one for each turn, its model and tool calls as children.

use planck_common::{CallId, message::StopReason, spec::ModelRef, usage::Usage};
use tracing::Span;

use super::parts::Identity;
use crate::{
    model::{Failure, FailureKind, Finish},
    telemetry::genai,
    tools::Outcome,
};

#[derive(Default)]
pub(super) struct Spans {
    /// What brought the input that is being read.
    pub(super) cause: Option<Span>,
    turn: Option<Turn>,
}

struct Turn {
    span: Span,
    /// What the agent had consumed before.
    before: Usage,
}

impl Spans {
    pub(super) fn turn_is_open(&self) -> bool {
        self.turn.is_some()
    }

    /// A turn begins.
    pub(super) fn open(&mut self, identity: &Identity, name: &str, before: Usage) {
        let span = || genai::invoke_agent(&identity.session.id, &identity.agent, name);
        let span = self.cause.as_ref().map_or_else(span, |cause| cause.in_scope(span));
        self.turn = Some(Turn { span, before });
    }

    pub(super) fn close(&mut self, now: Usage) {
        if let Some(Turn { span, before }) = self.turn.take() {
            genai::record_usage(&span, &between(before, now));
        }
    }

    pub(super) fn model_call(&self, model: &ModelRef) -> Span {
        self.within(|| genai::chat(&model.provider, &model.id))
    }

    pub(super) fn tool_call(&self, tool: &str, call: &CallId) -> Span {
        self.within(|| genai::execute_tool(tool, call))
    }

    fn within(&self, span: impl FnOnce() -> Span) -> Span {
        match &self.turn {
            Some(turn) => turn.span.in_scope(span),
            None => span(),
        }
    }
}

/// Notes how a model call ended.
pub(super) fn record_answer(span: &Span, result: &Result<Finish, Failure>) {
    match result {
        Ok(finish) => {
            span.record(genai::FINISH_REASONS, reason(finish.stop));
            genai::record_usage(span, &finish.usage);
        }
        Err(failure) => {
            span.record(genai::ERROR_TYPE, kind(failure.kind));
        }
    }
}

/// Notes how a tool call ended.
pub(super) fn record_outcome(span: &Span, outcome: &Outcome) {
    if outcome.error {
        span.record(genai::ERROR_TYPE, "tool_error");
    }
}

/// By the names of the conventions.
fn reason(stop: StopReason) -> &'static str {
    match stop {
        StopReason::End => "stop",
        StopReason::ToolUse => "tool_call",
        StopReason::Length => "length",
        StopReason::Refusal => "content_filter",
    }
}

fn kind(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Transient => "transient",
        FailureKind::ContextFull => "context_full",
        FailureKind::Auth => "auth",
        FailureKind::Refused => "refused",
        FailureKind::AnswerLimit => "answer_limit",
    }
}

fn between(before: Usage, now: Usage) -> Usage {
    Usage {
        input_tokens: now.input_tokens.saturating_sub(before.input_tokens),
        output_tokens: now.output_tokens.saturating_sub(before.output_tokens),
        cache_read_tokens: now.cache_read_tokens.saturating_sub(before.cache_read_tokens),
        cache_write_tokens: now.cache_write_tokens.saturating_sub(before.cache_write_tokens),
        cost_usd: now.cost_usd - before.cost_usd,
    }
}
