//! Runs a tool in the process that defines it, for a runtime that is embedded in a program.

use std::{any::Any, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use planck_common::{
    AgentId, CallId, SessionId, TeamId,
    event::ToolEffect,
    sidecar::{TIMEOUT_RENEWALS, ToolAnswer, ToolMessage, ToolQuestion},
};
use serde_json::value::RawValue;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Context, Tool,
    context::{REPORTS, until_asked},
};

/// How long a cancelled call may continue before it is dropped.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// The maximum duration of a call, whatever its timeout or deadline.
pub(crate) const LONGEST: Duration = Duration::from_hours(24);

/// A tool that is called in this process, without NATS.
pub struct LocalTool {
    tool: Tool,
}

/// One call of a [`LocalTool`].
#[derive(Debug)]
pub struct LocalCall {
    /// The id of the call, which stays the same when the call is repeated.
    pub call_id: CallId,
    /// The agent that calls.
    pub agent_id: AgentId,
    /// The agent's session.
    pub session_id: SessionId,
    /// The agent's team.
    pub team_id: TeamId,
    /// The epoch of the agent's lease.
    pub epoch: i64,
    /// The arguments as JSON text.
    pub args: Arc<RawValue>,
    /// The answer to the question with which the call ended before.
    pub answer: Option<ToolAnswer>,
    /// The token that the caller cancels when the result is no longer wanted.
    pub cancel: CancellationToken,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq)]
pub enum LocalEnd {
    /// The text that the model reads.
    Answer(String),
    /// The tool asks a person, and the caller makes the call again with the answer.
    Question(ToolQuestion),
}

impl LocalTool {
    /// Wraps a tool, so that it can be called without NATS.
    pub fn new(tool: Tool) -> Self {
        Self { tool }
    }

    /// Returns the name by which models call the tool.
    pub fn name(&self) -> &str {
        &self.tool.name
    }

    /// Returns the description that models read.
    pub fn description(&self) -> &str {
        &self.tool.description
    }

    /// Returns the JSON Schema of the arguments as JSON text.
    pub fn parameters(&self) -> &str {
        &self.tool.parameters
    }

    /// Returns the tool's effect, which says what running the tool changes.
    pub fn effect(&self) -> ToolEffect {
        self.tool.effect
    }

    /// Runs the tool until it returns, panics or exceeds its timeout, or for one second after it is
    /// cancelled. Each progress report goes to `report` and renews the timeout, up to ten times the
    /// timeout or 24 hours in total.
    ///
    /// # Errors
    ///
    /// Returns the text of the error, which the model reads.
    pub async fn run(
        &self,
        call: LocalCall,
        report: impl Fn(String, Option<f64>) + Send,
    ) -> Result<LocalEnd, String> {
        let (reports, mut reported) = mpsc::channel(REPORTS);
        let (questions, mut asked) = mpsc::channel(1);
        let idle = self.tool.timeout.min(LONGEST);
        let deadline = Instant::now() + idle.saturating_mul(TIMEOUT_RENEWALS).min(LONGEST);
        let cancel = call.cancel.clone();
        let context = Context {
            call_id: call.call_id,
            agent_id: call.agent_id,
            session_id: call.session_id,
            team: Some((call.team_id, call.epoch)),
            deadline,
            cancel: call.cancel,
            reports,
            questions: Some(questions),
            answer: call.answer,
            traceparent: None,
        };
        let work = async { (self.tool.function)(context, &call.args).await };
        let work = until_asked(work, &mut asked);
        let mut work = std::pin::pin!(AssertUnwindSafe(work).catch_unwind());
        let mut cancelled = std::pin::pin!(async {
            cancel.cancelled().await;
            sleep(GRACE).await;
        });
        let mut silent_until = Instant::now() + idle;
        loop {
            tokio::select! {
                biased;
                ended = &mut work => {
                    while let Ok(ToolMessage::Progress { message, percent }) = reported.try_recv() {
                        report(message, percent);
                    }
                    return ended.unwrap_or_else(|panic| Err(panic_text(panic.as_ref())));
                }
                () = &mut cancelled => return Err("cancelled: the answer was no longer wanted".into()),
                Some(ToolMessage::Progress { message, percent }) = reported.recv() => {
                    report(message, percent);
                    silent_until = (Instant::now() + idle).min(deadline);
                    // Reports without end would keep the timer from being polled.
                    if Instant::now() >= deadline {
                        return Err(timed_out(idle));
                    }
                }
                () = sleep_until(silent_until) => return Err(timed_out(idle)),
            }
        }
    }
}

