//! Joins the bus to this process's traces and metrics.

use std::time::Duration;

use planck_bus::telemetry::Telemetry;
use tracing::Span;

use super::{metrics::meters, propagation};

/// What the node gives to the bus as its hook.
pub struct BusTelemetry;

impl Telemetry for BusTelemetry {
    fn traceparent(&self) -> Option<String> {
        propagation::traceparent()
    }

    /// The span of a command is part of its caller's trace. A command without a trace gets no span
    /// in the collector, because the commands of observers would fill it.
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
