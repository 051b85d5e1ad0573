//! The program's hook into this crate's traces and metrics. It belongs to the process, like the
//! subscriber of [`tracing`], so no connection needs a reference to it.

use std::{sync::OnceLock, time::Duration};

use tracing::Span;

static INSTALLED: OnceLock<Box<dyn TelemetryHook>> = OnceLock::new();

/// The name of the header that carries a trace, from W3C Trace Context.
pub const TRACEPARENT: &str = "traceparent";

/// The hook with which a program adds its trace context to requests, creates the spans of commands,
/// and measures how long publications wait. By default requests carry no trace, and nothing is
/// measured.
pub trait TelemetryHook: Send + Sync {
    /// Returns the trace that a request continues, as the value of the header `traceparent`, or
    /// `None` to send no header. The bus calls this method in the task that makes the request.
    fn traceparent(&self) -> Option<String> {
        None
    }

    /// Creates the span in which a served command runs. `traceparent` is the caller's header, if
    /// the caller sent one.
    fn command_span(&self, subject: &str, traceparent: Option<&str>) -> Span {
        let _without_traces = traceparent;
        tracing::info_span!("command", subject)
    }

    /// Records that a batch of publications was written. `waited` is how long the oldest of them
    /// waited.
    fn published(&self, waited: Duration) {
        let _uncounted = waited;
    }
}

struct Nothing;

impl TelemetryHook for Nothing {}

/// Installs the process's hook. Returns `false`, and changes nothing, if there is one already.
pub fn install(telemetry: impl TelemetryHook + 'static) -> bool {
    INSTALLED.set(Box::new(telemetry)).is_ok()
}

pub(crate) fn installed() -> &'static dyn TelemetryHook {
    INSTALLED
        .get()
        .map_or(&Nothing, |telemetry| telemetry.as_ref())
}
