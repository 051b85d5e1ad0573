//! What a running call knows: who asks, how long it has, whether it is still wanted, and how to
//! report progress.

use std::time::Duration;

use planck_common::{AgentId, CallId, SessionId, TeamId, sidecar::ToolSaid};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

/// Reports that may wait to be sent; what comes on top is left out.
pub(crate) const REPORTS: usize = 64;

/// Bytes of a progress message.
const LONGEST_REPORT: usize = 4096;

/// Goes with one call.
#[derive(Debug, Clone)]
pub struct Context {
    pub(crate) call_id: CallId,
    pub(crate) agent_id: AgentId,
    pub(crate) session_id: SessionId,
    pub(crate) team: Option<(TeamId, i64)>,
    pub(crate) deadline: Instant,
    pub(crate) cancel: CancellationToken,
    pub(crate) reports: mpsc::Sender<ToolSaid>,
    pub(crate) traceparent: Option<String>,
}

impl Context {
    /// The same for the same call, however often it is sent: what an idempotent tool goes by.
    pub fn call_id(&self) -> &CallId {
        &self.call_id
    }

    pub fn agent_id(&self) -> &AgentId {
        &self.agent_id
    }

    pub fn session_id(&self) -> &SessionId {
        &self.session_id
    }

    /// `None` in a compactor.
    pub fn team_id(&self) -> Option<&TeamId> {
        self.team.as_ref().map(|(team, _)| team)
    }

    /// The caller's lease, which rises whenever another node takes the agent over; `None` in a
    /// compactor.
    pub fn epoch(&self) -> Option<i64> {
        self.team.as_ref().map(|(_, epoch)| *epoch)
    }

    /// The caller's place in its trace, as W3C Trace Context writes it; `None` where nothing is
    /// traced. With the feature `opentelemetry` it is the current span of the call's OpenTelemetry
    /// context already.
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// How long the answer is waited for. A call that runs out of it is dropped and answered with
    /// an error.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Whether the answer is no longer wanted.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Ready when the answer is no longer wanted. The call is dropped a second later.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Tells how far it is, which renews the idle time-out. Of a flood of reports some are left
    /// out; none is waited for.
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
            .try_send(ToolSaid::Progress { message, percent });
    }
}
