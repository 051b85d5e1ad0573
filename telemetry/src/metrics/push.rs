//! Sends the metrics to a collector by OTLP over HTTP: every minute, or at the interval that
//! `OTEL_METRIC_EXPORT_INTERVAL` sets, and once more when telemetry is shut down.

use std::time::Duration;

use opentelemetry_otlp::MetricExporter;
use opentelemetry_sdk::{
    error::OTelSdkResult,
    metrics::{PeriodicReader, Temporality, data::ResourceMetrics, exporter::PushMetricExporter},
};
use tokio::runtime::Handle;
use tokio_util::context::TokioContext;

/// An exporter that runs in a Tokio runtime. The HTTP client needs a runtime, but the provider
/// exports from a thread that has none.
#[derive(Debug)]
pub struct Push {
    exporter: MetricExporter,
    runtime: Handle,
}

impl Push {
    pub fn new(exporter: MetricExporter, runtime: Handle) -> Self {
        Self { exporter, runtime }
    }

    pub(super) fn reader(self) -> PeriodicReader<Self> {
        PeriodicReader::builder(self).build()
    }
}

impl PushMetricExporter for Push {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        TokioContext::new(self.exporter.export(metrics), self.runtime.clone()).await
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}
