//! The context of a running call: the caller, its place in the caller's trace, the time left,
//! cancellation, and progress reports.

use std::{future::Future, time::Duration};

use crate::local::LocalEnd;
use planck_common::{
    AgentId, CallId, SessionId, TeamId,
    sidecar::{ToolAnswer, ToolMessage, ToolQuestion},
};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

/// The number of reports that may wait to be sent. Further reports are dropped.
pub(crate) const REPORTS: usize = 64;

/// The maximum size of a progress message in bytes.
const LONGEST_REPORT: usize = 4096;

/// The context of one call.
#[derive(Debug, Clone)]
pub struct Context {
    pub(crate) call_id: CallId,
    pub(crate) agent_id: AgentId,
    pub(crate) session_id: SessionId,
    pub(crate) team: Option<(TeamId, i64)>,
    pub(crate) deadline: Instant,
    pub(crate) cancel: CancellationToken,
    pub(crate) reports: mpsc::Sender<ToolMessage>,
    /// Takes the question with which the call ends. Absent if the caller takes none.
    pub(crate) questions: Option<mpsc::Sender<ToolQuestion>>,
    pub(crate) answer: Option<ToolAnswer>,
    pub(crate) traceparent: Option<String>,
}

impl Context {
    /// Returns the id of the call. The id stays the same when the call is sent again, so an
    /// idempotent tool can recognise a repeated call by it.
    pub fn call_id(&self) -> &CallId {
        &self.call_id
    }

    pub fn agent_id(&self) -> &AgentId {
        &self.agent_id
    }

    pub fn session_id(&self) -> &SessionId {
        &self.session_id
    }

    /// Returns the caller's team, or `None` in a compactor.
    pub fn team_id(&self) -> Option<&TeamId> {
        self.team.as_ref().map(|(team, _)| team)
    }

    /// Returns the epoch of the caller's lease, or `None` in a compactor. The epoch rises whenever
    /// another node takes over the agent.
    pub fn epoch(&self) -> Option<i64> {
        self.team.as_ref().map(|(_, epoch)| *epoch)
    }

    /// Returns the caller's place in its trace in the format of W3C Trace Context, or `None` if the
    /// call is not traced. With the feature `opentelemetry`, this place is already the current span
    /// of the call's OpenTelemetry context.
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// Returns the time until the call's deadline, at which the call is dropped and answered with
    /// an error. The caller stops waiting earlier if the tool is silent for longer than its
    /// timeout.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Returns whether the call was cancelled, because its answer is no longer needed or the
    /// sidecar stops.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits until the call is cancelled. If the call still runs one second later, it is dropped.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Reports progress, which restarts the idle time-out of a tool. This method never blocks. It
    /// drops the report in a compactor, and if 64 reports wait to be sent. It cuts the message to
    /// 4,096 bytes, and limits `percent` to 0 to 100.
    pub fn progress(&self, message: impl Into<String>, percent: Option<f64>) {
        let mut message = message.into();
        if message.len() > LONGEST_REPORT {
            message.truncate(message.floor_char_boundary(LONGEST_REPORT));
        }
        let percent = percent
            .filter(|percent| percent.is_finite())
            .map(|percent| percent.clamp(0.0, 100.0));
        let _left_out_when_full = self
            .reports
            .try_send(ToolMessage::Progress { message, percent });
    }

    /// Asks a person a question, which ends the call: this method returns only if the caller takes no
    /// questions. The call is made again, from its beginning, with the [`answer`](Self::answer),
    /// minutes or days later and perhaps on another instance.
    ///
    /// # Errors
    /// Returns an error if the caller takes no questions, as in a compactor.
    pub async fn ask<T>(&self, question: ToolQuestion) -> Result<T, String> {
        let Some(questions) = &self.questions else {
            return Err("no person can be asked here".into());
        };
        let _only_the_first_counts = questions.try_send(question);
        std::future::pending().await
    }

    /// Returns whether [`ask`](Self::ask) reaches a person.
    pub fn may_ask(&self) -> bool {
        self.questions.is_some()
    }

    /// Returns the answer to the question with which the call ended before, or `None` if it has asked
    /// none.
    pub fn answer(&self) -> Option<&ToolAnswer> {
        self.answer.as_ref()
    }
}

/// Runs the work of a call until it ends or asks a question.
pub async fn until_asked(
    work: impl Future<Output = Result<String, String>>,
    asked: &mut mpsc::Receiver<ToolQuestion>,
) -> Result<LocalEnd, String> {
    tokio::select! {
        biased;
        ended = work => ended.map(LocalEnd::Answer),
        Some(question) = asked.recv() => Ok(LocalEnd::Question(question)),
    }
}

/// The name of the header, from W3C Trace Context.
pub const TRACE_HEADER: &str = "traceparent";

/// Begins and runs the work of a call with the caller's span as OpenTelemetry's current span.
/// Without a valid `traceparent`, the current context stays.
#[cfg(feature = "opentelemetry")]
pub fn within_trace<F: Future>(
    traceparent: Option<&str>,
    work: impl FnOnce() -> F,
) -> impl Future<Output = F::Output> {
    use opentelemetry::{
        Context,
        trace::{FutureExt as _, TraceContextExt as _},
    };

    let context = match traceparent.and_then(parse) {
        Some(parent) => Context::current().with_remote_span_context(parent),
        None => Context::current(),
    };
    let begun = {
        let _current = context.clone().attach();
        work()
    };
    begun.with_context(context)
}

/// Begins the work. Without OpenTelemetry there is no current span.
#[cfg(not(feature = "opentelemetry"))]
pub fn within_trace<F: Future>(_traceparent: Option<&str>, work: impl FnOnce() -> F) -> F {
    work()
}

/// Parses a `traceparent` header. Returns `None` if the header is malformed. Ignores further fields
/// at its end, because a later version may add some.
#[cfg(feature = "opentelemetry")]
fn parse(header: &str) -> Option<opentelemetry::trace::SpanContext> {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

    let mut parts = header.trim().split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    if !hex(version, 2) || version == "ff" || !hex(trace, 32) || !hex(span, 16) || !hex(flags, 2) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let parent = SpanContext::new(trace, span, flags, true, TraceState::default());
    parent.is_valid().then_some(parent)
}

#[cfg(all(test, feature = "opentelemetry"))]
mod tests {
    use opentelemetry::{Context, trace::TraceContextExt as _};

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn current() -> String {
        let context = Context::current();
        let span = context.span().span_context().clone();
        format!("{}-{}", span.trace_id(), span.span_id())
    }

    #[tokio::test]
    async fn work_runs_with_the_span_of_its_caller() {
        let work = || async {
            tokio::task::yield_now().await;
            current()
        };
        assert_eq!(within_trace(Some(PARENT), work).await, PARENT[3..52]);
        let none = current();
        for malformed in [
            "",
            "00-0af7-b7ad-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            &"0".repeat(55),
        ] {
            assert_eq!(
                within_trace(Some(malformed), work).await,
                none,
                "{malformed}"
            );
        }
    }
}
