//! The context of a running call: the caller, the time left, cancellation, and progress reports.

use std::time::Duration;

use planck_common::{AgentId, CallId, SessionId, TeamId, sidecar::ToolMessage};
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
}
