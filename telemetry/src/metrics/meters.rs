//! The instruments of a process, and the functions that record into them.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use opentelemetry::{
    KeyValue, StringValue,
    metrics::{Counter, Histogram, Meter},
};

use planck_agent::model::{Failure, Finish};
use planck_common::usage::Usage;

use super::{
    super::{genai, vitals::Gauges},
    families::{self, Labels, MetricFamily},
    meters,
};

/// The upper bounds of histogram buckets, in seconds, that the OpenTelemetry conventions for
/// generative AI define for the duration of an operation.
const OPERATION_SECONDS: [f64; 14] = [
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];
const TOKEN_COUNTS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// The instruments. Counters and histograms record events when they happen. Gauges are read when
/// the metrics are collected.
#[derive(Debug)]
pub struct Meters {
    turns: TurnMeters,
    models: Models,
    tools: ToolMeters,
    sidecars: SidecarMeters,
    cluster: Cluster,
    save_duration: Histogram<f64>,
    publish_lag: Histogram<f64>,
}

#[derive(Debug)]
struct TurnMeters {
    ended: Counter<u64>,
    duration: Histogram<f64>,
}

#[derive(Debug)]
struct Models {
    requests: Counter<u64>,
    duration: Histogram<f64>,
    to_first_token: Histogram<f64>,
    tokens: Counter<u64>,
    cost: Counter<f64>,
    retries: Counter<u64>,
    /// The duration of model calls, as the OpenTelemetry conventions for generative AI define it.
    operations: Histogram<f64>,
    usage: Histogram<u64>,
    providers: LabelValues,
    names: LabelValues,
}

#[derive(Debug)]
struct ToolMeters {
    calls: Counter<u64>,
    duration: Histogram<f64>,
    names: LabelValues,
}

#[derive(Debug)]
struct SidecarMeters {
    calls: Counter<u64>,
    duration: Histogram<f64>,
    names: LabelValues,
}

#[derive(Debug)]
struct Cluster {
    verdicts: Counter<u64>,
    failovers: Counter<u64>,
    fenced: Counter<u64>,
}

/// A finished request to a model.
#[derive(Debug, Clone, Copy)]
pub struct ModelCall<'a> {
    pub provider: &'a str,
    pub model: &'a str,
    /// The kind of the error, or `None` if the request succeeded.
    pub error: Option<&'static str>,
    pub took: Duration,
    pub first_token: Option<Duration>,
    /// The tokens and the cost of the request, or `None` if it failed.
    pub usage: Option<&'a Usage>,
}

impl Meters {
    /// Creates the instruments. `gauges` returns the current values of the gauges.
    pub(super) fn new(meter: &Meter, gauges: fn() -> Gauges) -> Self {
        observe(meter, gauges);
        let seconds =
            |family: &MetricFamily| seconds(meter, family.name, family.help, &families::SECONDS);
        Self {
            turns: TurnMeters {
                ended: counter(meter, &families::TURNS),
                duration: seconds(&families::TURN_DURATION),
            },
            models: Models {
                requests: counter(meter, &families::MODEL_REQUESTS),
                duration: seconds(&families::MODEL_REQUEST_DURATION),
                to_first_token: seconds(&families::TIME_TO_FIRST_TOKEN),
                tokens: counter(meter, &families::TOKENS),
                cost: meter
                    .f64_counter(families::COST.name)
                    .with_description(families::COST.help)
                    .build(),
                retries: counter(meter, &families::MODEL_RETRIES),
                operations: self::seconds(
                    meter,
                    genai::OPERATION_DURATION,
                    "Duration of an operation",
                    &OPERATION_SECONDS,
                ),
                usage: meter
                    .u64_histogram(genai::TOKEN_USAGE)
                    .with_unit("{token}")
                    .with_description("Number of tokens used")
                    .with_boundaries(TOKEN_COUNTS.into())
                    .build(),
                providers: LabelValues::default(),
                names: LabelValues::default(),
            },
            tools: ToolMeters {
                calls: counter(meter, &families::TOOL_CALLS),
                duration: seconds(&families::TOOL_DURATION),
                names: LabelValues::default(),
            },
            sidecars: SidecarMeters {
                calls: counter(meter, &families::SIDECAR_CALLS),
                duration: seconds(&families::SIDECAR_CALL_DURATION),
                names: LabelValues::default(),
            },
            cluster: Cluster {
                verdicts: counter(meter, &families::VERDICTS),
                failovers: counter(meter, &families::FAILOVERS),
                fenced: counter(meter, &families::FENCED_WRITES),
            },
            save_duration: seconds(&families::SAVE_DURATION),
            publish_lag: seconds(&families::PUBLISH_LAG),
        }
    }

