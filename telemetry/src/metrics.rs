//! The metrics of a node. The same instruments serve both the collector and `/metrics`.

mod families;
mod meters;
mod text;

use std::{
    fmt,
    sync::{Arc, LazyLock, OnceLock},
    time::Duration,
};

use opentelemetry::metrics::MeterProvider;
use opentelemetry_otlp::MetricExporter;
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    metrics::{
        InstrumentKind, ManualReader, PeriodicReader, Pipeline, SdkMeterProvider, Temporality,
        data::ResourceMetrics, exporter::PushMetricExporter, reader::MetricReader,
    },
};
use tokio::runtime::Handle;
use tokio_util::context::TokioContext;

use crate::vitals;

pub use self::meters::{Meters, ModelCall, RequestMeter};

static METERS: OnceLock<Meters> = OnceLock::new();
/// Instruments whose values are discarded.
static UNREAD: LazyLock<Meters> = LazyLock::new(|| {
    Meters::new(
        &SdkMeterProvider::builder().build().meter("planck"),
        vitals::gauges,
    )
});

/// Returns the instruments of this process. Until [`Metrics::install`] is called, their values are
/// discarded.
pub fn meters() -> &'static Meters {
    METERS.get().unwrap_or_else(|| &UNREAD)
}

/// The metrics of a process, for the collector and for `/metrics`.
pub struct Metrics {
    provider: SdkMeterProvider,
    scraped: Scraped,
    added: OnceLock<Box<dyn Fn() -> String + Send + Sync>>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Creates the metrics. If `push` is given, the metrics are also sent to a collector at
    /// intervals.
    pub fn new(resource: Resource, push: Option<Push>) -> Self {
        let scraped = Scraped::default();
        let builder = SdkMeterProvider::builder()
            .with_resource(resource)
            .with_reader(scraped.clone());
        let builder = match push {
            Some(push) => builder.with_reader(push.reader()),
            None => builder,
        };
        Self {
            provider: builder.build(),
            scraped,
            added: OnceLock::new(),
        }
    }

    /// Adds families that another part of the process counts, in the text format of Prometheus. Only
    /// the first call has an effect.
    pub fn add(&self, text: impl Fn() -> String + Send + Sync + 'static) {
        let _is_first = self.added.set(Box::new(text));
    }

    /// Makes these metrics the ones that the process records. Only the first call in a process has
    /// an effect.
    pub fn install(&self) {
        let _counts_elsewhere = METERS.set(self.meters());
    }

    fn meters(&self) -> Meters {
        Meters::new(&self.provider.meter("planck"), vitals::gauges)
    }

    /// Returns all families in the text format of Prometheus.
    pub fn text(&self) -> String {
        let mut found = ResourceMetrics::default();
        if let Err(error) = self.scraped.collect(&mut found) {
            tracing::debug!(%error, "the metrics cannot be read");
        }
        let added = self.added.get().map(|text| text());
        text::write(&found) + &added.unwrap_or_default()
    }

    /// Sends the remaining data to the collector. Blocks until the data is sent or `deadline` has
    /// passed.
    pub fn shutdown(&self, deadline: Duration) -> OTelSdkResult {
        self.provider.shutdown_with_timeout(deadline)
    }
}

/// A reader that collects the metrics when `/metrics` is requested. The provider holds a clone of
/// the reader.
#[derive(Debug, Clone, Default)]
struct Scraped(Arc<ManualReader>);

impl MetricReader for Scraped {
    fn register_pipeline(&self, pipeline: std::sync::Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, found: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(found)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}

// Sends the metrics to a collector by OTLP over HTTP: every minute, or at the interval that
// `OTEL_METRIC_EXPORT_INTERVAL` sets, and once more when telemetry is shut down.

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

    fn reader(self) -> PeriodicReader<Self> {
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

#[cfg(test)]
mod tests;
