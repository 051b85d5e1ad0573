//! The connection to a collector over OTLP and HTTP, and the resource that identifies the sender of
//! the data.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use opentelemetry::KeyValue;
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use percent_encoding::percent_decode_str;
use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderValue},
};

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
