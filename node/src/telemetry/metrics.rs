//! Numbers of what a node does. One set of instruments feeds both the collector and `/metrics`.

mod families;
mod meters;
mod names;
mod push;
mod text;
mod watch;

use std::{
    sync::{Arc, LazyLock, OnceLock},
    time::Duration,
};

use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    metrics::{
        InstrumentKind, ManualReader, Pipeline, SdkMeterProvider, Temporality,
        data::ResourceMetrics, reader::MetricReader,
    },
};

use super::vitals;

pub use meters::{Meters, ModelCall};
pub use push::Push;
pub use watch::Watch;

static METERS: OnceLock<Meters> = OnceLock::new();
/// Without a reader its instruments do nothing.
static UNREAD: LazyLock<Meters> = LazyLock::new(|| {
    Meters::new(
        &SdkMeterProvider::builder().build().meter("planck"),
        vitals::gauges,
    )
});

/// The instruments of this process; they do nothing until somebody reads them.
pub fn meters() -> &'static Meters {
    METERS.get().unwrap_or_else(|| &UNREAD)
}

/// The numbers of a process as its readers get them.
#[derive(Debug)]
pub struct Metrics {
    provider: SdkMeterProvider,
    scraped: Scraped,
}

impl Metrics {
    /// `push` is sent them now and then as well.
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
        }
    }

    /// Has the process count here from now on. The first in a process wins.
    pub fn install(&self) {
        let _counts_elsewhere = METERS.set(self.meters());
    }

    fn meters(&self) -> Meters {
        Meters::new(&self.provider.meter("planck"), vitals::gauges)
    }

    /// Every family in the text format of Prometheus.
    pub fn text(&self) -> String {
        let mut found = ResourceMetrics::default();
        if let Err(error) = self.scraped.collect(&mut found) {
            tracing::debug!(%error, "the metrics cannot be read");
        }
        text::write(&found)
    }

    /// Sends what is left. It waits for a thread of its own.
    pub fn shutdown(&self, deadline: Duration) -> OTelSdkResult {
        self.provider.shutdown_with_timeout(deadline)
    }
}

/// A reader that is asked, and shared with its provider.
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

#[cfg(test)]
mod tests;
