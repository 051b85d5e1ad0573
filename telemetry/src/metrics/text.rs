//! Converts metrics to the text format of Prometheus, version 0.0.4.

use std::{collections::HashMap, fmt::Write};

use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, HistogramDataPoint, Metric, MetricData, ResourceMetrics,
};

use super::families::{FAMILIES, Labels, MetricFamily, MetricKind, SECONDS};

/// Returns the text of all families in a fixed order, including those without a value.
pub fn write(found: &ResourceMetrics) -> String {
    let metrics = found.scope_metrics().flat_map(|scope| scope.metrics());
    let metrics: HashMap<&str, &Metric> = metrics.map(|metric| (metric.name(), metric)).collect();
    let mut text = String::with_capacity(16 << 10);
    for family in FAMILIES {
        let MetricFamily {
            name,
            kind,
            help,
            labels,
        } = family;
        let _ = write!(
            text,
            "# HELP {name} {}\n# TYPE {name} {}\n",
            escaped(help),
            kind.name()
        );
        let mut lines = metrics
            .get(name)
            .map(|metric| lines(name, metric.data()))
            .unwrap_or_default();
        if lines.is_empty() {
            lines = nothing(name, *kind, labels);
        }
        lines.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        lines.iter().for_each(|(_, lines)| text.push_str(lines));
    }
    text
}

/// A series: the key by which it is sorted, and its lines.
type Series = (String, String);

fn lines(name: &str, data: &AggregatedMetrics) -> Vec<Series> {
    match data {
        AggregatedMetrics::F64(data) => of_data(name, data),
        AggregatedMetrics::U64(data) => of_data(name, data),
        AggregatedMetrics::I64(data) => of_data(name, data),
    }
}

fn of_data<T: Copy + std::fmt::Display>(name: &str, data: &MetricData<T>) -> Vec<Series> {
    match data {
        MetricData::Gauge(gauge) => gauge
            .data_points()
            .map(|point| sample(name, point.attributes(), point.value()))
            .collect(),
        MetricData::Sum(sum) => sum
            .data_points()
            .map(|point| sample(name, point.attributes(), point.value()))
            .collect(),
        MetricData::Histogram(histogram) => histogram
            .data_points()
            .map(|point| buckets(name, point))
            .collect(),
        MetricData::ExponentialHistogram(_) => Vec::new(),
    }
}

fn sample<'a>(
    name: &str,
    labels: impl Iterator<Item = &'a KeyValue>,
    value: impl std::fmt::Display,
) -> Series {
    let labels = written(labels);
    let line = format!("{name}{} {value}\n", braced(&labels));
    (labels, line)
}

fn buckets<T: Copy + std::fmt::Display>(name: &str, point: &HistogramDataPoint<T>) -> Series {
    let labels = written(point.attributes());
    let bounds: Vec<f64> = point.bounds().collect();
    let counts: Vec<u64> = point.bucket_counts().collect();
    let lines = histogram(name, &labels, &bounds, &counts, point.sum());
    (labels, lines)
}

fn histogram(
    name: &str,
    labels: &str,
    bounds: &[f64],
    counts: &[u64],
    sum: impl std::fmt::Display,
) -> String {
    let mut lines = String::new();
    let before = if labels.is_empty() {
        String::new()
    } else {
        format!("{labels},")
    };
    let ends = bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    let mut total = 0;
    for (end, count) in ends.zip(counts) {
        total += count;
        let _ = writeln!(lines, "{name}_bucket{{{before}le=\"{end}\"}} {total}");
    }
    let of = braced(labels);
    let _ = write!(lines, "{name}_sum{of} {sum}\n{name}_count{of} {total}\n");
    lines
}

/// Returns the series, all with the value 0, of a family for which nothing has been recorded yet. A
/// family with arbitrary label values has none.
fn nothing(name: &str, kind: MetricKind, labels: &Labels) -> Vec<Series> {
    match (kind, labels) {
        (_, Labels::Open) => Vec::new(),
        (MetricKind::Histogram, _) => vec![(
            String::new(),
            histogram(name, "", &SECONDS, &[0; SECONDS.len() + 1], 0),
        )],
        (MetricKind::Counter | MetricKind::Gauge, Labels::None) => vec![sample(name, [].iter(), 0)],
        (MetricKind::Counter | MetricKind::Gauge, Labels::Known(label, values)) => values
            .iter()
            .map(|value| sample(name, [KeyValue::new(*label, *value)].iter(), 0))
            .collect(),
    }
}

fn written<'a>(labels: impl Iterator<Item = &'a KeyValue>) -> String {
    let mut pairs: Vec<_> = labels
        .map(|label| format!("{}=\"{}\"", label.key, quoted(&label.value.as_str())))
        .collect();
    pairs.sort_unstable();
    pairs.join(",")
}

fn braced(labels: &str) -> String {
    if labels.is_empty() {
        String::new()
    } else {
        format!("{{{labels}}}")
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

fn quoted(text: &str) -> String {
    escaped(text).replace('"', "\\\"")
}
