//! Sends spans to a collector by OTLP over HTTP.

use std::{sync::Arc, time::Duration};

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use tokio::runtime::Handle;
use tracing::{Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use super::{TelemetryError, collector::Collector, propagation};

/// The prefix of the targets of Planck's own spans. The spans of libraries are not sent. They do not
/// help users, and may contain data that must not leave the process.
const OURS: &str = "planck";

#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    pub fn start(collector: Collector<'_>, resource: Resource) -> Result<Self, TelemetryError> {
        let runtime = Handle::try_current().map_err(|error| collector.unfit(&error))?;
        let exporter = OnRuntime {
            exporter: Arc::new(collector.spans()?),
            runtime,
        };
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_batch_exporter(exporter)
            .build();
        Ok(Self { provider })
    }

    pub fn layer<S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync>(
        &self,
    ) -> impl Layer<S> + Send + Sync + use<S> {
        let ours = Targets::new().with_target(OURS, Level::INFO);
        let ours = ours.with_target(propagation::UNTRACED, LevelFilter::OFF);
        let layer = tracing_opentelemetry::layer().with_tracer(self.provider.tracer("planck"));
        // The code location, the thread and the busy time do not help a user who examines the work
        // of an agent.
        let layer = layer
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_target(false);
        layer.with_filter(ours)
    }

    /// Sends the remaining spans and shuts the provider down. The provider blocks until its own
    /// thread has ended, so its shutdown runs on a thread that may block.
    pub async fn shutdown(self, deadline: Duration) {
        let shutdown =
            tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(deadline));
        match tokio::time::timeout(deadline, shutdown).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "the last traces were not sent"),
            Ok(Err(_)) | Err(_) => tracing::warn!("the last traces were not sent in time"),
        }
    }
}

/// An exporter that runs in a Tokio runtime. The HTTP client needs a runtime, but the provider
/// exports from a thread that has none.
#[derive(Debug)]
struct OnRuntime {
    exporter: Arc<opentelemetry_otlp::SpanExporter>,
    runtime: Handle,
}

impl SpanExporter for OnRuntime {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exporter = self.exporter.clone();
        let sent = self
            .runtime
            .spawn(async move { exporter.export(batch).await })
            .await;
        sent.unwrap_or_else(|error| Err(OTelSdkError::InternalFailure(error.to_string())))
    }

    fn set_resource(&mut self, resource: &Resource) {
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}
