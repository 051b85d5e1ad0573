//! Sends spans to a collector by OTLP over HTTP, and continues a trace across requests.

use std::{collections::HashMap, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use opentelemetry::{
    KeyValue,
    propagation::TextMapPropagator,
    trace::{TraceContextExt, TracerProvider},
};
use opentelemetry_otlp::{MetricExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    propagation::TraceContextPropagator,
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use percent_encoding::percent_decode_str;
use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderValue},
};
use tokio::runtime::Handle;
use tracing::{Level, Span, Subscriber, level_filters::LevelFilter};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use planck_bus::telemetry::TRACEPARENT;

use crate::TelemetryError;

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
        let ours = ours.with_target(UNTRACED, LevelFilter::OFF);
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

// Continues a trace across a request. The sender writes the current span to the header
// `traceparent`, and the receiver makes that span the parent of its own span.

/// The target of spans that appear in logs but are not sent to the collector.
pub const UNTRACED: &str = "planck_telemetry::untraced";

/// Returns the value of the header `traceparent` for the current span, or `None` if there is no
/// trace.
pub fn traceparent() -> Option<String> {
    let span = Span::current();
    if span.is_none() {
        return None;
    }
    let context = span.context();
    if !context.span().span_context().is_valid() {
        return None;
    }
    let mut headers = HashMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut headers);
    headers.remove(TRACEPARENT)
}

/// Makes `span` a child of the caller's span. `span` must not have been entered yet.
pub fn set_parent(span: &Span, traceparent: &str) {
    let headers = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
    let _not_traced = span.set_parent(TraceContextPropagator::new().extract(&headers));
}

// The connection to a collector over OTLP and HTTP, and the resource that identifies the sender of
// the data.

pub const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The base address of a collector.
#[derive(Debug, Clone, Copy)]
pub struct Collector<'a>(pub &'a str);

impl Collector<'_> {
    pub fn spans(self) -> Result<opentelemetry_otlp::SpanExporter, TelemetryError> {
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(self.client()?);
        let exporter = exporter
            .with_endpoint(self.address("traces"))
            .with_timeout(SEND_TIMEOUT)
            .build();
        exporter.map_err(|error| self.unfit(&error))
    }

    pub fn metrics(self) -> Result<MetricExporter, TelemetryError> {
        let exporter = MetricExporter::builder()
            .with_http()
            .with_http_client(self.client()?);
        let exporter = exporter
            .with_endpoint(self.address("metrics"))
            .with_timeout(SEND_TIMEOUT)
            .build();
        exporter.map_err(|error| self.unfit(&error))
    }

    fn client(self) -> Result<reqwest::Client, TelemetryError> {
        let _installed_before = rustls::crypto::ring::default_provider().install_default();
        let (_, login) = self.divided();
        let headers = login.map(|login| (AUTHORIZATION, login));
        reqwest::Client::builder()
            .timeout(SEND_TIMEOUT)
            .default_headers(headers.into_iter().collect())
            .build()
            .map_err(|error| self.unfit(&error))
    }

    fn address(self, signal: &str) -> String {
        let (base, _) = self.divided();
        format!("{}/v1/{signal}", base.trim_end_matches('/'))
    }

    /// Returns the address without a user and a password, and the header that carries them. HTTP
    /// libraries write addresses into their logs.
    fn divided(self) -> (String, Option<HeaderValue>) {
        let Ok(mut url) = Url::parse(self.0) else {
            let shown = self.0.rsplit('@').next().unwrap_or_default();
            return (shown.into(), None);
        };
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let user = decoded(url.username());
        let password = url.password().map(decoded);
        let is_cut = url.set_username("").and_then(|()| url.set_password(None));
        if is_cut.is_err() || (user.is_empty() && password.is_none()) {
            return (self.0.into(), None);
        }
        let login = STANDARD.encode(format!("{user}:{}", password.unwrap_or_default()));
        let header = HeaderValue::try_from(format!("Basic {login}")).ok();
        let header = header.map(|mut header| {
            header.set_sensitive(true);
            header
        });
        (url.into(), header)
    }

    pub fn unfit(self, reason: &dyn std::fmt::Display) -> TelemetryError {
        TelemetryError::Collector {
            endpoint: self.divided().0,
            reason: reason.to_string(),
        }
    }
}

/// Returns the resource that identifies the sender: the service, its version, the node and its
/// host.
pub fn resource(service: &str, instance: &str, host: &str) -> Resource {
    Resource::builder()
        .with_service_name(service.to_owned())
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance.to_owned()),
            KeyValue::new("host.name", host.to_owned()),
        ])
        .build()
}
