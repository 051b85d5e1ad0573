//! The connection to a collector over OTLP and HTTP, and the resource that identifies the sender of
//! the data.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;

use super::TelemetryError;

pub const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The base address of a collector.
#[derive(Debug, Clone, Copy)]
pub struct Collector<'a>(pub &'a str);

impl Collector<'_> {
    pub fn spans(self) -> Result<SpanExporter, TelemetryError> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(self.client()?);
        let exporter = exporter
            .with_endpoint(self.path("traces"))
            .with_timeout(SEND_TIMEOUT)
            .build();
        exporter.map_err(|error| self.unfit(&error))
    }

    pub fn metrics(self) -> Result<MetricExporter, TelemetryError> {
        let exporter = MetricExporter::builder()
            .with_http()
            .with_http_client(self.client()?);
        let exporter = exporter
            .with_endpoint(self.path("metrics"))
            .with_timeout(SEND_TIMEOUT)
            .build();
        exporter.map_err(|error| self.unfit(&error))
    }

    fn client(self) -> Result<reqwest::Client, TelemetryError> {
        let _installed_before = rustls::crypto::ring::default_provider().install_default();
        reqwest::Client::builder()
            .timeout(SEND_TIMEOUT)
            .build()
            .map_err(|error| self.unfit(&error))
    }

    fn path(self, signal: &str) -> String {
        format!("{}/v1/{signal}", self.0.trim_end_matches('/'))
    }

    pub fn unfit(self, reason: &dyn std::fmt::Display) -> TelemetryError {
        TelemetryError::Collector {
            endpoint: self.0.to_owned(),
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
