//! Telemetry: logs on standard error, traces and metrics if a collector is configured, and metrics
//! and probes over HTTP if a listen address is configured.

pub mod content;
pub mod genai;
mod listener;
pub mod metrics;
mod traces;
pub mod vitals;

use std::{
    io::{self, IsTerminal, stderr},
    net::SocketAddr,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use opentelemetry_sdk::Resource;
use tokio::runtime::Handle;
use tracing::{Span, Subscriber};
use tracing_subscriber::{
    EnvFilter, Layer, layer::SubscriberExt, registry::LookupSpan, util::SubscriberInitExt,
};

use planck_bus::telemetry::TelemetryHook;
use planck_common::{NodeId, allowed_hosts::AllowedHosts};
use planck_host::terminal::LogWriter;

use self::{
    listener::Listener,
    metrics::{Metrics, Push, meters},
    traces::{Collector, Traces, UNTRACED, resource, set_parent, traceparent},
};

/// The telemetry that a process produces, and where it is sent.
#[derive(Debug, Clone)]
pub struct TelemetryOptions {
    /// The log filter in the syntax of `RUST_LOG`.
    pub log: String,
    /// Whether each line of the log is a JSON object instead of text.
    pub json: bool,
    /// The base address of a collector that accepts OTLP over HTTP.
    pub otlp_endpoint: Option<String>,
    pub service_name: String,
    /// Whether spans contain the texts of messages and of tool calls.
    pub content: bool,
    /// Whether metrics are kept although nothing else needs them.
    pub metrics: bool,
    /// The address at which probes and metrics are served over HTTP.
    pub listen: Option<SocketAddr>,
    /// The names, with a dot, under which the listener may be addressed.
    pub hosts: AllowedHosts,
}

/// The reason why telemetry could not start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("cannot read the log filter `{filter}`: {reason}")]
    Filter { filter: String, reason: String },
    #[error("cannot send traces and metrics to {endpoint}: {reason}")]
    Collector { endpoint: String, reason: String },
    #[error("cannot listen on {address} (telemetry.listen): {reason}")]
    Listener {
        address: SocketAddr,
        reason: io::Error,
    },
    #[error("logging was set up before")]
    Twice,
}

/// The telemetry of a process. [`shutdown`](Self::shutdown) must be called at the end, because the
/// last spans are lost otherwise.
#[derive(Debug)]
pub struct Telemetry {
    traces: Option<Traces>,
    metrics: Option<Arc<Metrics>>,
    listener: Option<Listener>,
}

impl Telemetry {
    /// Installs logs, spans and metrics for the whole process, and starts the listener if an
    /// address for it is configured. The HTTP requests to a collector run on the current runtime.
    pub fn start(options: &TelemetryOptions) -> Result<Self, TelemetryError> {
        let (subscriber, mut telemetry) = subscriber(options)?;
        subscriber.try_init().map_err(|_| TelemetryError::Twice)?;
        planck_bus::telemetry::install(BusTelemetry);
        content::ask(options.content && options.otlp_endpoint.is_some());
        if options.otlp_endpoint.is_some() || options.listen.is_some() || options.metrics {
            let metrics = Arc::new(metrics(options)?);
            metrics.install();
            telemetry.listener = listener(options, &metrics)?;
            telemetry.metrics = Some(metrics);
        }
        Ok(telemetry)
    }

    /// Returns the metrics of the process, if it keeps any.
    pub fn metrics(&self) -> Option<&Arc<Metrics>> {
        self.metrics.as_ref()
    }

    /// Sends the remaining data and stops the listener. Data that is not sent within `deadline` is
    /// lost.
    pub async fn shutdown(self, deadline: Duration) {
        let Self {
            traces,
            metrics,
            listener,
        } = self;
        let traces = async {
            if let Some(traces) = traces {
                traces.shutdown(deadline).await;
            }
        };
        let metrics = async {
            let Some(metrics) = metrics else { return };
            let shutdown = tokio::task::spawn_blocking(move || metrics.shutdown(deadline));
            match tokio::time::timeout(deadline, shutdown).await {
                Ok(Ok(Ok(()))) => {}
                // Many collectors accept only traces, so a failure with metrics is not logged as a
                // warning.
                Ok(Ok(Err(error))) => tracing::info!(%error, "the last metrics were not sent"),
                Ok(Err(_)) | Err(_) => tracing::info!("the last metrics were not sent in time"),
            }
        };
        tokio::join!(traces, metrics);
        drop(listener);
    }
}

