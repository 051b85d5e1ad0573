//! Connects the bus to the traces and metrics of this process.

use std::time::Duration;

use planck_bus::telemetry::Telemetry;
use tracing::Span;

use super::{metrics::meters, propagation};

/// The telemetry hook that `Telemetry::start` installs in the bus.
pub struct BusTelemetry;

impl Telemetry for BusTelemetry {
    fn traceparent(&self) -> Option<String> {
        propagation::traceparent()
    }

    /// Returns the span of a command as a child of the caller's span. Without a trace, the span
    /// appears only in logs, because the frequent commands of observing clients would fill the
    /// collector.
    fn command_span(&self, subject: &str, traceparent: Option<&str>) -> Span {
        match traceparent {
            Some(parent) => {
                let span = tracing::info_span!("command", subject);
                propagation::set_parent(&span, parent);
                span
            }
            None => tracing::info_span!(target: propagation::UNTRACED, "command", subject),
        }
    }

    fn published(&self, waited: Duration) {
        meters().published(waited);
    }
}
