//! What a node tells of itself besides its events: logs on standard error, and traces when a collector is configured.

pub mod genai;
pub mod propagation;

mod traces;

use std::{
    io::{IsTerminal, stderr},
    time::Duration,
};

use tracing::Subscriber;
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, registry::LookupSpan, util::SubscriberInitExt};

use self::traces::Traces;
use crate::terminal::LogWriter;

/// What is told, and where.
#[derive(Debug, Clone)]
pub struct TelemetryOptions {
    /// In the words of `RUST_LOG`.
    pub log: String,
    /// One JSON object a line instead of text.
    pub json: bool,
    /// The base address of an OTLP collector over HTTP.
    pub otlp_endpoint: Option<String>,
    pub service_name: String,
}

/// Why telemetry could not start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("cannot read the log filter `{filter}`: {reason}")]
    Filter { filter: String, reason: String },
    #[error("cannot send traces to {endpoint}: {reason}")]
    Collector { endpoint: String, reason: String },
    #[error("logging was set up before")]
    Twice,
}

/// Telemetry in force. Shut it down at the end, or the last spans are lost.
#[derive(Debug)]
pub struct Telemetry {
    traces: Option<Traces>,
}

impl Telemetry {
    /// Takes over the process's logs and spans; spans are sent on the current runtime.
    pub fn start(options: &TelemetryOptions) -> Result<Self, TelemetryError> {
        let (subscriber, telemetry) = subscriber(options)?;
        subscriber.try_init().map_err(|_| TelemetryError::Twice)?;
        Ok(telemetry)
    }

    /// Sends what is left, within `deadline`.
    pub async fn shutdown(self, deadline: Duration) {
        if let Some(traces) = self.traces {
            traces.shutdown(deadline).await;
        }
    }
}

fn subscriber(options: &TelemetryOptions) -> Result<(impl Subscriber + Send + Sync + use<>, Telemetry), TelemetryError> {
    let filter = EnvFilter::try_new(&options.log)
        .map_err(|error| TelemetryError::Filter { filter: options.log.clone(), reason: error.to_string() })?;
    let traces = match &options.otlp_endpoint {
        Some(endpoint) => Some(Traces::start(endpoint, &options.service_name)?),
        None => None,
    };
    let spans = traces.as_ref().map(Traces::layer);
    let subscriber = tracing_subscriber::registry().with(lines(options.json).with_filter(filter)).with(spans);
    Ok((subscriber, Telemetry { traces }))
}

fn lines<S: Subscriber + for<'a> LookupSpan<'a>>(json: bool) -> Box<dyn Layer<S> + Send + Sync> {
    let lines = tracing_subscriber::fmt::layer().with_writer(move || LogWriter::new(json));
    if json { lines.json().flatten_event(true).boxed() } else { lines.with_ansi(stderr().is_terminal()).boxed() }
}

#[cfg(test)]
mod tests;