fn metrics(options: &TelemetryOptions) -> Result<Metrics, TelemetryError> {
    let push = match &options.otlp_endpoint {
        Some(endpoint) => {
            let collector = Collector(endpoint);
            let runtime = Handle::try_current().map_err(|error| collector.unfit(&error))?;
            Some(Push::new(collector.metrics()?, runtime))
        }
        None => None,
    };
    Ok(Metrics::new(resource_of(options), push))
}

fn listener(
    options: &TelemetryOptions,
    metrics: &Arc<Metrics>,
) -> Result<Option<Listener>, TelemetryError> {
    let Some(address) = options.listen else {
        return Ok(None);
    };
    let started = Handle::try_current()
        .map_err(io::Error::other)
        .and_then(|main| {
            Listener::start(address, Arc::clone(metrics), main, options.hosts.clone())
        });
    started
        .map(Some)
        .map_err(|reason| TelemetryError::Listener { address, reason })
}

fn resource_of(options: &TelemetryOptions) -> Resource {
    let host = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_default();
    resource(&options.service_name, first_node_id().as_str(), &host)
}

fn subscriber(
    options: &TelemetryOptions,
) -> Result<(impl Subscriber + Send + Sync + use<>, Telemetry), TelemetryError> {
    // The library that speaks MCP logs addresses, whose query may have a key, and each wrong request of a
    // client. What goes wrong with an MCP server is logged by `planck`.
    let filter = format!("rmcp=off,{}", options.log);
    let filter = EnvFilter::try_new(filter).map_err(|error| TelemetryError::Filter {
        filter: options.log.clone(),
        reason: error.to_string(),
    })?;
    let traces = match &options.otlp_endpoint {
        Some(endpoint) => Some(Traces::start(Collector(endpoint), resource_of(options))?),
        None => None,
    };
    let spans = traces.as_ref().map(Traces::layer);
    let subscriber = tracing_subscriber::registry()
        .with(lines(options.json).with_filter(filter))
        .with(spans);
    Ok((
        subscriber,
        Telemetry {
            traces,
            metrics: None,
            listener: None,
        },
    ))
}

fn lines<S: Subscriber + for<'a> LookupSpan<'a>>(json: bool) -> Box<dyn Layer<S> + Send + Sync> {
    let lines = tracing_subscriber::fmt::layer().with_writer(move || LogWriter::new(json));
    if json {
        lines.json().flatten_event(true).boxed()
    } else {
        lines.with_ansi(stderr().is_terminal()).boxed()
    }
}

// Connects the bus to the traces and metrics of this process.

/// The telemetry hook that `Telemetry::start` installs in the bus.
struct BusTelemetry;

impl TelemetryHook for BusTelemetry {
    fn traceparent(&self) -> Option<String> {
        traceparent()
    }

    /// Returns the span of a command as a child of the caller's span. Without a trace, the span
    /// appears only in logs, because the frequent commands of observing clients would fill the
    /// collector.
    fn command_span(&self, subject: &str, traceparent: Option<&str>) -> Span {
        match traceparent {
            Some(parent) => {
                let span = tracing::info_span!("command", subject);
                set_parent(&span, parent);
                span
            }
            None => tracing::info_span!(target: UNTRACED, "command", subject),
        }
    }

    fn published(&self, waited: Duration) {
        meters().published(waited);
    }
}

// The id of the first node in this process. Traces and metrics contain the id from the start, so
// the id is created before the node.

static ID: LazyLock<NodeId> = LazyLock::new(NodeId::mint);
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Returns the id that traces and metrics of this process contain.
fn first_node_id() -> &'static NodeId {
    &ID
}

/// Returns the id for a new node. The first node in a process gets the id of the process's
/// telemetry, and every other node a new id.
pub fn take_node_id() -> NodeId {
    if TAKEN.swap(true, Ordering::Relaxed) {
        NodeId::mint()
    } else {
        ID.clone()
    }
}

#[cfg(test)]
mod tests;