fn timed_out(idle: Duration) -> String {
    format!(
        "timed out: no result and no progress report for {} s, or no result after the tenfold time",
        idle.as_secs_f64()
    )
}

/// Returns the text of a panic, as the model reads it.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the tool failed: {}", text.unwrap_or("it panicked"))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::value::to_raw_value;

    use super::*;

    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Wait {
        reports: u32,
        silent_ms: u64,
    }

    /// Reports progress `reports` times, every 50 ms, and then waits without a report.
    async fn wait(context: Context, args: Wait) -> Result<String, String> {
        for number in 0..args.reports {
            sleep(Duration::from_millis(50)).await;
            context.progress(format!("report {number}"), None);
        }
        sleep(Duration::from_millis(args.silent_ms)).await;
        Ok("done".into())
    }

    const TIMEOUT: Duration = Duration::from_millis(100);

    async fn run(
        args: serde_json::Value,
        timeout: Duration,
        cancel: CancellationToken,
    ) -> (Result<LocalEnd, String>, Vec<String>) {
        let reports = Mutex::new(Vec::new());
        let report = |message, _| reports.lock().unwrap().push(message);
        let tool = Tool::new("wait", "Waits.", wait).timeout(timeout);
        let result = LocalTool::new(tool).run(call(&args, cancel), report).await;
        (result, reports.into_inner().unwrap())
    }

    fn call(args: &serde_json::Value, cancel: CancellationToken) -> LocalCall {
        LocalCall {
            call_id: CallId::mint(),
            agent_id: AgentId::mint(),
            session_id: SessionId::mint(),
            team_id: TeamId::mint(),
            epoch: 1,
            args: to_raw_value(args).unwrap().into(),
            answer: None,
            cancel,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn progress_renews_the_timeout() {
        let args = serde_json::json!({"reports": 5, "silent_ms": 50});
        let (result, reports) = run(args, TIMEOUT, CancellationToken::new()).await;
        assert_eq!(result, Ok(LocalEnd::Answer("done".into())));
        assert_eq!(reports.len(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn silent_call_times_out() {
        let args = serde_json::json!({"reports": 1, "silent_ms": 500});
        let (result, _) = run(args, TIMEOUT, CancellationToken::new()).await;
        let why = "timed out: no result and no progress report for 0.1 s";
        assert!(result.unwrap_err().starts_with(why));
    }

    #[tokio::test(start_paused = true)]
    async fn endless_progress_ends_at_the_tenfold_timeout() {
        let args = serde_json::json!({"reports": 1000, "silent_ms": 0});
        let began = Instant::now();
        let (result, reports) = run(args, TIMEOUT, CancellationToken::new()).await;
        assert!(result.is_err());
        assert!(reports.len() <= 20);
        assert!(began.elapsed() <= Duration::from_millis(1_100));
    }

    #[tokio::test]
    async fn reports_without_a_pause_end_at_the_tenfold_timeout() {
        async fn flood(
            context: Context,
            _: serde_json::Map<String, serde_json::Value>,
        ) -> Result<String, String> {
            loop {
                context.progress("more", None);
                tokio::task::yield_now().await;
            }
        }
        let tool = LocalTool::new(Tool::new("flood", "Floods.", flood).timeout(TIMEOUT));
        let call = call(&serde_json::json!({}), CancellationToken::new());
        let began = Instant::now();
        let result = tool.run(call, |_, _| ()).await;
        assert!(result.unwrap_err().starts_with("timed out"));
        assert!(began.elapsed() < Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_without_a_limit_is_bounded() {
        let args = serde_json::json!({"reports": 1, "silent_ms": 25 * 60 * 60 * 1000});
        let began = Instant::now();
        let (result, _) = run(args, Duration::MAX, CancellationToken::new()).await;
        assert!(result.unwrap_err().starts_with("timed out"));
        assert!(began.elapsed() <= LONGEST);
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_call_ends_after_its_grace() {
        let cancel = CancellationToken::new();
        cancel.cancel();
        let args = serde_json::json!({"reports": 1000, "silent_ms": 0});
        let began = Instant::now();
        let (result, _) = run(args, Duration::from_secs(60), cancel).await;
        assert!(result.unwrap_err().starts_with("cancelled"));
        assert!(began.elapsed() <= Duration::from_millis(1_100));
    }

    #[tokio::test]
    async fn arguments_that_do_not_fit_are_refused() {
        let (result, _) = run(serde_json::json!({}), TIMEOUT, CancellationToken::new()).await;
        assert!(result.unwrap_err().starts_with("the arguments do not fit"));
    }
}