    pub fn turn_ended(&self, outcome: &'static str, took: Duration) {
        self.turns
            .ended
            .add(1, &[KeyValue::new("outcome", outcome)]);
        self.turns.duration.record(took.as_secs_f64(), &[]);
    }

    pub fn model_called(&self, call: ModelCall<'_>) {
        let models = &self.models;
        let (provider, model) = (
            models.providers.of(call.provider),
            models.names.of(call.model),
        );
        let outcome = KeyValue::new("outcome", call.error.unwrap_or("ok"));
        let of_model = [
            KeyValue::new("provider", provider.clone()),
            KeyValue::new("model", model.clone()),
        ];
        let [of_provider, of_name] = of_model.clone();
        models
            .requests
            .add(1, &[of_provider.clone(), of_name.clone(), outcome]);
        models.duration.record(call.took.as_secs_f64(), &[]);
        if let Some(first) = call.first_token {
            models.to_first_token.record(first.as_secs_f64(), &[]);
        }
        let by_convention = [
            KeyValue::new(genai::OPERATION_NAME, "chat"),
            KeyValue::new(genai::PROVIDER_NAME, provider),
            KeyValue::new(genai::REQUEST_MODEL, model),
        ];
        let error = call
            .error
            .map(|error| KeyValue::new(genai::ERROR_TYPE, error));
        let with_error: Vec<_> = by_convention.iter().cloned().chain(error).collect();
        models
            .operations
            .record(call.took.as_secs_f64(), &with_error);
        let Some(usage) = call.usage else { return };
        for (kind, tokens) in kinds(usage) {
            models.tokens.add(
                tokens,
                &[
                    of_provider.clone(),
                    of_name.clone(),
                    KeyValue::new("kind", kind),
                ],
            );
        }
        models.cost.add(usage.cost_usd.max(0.0), &of_model);
        for (kind, tokens) in [
            ("input", usage.context_tokens()),
            ("output", usage.output_tokens),
        ] {
            let kind = KeyValue::new(genai::TOKEN_TYPE, kind);
            let attributes: Vec<_> = by_convention.iter().cloned().chain([kind]).collect();
            models.usage.record(tokens, &attributes);
        }
    }

    pub fn model_retried(&self) {
        self.models.retries.add(1, &[]);
    }

    /// Records a tool call. `tool` is `None` if the agent has no tool with the requested name,
    /// because a model may request arbitrary names.
    pub fn tool_called(&self, tool: Option<&str>, is_error: bool, took: Duration) {
        let name = self.tools.names.of(tool.unwrap_or("unknown"));
        self.tools
            .calls
            .add(1, &[KeyValue::new("tool", name), outcome(is_error)]);
        self.tools.duration.record(took.as_secs_f64(), &[]);
    }

    pub fn sidecar_called(&self, sidecar: &str, is_error: bool, took: Duration) {
        let name = self.sidecars.names.of(sidecar);
        self.sidecars
            .calls
            .add(1, &[KeyValue::new("sidecar", name), outcome(is_error)]);
        self.sidecars.duration.record(took.as_secs_f64(), &[]);
    }

    pub fn saved(&self, took: Duration) {
        self.save_duration.record(took.as_secs_f64(), &[]);
    }

    pub fn published(&self, lag: Duration) {
        self.publish_lag.record(lag.as_secs_f64(), &[]);
    }

    pub fn judged(&self) {
        self.cluster.verdicts.add(1, &[]);
    }

    pub fn taken_over(&self) {
        self.cluster.failovers.add(1, &[]);
    }

    pub fn write_was_fenced(&self) {
        self.cluster.fenced.add(1, &[]);
    }
}

fn outcome(is_error: bool) -> KeyValue {
    KeyValue::new("outcome", if is_error { "error" } else { "ok" })
}

