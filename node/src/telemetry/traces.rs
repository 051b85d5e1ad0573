//! Sends spans to a collector by OTLP over HTTP.

use std::{sync::Arc, time::Duration};

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use tokio::runtime::Handle;
use tracing::{Level, Subscriber};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use super::TelemetryError;

const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Our own spans; a library's are noise, and may hold what must not leave.
const TARGETS: [&str; 2] = ["planck_node", "planck"];

#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    pub fn start(endpoint: &str, service: &str) -> Result<Self, TelemetryError> {
        let exporter = exporter(endpoint)
            .map_err(|reason| TelemetryError::Collector { endpoint: endpoint.to_owned(), reason: reason.to_string() })?;
        let resource = Resource::builder().with_service_name(service.to_owned()).build();
        let provider = SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build();
        Ok(Self { provider })
    }

    pub fn layer<S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync>(&self) -> impl Layer<S> + Send + Sync + use<S> {
        let ours = Targets::new().with_targets(TARGETS.map(|target| (target, Level::INFO)));
        tracing_opentelemetry::layer().with_tracer(self.provider.tracer("planck")).with_filter(ours)
    }

    /// The provider waits for its own thread, so it is shut down on one that may block.
    pub async fn shutdown(self, deadline: Duration) {
        let shutdown = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(deadline));
        match tokio::time::timeout(deadline, shutdown).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "the last traces were not sent"),
            Ok(Err(_)) | Err(_) => tracing::warn!("the last traces were not sent in time"),
        }
    }
}

fn exporter(endpoint: &str) -> anyhow::Result<OnRuntime> {
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(reqwest::Client::builder().timeout(SEND_TIMEOUT).build()?)
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .with_timeout(SEND_TIMEOUT)
        .build()?;
    Ok(OnRuntime { exporter: Arc::new(exporter), runtime: Handle::try_current()? })
}

/// The provider exports from a thread of its own, where there is no runtime for the HTTP client.
#[derive(Debug)]
struct OnRuntime {
    exporter: Arc<opentelemetry_otlp::SpanExporter>,
    runtime: Handle,
}

impl SpanExporter for OnRuntime {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exporter = self.exporter.clone();
        let sent = self.runtime.spawn(async move { exporter.export(batch).await }).await;
        sent.unwrap_or_else(|error| Err(OTelSdkError::InternalFailure(error.to_string())))
    }

    fn set_resource(&mut self, resource: &Resource) {
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}
