//! The spans and metrics of an agent's work. Each turn has a span, whose children are the spans of
//! its model and tool calls.

use std::time::Instant;

use planck_common::{
    CallId,
    event::{EventKind, TurnOutcome},
    message::StopReason,
    spec::ModelRef,
    usage::Usage,
};
use serde::Deserialize;
use tracing::Span;

use super::ActorIdentity;
use crate::{
    agent::Entry,
    model::{Failure, Finish},
};
use planck_telemetry::{content, genai, metrics};
use planck_toolbox::{ABORTED, ToolOutcome};

/// The outcome that telemetry reports for a failed turn.
const FAILED: &str = "error";

#[derive(Default)]
pub(super) struct Spans {
    /// The span that caused the input that the agent currently handles.
    pub(super) cause: Option<Span>,
    turn: Option<TurnSpan>,
    /// The number of queued inputs that was last reported to the node's
    /// [`ActivityCounts`](super::ActivityCounts).
    pub(super) queued: usize,
}

struct TurnSpan {
    span: Span,
    /// The tokens and the cost that the agent had used before the turn.
    before: Usage,
    since: Instant,
    /// The outcome of the turn, or `None` while it is open.
    outcome: Option<&'static str>,
}

/// The fields of a `turn_end` event that the metrics use.
#[derive(Deserialize)]
struct TurnEndFacts {
    outcome: TurnOutcome,
}

impl Spans {
    pub(super) fn turn_is_open(&self) -> bool {
        self.turn.is_some()
    }

    /// Opens the span of a turn.
    pub(super) fn open(&mut self, identity: &ActorIdentity, name: &str, before: Usage) {
        let span = || genai::invoke_agent(&identity.session.id, &identity.agent, name);
        let span = self
            .cause
            .as_ref()
            .map_or_else(span, |cause| cause.in_scope(span));
        self.turn = Some(TurnSpan {
            span,
            before,
            since: Instant::now(),
            outcome: None,
        });
    }

    pub(super) fn close(&mut self, now: Usage) {
        if let Some(TurnSpan {
            span,
            before,
            since,
            outcome,
        }) = self.turn.take()
        {
            genai::record_usage(&span, &between(before, now));
            if outcome == Some(FAILED) {
                genai::record_error(&span, "turn_failed");
            }
            if let Some(outcome) = outcome {
                metrics::meters().turn_ended(outcome, since.elapsed());
            }
        }
    }

    /// Clears the outcome of an open turn, so that its end is not counted. The turn continues later
    /// or on another node.
    pub(super) fn leave_open(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.outcome = None;
        }
    }

    /// Counts the retries among the entries of a save, and sets the outcome of the turn if an entry
    /// ends the turn.
    pub(super) fn saved(&mut self, entries: &[Entry]) {
        for entry in entries {
            if entry.kind == EventKind::Retry {
                metrics::meters().model_retried();
            }
            let Some(turn) = self.turn.as_mut().filter(|_| entry.kind.is_terminal()) else {
                continue;
            };
            turn.outcome = match entry.kind == EventKind::TurnEnd {
                true => serde_json::from_str(&entry.body)
                    .ok()
                    .map(|TurnEndFacts { outcome }| outcome.name()),
                false => Some(FAILED),
            };
        }
    }

    pub(super) fn model_call(&self, model: &ModelRef, server: Option<(&str, u16)>) -> Span {
        self.within(|| genai::chat(&model.provider, &model.id, server))
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

/// Records the result of a model call in its span.
pub(super) fn record_answer(span: &Span, result: &Result<Finish, Failure>) {
    match result {
        Ok(finish) => {
            genai::record_finish(span, &finish.names, reason(finish.stop));
            genai::record_usage(span, &finish.usage);
        }
        Err(failure) => genai::record_error(span, failure.kind.name()),
    }
}

/// Records the result of a tool call in its span.
pub(super) fn record_outcome(span: &Span, outcome: &ToolOutcome) {
    content::result(span, &outcome.text_for_model(ABORTED));
    if outcome.is_error() {
        genai::record_error(span, "tool_error");
    }
}

/// Returns the name of a stop reason in OpenTelemetry's conventions for generative AI.
fn reason(stop: StopReason) -> &'static str {
    match stop {
        StopReason::End => "stop",
        StopReason::ToolUse => "tool_call",
        StopReason::Length => "length",
        StopReason::Refusal => "content_filter",
    }
}

fn between(before: Usage, now: Usage) -> Usage {
    Usage {
        input_tokens: now.input_tokens.saturating_sub(before.input_tokens),
        output_tokens: now.output_tokens.saturating_sub(before.output_tokens),
        cache_read_tokens: now
            .cache_read_tokens
            .saturating_sub(before.cache_read_tokens),
        cache_write_tokens: now
            .cache_write_tokens
            .saturating_sub(before.cache_write_tokens),
        cost_usd: now.cost_usd - before.cost_usd,
    }
}