fn kinds(usage: &Usage) -> [(&'static str, u64); 4] {
    [
        ("input", usage.input_tokens),
        ("output", usage.output_tokens),
        ("cache_read", usage.cache_read_tokens),
        ("cache_write", usage.cache_write_tokens),
    ]
}

/// Creates a counter. The series of labels with known values start at zero.
fn counter(meter: &Meter, family: &MetricFamily) -> Counter<u64> {
    let counter = meter
        .u64_counter(family.name)
        .with_description(family.help)
        .build();
    match family.labels {
        Labels::None => counter.add(0, &[]),
        Labels::Known(label, values) => values
            .iter()
            .for_each(|value| counter.add(0, &[KeyValue::new(label, *value)])),
        Labels::Open => {}
    }
    counter
}

fn seconds(
    meter: &Meter,
    name: &'static str,
    about: &'static str,
    bounds: &[f64],
) -> Histogram<f64> {
    meter
        .f64_histogram(name)
        .with_unit("s")
        .with_description(about)
        .with_boundaries(bounds.into())
        .build()
}

/// Registers the gauges, whose values are read with `gauges` at each collection.
fn observe(meter: &Meter, gauges: fn() -> Gauges) {
    let gauge = |family: &'static MetricFamily, read: fn(&Gauges) -> Vec<u64>| {
        let builder = meter
            .u64_observable_gauge(family.name)
            .with_description(family.help);
        let _kept_by_the_provider = builder
            .with_callback(move |observer| {
                let values = read(&gauges());
                match family.labels {
                    Labels::Known(label, names) => {
                        names.iter().zip(values).for_each(|(name, value)| {
                            observer.observe(value, &[KeyValue::new(label, *name)])
                        })
                    }
                    Labels::None | Labels::Open => values
                        .into_iter()
                        .for_each(|value| observer.observe(value, &[])),
                }
            })
            .build();
    };
    gauge(&families::SESSIONS, |gauges| gauges.sessions.to_vec());
    gauge(&families::AGENTS, |gauges| gauges.agents.to_vec());
    gauge(&families::INBOX_DEPTH, |gauges| vec![gauges.inbox]);
    let age = &families::HEARTBEAT_AGE;
    let _kept_by_the_provider = meter
        .f64_observable_gauge(age.name)
        .with_unit("s")
        .with_description(age.help)
        .with_callback(move |observer| observer.observe(gauges().heartbeat_age.as_secs_f64(), &[]))
        .build();
}

// Labels with values from users or providers. A limited number of values get their own series, and
// all others share one.

/// The maximum number of values of one label that get their own series.
const MOST: usize = 100;

/// The maximum length in bytes of a value that gets its own series.
const LONGEST: usize = 128;

/// The label value of the series that all other values share.
const OTHER: &str = "other";

/// The values of one label that have their own series.
#[derive(Debug, Default)]
pub struct LabelValues(Mutex<HashSet<Arc<str>>>);

impl LabelValues {
    /// Returns the label value for a name: the name itself, or [`OTHER`] if the name is too long or
    /// [`MOST`] other names already have their own series.
    pub fn of(&self, name: &str) -> StringValue {
        if name.len() > LONGEST {
            return OTHER.into();
        }
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seen.get(name) {
            return Arc::clone(known).into();
        }
        if seen.len() >= MOST {
            return OTHER.into();
        }
        let new: Arc<str> = name.into();
        seen.insert(Arc::clone(&new));
        new.into()
    }
}

// Measures the duration and the outcome of one request to a model.

/// A running request. Dropping it before [`Self::end`] records a cancellation.
#[derive(Debug)]
pub struct RequestMeter {
    provider: Arc<str>,
    model: String,
    since: Instant,
    first_token: Option<Duration>,
    ended: bool,
}

impl RequestMeter {
    pub fn begin(provider: Arc<str>, model: String) -> Self {
        Self {
            provider,
            model,
            since: Instant::now(),
            first_token: None,
            ended: false,
        }
    }

    /// Records that a piece of the reply has arrived. The first piece determines the time to the
    /// first token.
    pub fn piece(&mut self) {
        if self.first_token.is_none() {
            self.first_token = Some(self.since.elapsed());
        }
    }

    pub fn end(&mut self, result: Result<&Finish, &Failure>) {
        self.ended = true;
        match result {
            Ok(finish) => meters().model_called(ModelCall {
                usage: Some(&finish.usage),
                ..self.call(None)
            }),
            Err(failure) => meters().model_called(self.call(Some(failure.kind.name()))),
        }
    }

    fn call(&self, error: Option<&'static str>) -> ModelCall<'_> {
        let Self {
            provider,
            model,
            since,
            first_token,
            ..
        } = self;
        ModelCall {
            provider,
            model,
            error,
            took: since.elapsed(),
            first_token: *first_token,
            usage: None,
        }
    }
}

impl Drop for RequestMeter {
    fn drop(&mut self) {
        if !self.ended {
            meters().model_called(self.call(Some("cancelled")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_the_limit_share_one() {
        let names = LabelValues::default();
        for number in 0..MOST {
            assert_eq!(names.of(&number.to_string()).as_str(), number.to_string());
        }
        assert_eq!(names.of("one more").as_str(), OTHER);
        assert_eq!(names.of("7").as_str(), "7");
        assert_eq!(
            LabelValues::default().of(&"x".repeat(LONGEST + 1)).as_str(),
            OTHER
        );
    }
}
