//! All metric families of `/metrics`: their names, their descriptions, and the series that exist
//! from the start.

/// A metric family, which consists of all series with the same name.
#[derive(Debug)]
pub struct MetricFamily {
    pub name: &'static str,
    pub kind: MetricKind,
    pub help: &'static str,
    pub labels: Labels,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

impl MetricKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The labels that distinguish the series of a family.
#[derive(Debug)]
pub enum Labels {
    None,
    /// A label with a fixed set of values. All of its series exist from the start.
    Known(&'static str, &'static [&'static str]),
    /// One or more labels with arbitrary values. A series is created when its first value is
    /// recorded.
    Open,
}

/// The upper bounds of the histogram buckets in seconds. They range from the duration of a save to
/// a local file up to that of a turn of an hour.
pub const SECONDS: [f64; 14] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 3600.0,
];

pub const OUTCOMES_OF_TURNS: &[&str] = &["completed", "aborted", "truncated", "limit", "error"];
pub const STATES_OF_AGENTS: &[&str] = &["running", "idle", "parked"];
pub const STATES_OF_SESSIONS: &[&str] = &["active", "idle"];

const fn family(
    name: &'static str,
    kind: MetricKind,
    labels: Labels,
    help: &'static str,
) -> MetricFamily {
    MetricFamily {
        name,
        kind,
        help,
        labels,
    }
}

pub const SESSIONS: MetricFamily = family(
    "planck_sessions",
    MetricKind::Gauge,
    Labels::Known("state", STATES_OF_SESSIONS),
    "Sessions with an agent on this node.",
);
pub const AGENTS: MetricFamily = family(
    "planck_agents",
    MetricKind::Gauge,
    Labels::Known("state", STATES_OF_AGENTS),
    "Agents whose lease this node holds.",
);
pub const TURNS: MetricFamily = family(
    "planck_turns_total",
    MetricKind::Counter,
    Labels::Known("outcome", OUTCOMES_OF_TURNS),
    "Turns that ended on this node.",
);
pub const TURN_DURATION: MetricFamily = family(
    "planck_turn_duration_seconds",
    MetricKind::Histogram,
    Labels::None,
    "From the opening of a turn to its end.",
);
pub const MODEL_REQUESTS: MetricFamily = family(
    "planck_model_requests_total",
    MetricKind::Counter,
    Labels::Open,
    "Requests to models, counting each attempt.",
);
pub const MODEL_REQUEST_DURATION: MetricFamily = family(
    "planck_model_request_duration_seconds",
    MetricKind::Histogram,
    Labels::None,
    "From a request to the end of its stream.",
);
pub const TIME_TO_FIRST_TOKEN: MetricFamily = family(
    "planck_time_to_first_token_seconds",
    MetricKind::Histogram,
    Labels::None,
    "From a request to the first piece of its reply.",
);
pub const TOKENS: MetricFamily = family(
    "planck_tokens_total",
    MetricKind::Counter,
    Labels::Open,
    "Tokens as the providers counted them; `input` without cached ones.",
);
pub const COST: MetricFamily = family(
    "planck_cost_usd_total",
    MetricKind::Counter,
    Labels::Open,
    "Cost of the tokens according to the price table, in US dollars.",
);
pub const MODEL_RETRIES: MetricFamily = family(
    "planck_model_retries_total",
    MetricKind::Counter,
    Labels::None,
    "Failed requests that were retried.",
);
pub const TOOL_CALLS: MetricFamily = family(
    "planck_tool_calls_total",
    MetricKind::Counter,
    Labels::Open,
    "Calls of tools that ended.",
);
pub const TOOL_DURATION: MetricFamily = family(
    "planck_tool_duration_seconds",
    MetricKind::Histogram,
    Labels::None,
    "From a call of a tool to its result.",
);
pub const INBOX_DEPTH: MetricFamily = family(
    "planck_inbox_depth",
    MetricKind::Gauge,
    Labels::None,
    "Inputs that wait for the agents in this node's memory.",
);
pub const SAVE_DURATION: MetricFamily = family(
    "planck_save_duration_seconds",
    MetricKind::Histogram,
    Labels::None,
    "From an agent's decision to its commit.",
);
pub const PUBLISH_LAG: MetricFamily = family(
    "planck_publish_lag_seconds",
    MetricKind::Histogram,
    Labels::None,
    "How long the oldest event of a batch waited until the batch was handed to the connection.",
);
pub const HEARTBEAT_AGE: MetricFamily = family(
    "planck_heartbeat_age_seconds",
    MetricKind::Gauge,
    Labels::None,
    "Time since this node last received its own heartbeat; 0 for a node that works alone.",
);
pub const VERDICTS: MetricFamily = family(
    "planck_verdicts_total",
    MetricKind::Counter,
    Labels::None,
    "Nodes that this node declared dead.",
);
pub const FAILOVERS: MetricFamily = family(
    "planck_failovers_total",
    MetricKind::Counter,
    Labels::None,
    "Agents of a departed node that this node took over or passed to another one.",
);
pub const FENCED_WRITES: MetricFamily = family(
    "planck_fenced_writes_total",
    MetricKind::Counter,
    Labels::None,
    "Saves that were refused because another node holds the lease.",
);
pub const SIDECAR_CALLS: MetricFamily = family(
    "planck_sidecar_calls_total",
    MetricKind::Counter,
    Labels::Open,
    "Calls of sidecars that ended.",
);
pub const SIDECAR_CALL_DURATION: MetricFamily = family(
    "planck_sidecar_call_duration_seconds",
    MetricKind::Histogram,
    Labels::None,
    "From a call of a sidecar to its answer.",
);

/// All families in the order in which `/metrics` lists them.
pub const FAMILIES: &[&MetricFamily] = &[
    &SESSIONS,
    &AGENTS,
    &TURNS,
    &TURN_DURATION,
    &MODEL_REQUESTS,
    &MODEL_REQUEST_DURATION,
    &TIME_TO_FIRST_TOKEN,
    &TOKENS,
    &COST,
    &MODEL_RETRIES,
    &TOOL_CALLS,
    &TOOL_DURATION,
    &INBOX_DEPTH,
    &SAVE_DURATION,
    &PUBLISH_LAG,
    &HEARTBEAT_AGE,
    &VERDICTS,
    &FAILOVERS,
    &FENCED_WRITES,
    &SIDECAR_CALLS,
    &SIDECAR_CALL_DURATION,
];
