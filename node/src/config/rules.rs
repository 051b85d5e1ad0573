//! What must hold between values.

use planck_common::{inbox::InboxPrefix, subject::Prefix};

use super::{
    Cluster, Config, ModelEntry, Provider,
    key::KeyPath,
    origin::Problem,
    section::Limits,
    setting::{Period, Size},
    values::Values,
};
use crate::llm::{PRESETS, Preset};

/// The most agents that a session's record can allow.
const LARGEST_TEAM: u32 = i32::MAX.unsigned_abs();

/// The largest prompt or answer that can be allowed: a node takes no more in at once.
const LARGEST_TEXT: Size = Size::mebibytes(64);

/// A rule that does not hold, and the key to turn.
#[derive(Debug)]
pub struct Broken {
    key: KeyPath,
    what: String,
    remedy: String,
}

impl Broken {
    fn new(key: &str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            key: KeyPath::of(key),
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    pub fn at(self, values: &Values) -> Problem {
        Problem {
            origin: values.origin(&self.key),
            key: Some(self.key),
            what: self.what,
            remedy: self.remedy,
        }
    }
}

/// Every rule that does not hold.
pub fn check(config: &Config) -> Vec<Broken> {
    let groups = [
        numbers(config),
        sizes(&config.limits),
        addresses(config),
        providers(config),
        models(config),
        sidecars(config),
        times(&config.cluster),
    ];
    groups.into_iter().flatten().collect()
}

fn numbers(config: &Config) -> Vec<Broken> {
    let mut broken = Vec::new();
    for (key, value) in [
        ("node.capacity", config.node.capacity),
        ("node.threads", config.node.threads.unwrap_or(1)),
        ("store.pool", config.store.pool.unwrap_or(1)),
        (
            "limits.max_requests_per_turn",
            config.limits.max_requests_per_turn,
        ),
        (
            "limits.session.max_agents",
            config.limits.session.max_agents,
        ),
        ("limits.inbox.max_inputs", config.limits.inbox.max_inputs),
        ("limits.answer.max_calls", config.limits.answer.max_calls),
        ("tools.concurrency", config.tools.concurrency),
        ("tools.repeat_note", config.tools.repeat_note),
    ] {
        if value == 0 {
            broken.push(Broken::new(
                key,
                "0 would let nothing happen",
                "write 1 or more",
            ));
        }
    }
    if config.limits.session.max_agents > LARGEST_TEAM {
        broken.push(Broken::new(
            "limits.session.max_agents",
            "out of range",
            format!("write at most {LARGEST_TEAM}"),
        ));
    }
    if !(0.1..=0.95).contains(&config.compaction.ratio) {
        broken.push(Broken::new(
            "compaction.ratio",
            "out of range",
            "write a share between 0.1 and 0.95",
        ));
    }
    if config.tools.repeat_refuse <= config.tools.repeat_note {
        broken.push(Broken::new(
            "tools.repeat_refuse",
            "not above `tools.repeat_note`",
            "the note must come first",
        ));
    }
    broken
}

/// Every prompt that is allowed fits an empty inbox, and every full inbox fits an empty session.
fn sizes(limits: &Limits) -> Vec<Broken> {
    let mut broken = Vec::new();
    for (key, size) in [
        ("limits.max_prompt", limits.max_prompt),
        ("limits.answer.max_bytes", limits.answer.max_bytes),
    ] {
        if size.0 == 0 || size > LARGEST_TEXT {
            broken.push(Broken::new(
                key,
                "out of range",
                format!("write at least 1 and at most {LARGEST_TEXT}"),
            ));
        }
    }
    let inbox = &limits.inbox;
    for (key, size, other, least) in [
        (
            "limits.inbox.max_bytes",
            inbox.max_bytes,
            "limits.max_prompt",
            limits.max_prompt,
        ),
        (
            "limits.inbox.max_session_bytes",
            inbox.max_session_bytes,
            "limits.inbox.max_bytes",
            inbox.max_bytes,
        ),
    ] {
        if size < least {
            broken.push(Broken::new(
                key,
                format!("{size} is less than `{other}`"),
                format!("write {least} or more"),
            ));
        }
    }
    broken
}

fn addresses(config: &Config) -> Vec<Broken> {
    let mut broken = Vec::new();
    if config.store.kind().is_none() {
        let what = format!("`{}` names no store", config.store.url);
        broken.push(Broken::new(
            "store.url",
            what,
            "write `sqlite:DIR` or `postgres://…`",
        ));
    }
    if let Err(error) = Prefix::parse(&config.nats.subject_prefix) {
        broken.push(Broken::new(
            "nats.subject_prefix",
            error.to_string(),
            "write words joined by dots, or nothing",
        ));
    }
    let inboxes = [("nats.inbox_prefix", &config.nats.inbox_prefix)];
    let inboxes = inboxes.into_iter().chain(
        config
            .nats
            .reply_prefixes
            .iter()
            .map(|prefix| ("nats.reply_prefixes", prefix)),
    );
    for (key, prefix) in inboxes {
        if let Err(error) = InboxPrefix::parse(prefix) {
            broken.push(Broken::new(
                key,
                error.to_string(),
                "write for example _INBOX_client",
            ));
        }
    }
    if !matches!(config.nats.replicas, 1 | 3 | 5) {
        broken.push(Broken::new(
            "nats.replicas",
            "JetStream keeps 1, 3 or 5 copies",
            "write 1 alone, 3 in a cluster",
        ));
    }
    if config.nats.tls_cert.is_some() != config.nats.tls_key.is_some() {
        broken.push(Broken::new(
            "nats.tls_cert",
            "a client's certificate needs its key",
            "set `tls_cert` and `tls_key`, or neither",
        ));
    }
    if config.nats.creds.is_some() && config.nats.nkey.is_some() {
        broken.push(Broken::new(
            "nats.nkey",
            "both `creds` and `nkey` are set",
            "set one of them",
        ));
    }
    broken
}

fn providers(config: &Config) -> Vec<Broken> {
    config
        .providers
        .by_name
        .iter()
        .flat_map(|(name, provider)| provider_problems(name, provider))
        .collect()
}

fn provider_problems(name: &str, provider: &Provider) -> Vec<Broken> {
    let at = |word: &str| KeyPath::of("providers").then(name).then(word);
    let presets = || {
        PRESETS
            .iter()
            .map(|preset| preset.name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut broken = Vec::new();
    let mut wrong = |word: &str, what: String, remedy: String| {
        broken.push(Broken {
            key: at(word),
            what,
            remedy,
        })
    };
    if !name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
    {
        wrong(
            "wire",
            format!("`{name}` cannot stand before a colon in `provider:model`"),
            "use letters, digits, `_`, `-` and `.`".into(),
        );
    }
    if provider.max_attempts == 0 || provider.max_concurrent == 0 {
        wrong(
            "max_attempts",
            "`max_attempts` and `max_concurrent` must be 1 or more".into(),
            "raise the one that is 0".into(),
        );
    }
    let preset = provider.preset.as_deref().unwrap_or(name);
    match (Preset::find(preset), &provider.preset) {
        (Some(preset), _)
            if preset.base_url.is_none()
                && provider.base_url.is_none()
                && provider.api_key.is_some() =>
        {
            wrong(
                "base_url",
                format!("`{}` has no usual address", preset.name),
                "set `base_url`".into(),
            );
        }
        (Some(_), _) => {}
        (None, Some(unknown)) => wrong(
            "preset",
            format!("unknown preset `{unknown}`"),
            format!("write one of {}", presets()),
        ),
        (None, None) if provider.wire.is_none() || provider.base_url.is_none() => {
            let what = format!("`{name}` is no preset, so nothing is assumed");
            wrong(
                "wire",
                what,
                format!(
                    "set `wire` and `base_url`, or `preset` to one of {}",
                    presets()
                ),
            );
        }
        (None, None) => {}
    }
    broken
}

fn models(config: &Config) -> Vec<Broken> {
    let entries = &config.models.entries.0;
    let mut broken: Vec<Broken> = entries
        .iter()
        .filter_map(|(name, entry)| unserved(config, name, entry))
        .collect();
    if let Some(default) = &config.models.default {
        let provider = default.split_once(':').map(|(provider, _)| provider);
        let known = entries.contains_key(default)
            || provider.is_some_and(|name| config.providers.has(name));
        if !known {
            let remedy = format!(
                "write `provider:model` with one of {}, or the name of an entry",
                names(config)
            );
            broken.push(Broken::new(
                "models.default",
                format!("`{default}` names no model"),
                remedy,
            ));
        }
    }
    broken
}

fn names(config: &Config) -> String {
    config
        .providers
        .names()
        .into_iter()
        .collect::<Vec<_>>()
        .join(", ")
}

fn unserved(config: &Config, name: &str, entry: &ModelEntry) -> Option<Broken> {
    let what = match &entry.provider {
        None => "no provider".to_owned(),
        Some(provider) if !config.providers.has(provider) => {
            format!("unknown provider `{provider}`")
        }
        Some(_) => return None,
    };
    let key = KeyPath::of("models.entries").then(name).then("provider");
    Some(Broken {
        key,
        what,
        remedy: format!("write one of {}", names(config)),
    })
}

fn sidecars(config: &Config) -> Vec<Broken> {
    let mut broken = Vec::new();
    for (name, tool) in &config.sidecars.tools.0 {
        let at = |word| KeyPath::of("sidecars.tools").then(name).then(word);
        if tool.subject.is_empty() {
            broken.push(Broken {
                key: at("subject"),
                what: "no subject".into(),
                remedy: "write the subject to ask".into(),
            });
        }
        if planck_common::event::Effect::find(&tool.effect).is_none() {
            let remedy = "write pure, idempotent or mutating".into();
            broken.push(Broken {
                key: at("effect"),
                what: format!("unknown effect `{}`", tool.effect),
                remedy,
            });
        }
        let schema = serde_json::from_str::<serde_json::Value>(&tool.parameters);
        if !schema.is_ok_and(|schema| schema.is_object()) {
            let remedy = "write the schema of an object, as JSON in a text".into();
            broken.push(Broken {
                key: at("parameters"),
                what: "not a JSON Schema".into(),
                remedy,
            });
        }
    }
    broken
}

/// A time must be at least another, so many times.
struct AtLeast {
    key: &'static str,
    value: Period,
    times: u32,
    other: (&'static str, Period),
    why: &'static str,
}

fn times(cluster: &Cluster) -> Vec<Broken> {
    let at_least = |key, value, times, other, why| AtLeast {
        key,
        value,
        times,
        other,
        why,
    };
    let heartbeat = ("heartbeat", cluster.heartbeat);
    let suspicion = ("suspicion", cluster.suspicion);
    let proof = ("proof_every", cluster.proof_every);
    let rules = [
        at_least(
            "heartbeat",
            cluster.heartbeat,
            1,
            ("50ms", Period::millis(50)),
            "faster ones drown the bus",
        ),
        at_least(
            "suspicion",
            cluster.suspicion,
            4,
            heartbeat,
            "a few lost heartbeats would kill a healthy node",
        ),
        at_least(
            "echo_limit",
            cluster.echo_limit,
            3,
            heartbeat,
            "a node would suspend itself over one lost heartbeat",
        ),
        at_least(
            "settle",
            cluster.settle,
            1,
            suspicion,
            "a judge that was away would convict whom it could not hear",
        ),
        at_least(
            "proof_fresh",
            cluster.proof_fresh,
            2,
            proof,
            "no judge's proof would be young enough",
        ),
        at_least(
            "proof_limit",
            cluster.proof_limit,
            3,
            proof,
            "nodes would suspend themselves during every election",
        ),
        at_least(
            "reap_after",
            cluster.reap_after,
            4,
            ("250ms", Period::millis(250)),
            "a busy node's tools would be killed",
        ),
        at_least(
            "tool_grace",
            cluster.tool_grace,
            1,
            ("reap_after", cluster.reap_after),
            "a dead node's tools could still write",
        ),
        at_least(
            "sweep",
            cluster.sweep,
            1,
            ("1s", Period::seconds(1)),
            "sweeps would load the database",
        ),
    ];
    let mut broken: Vec<Broken> = rules.into_iter().filter_map(AtLeast::check).collect();
    if cluster.proof_limit.0 <= cluster.proof_fresh.0 {
        let what = "not above `cluster.proof_fresh`: a node would be suspended before it stops judging others";
        broken.push(Broken::new(
            "cluster.proof_limit",
            what,
            format!("write more than {}", cluster.proof_fresh),
        ));
    }
    if cluster.echo_limit.0 >= cluster.suspicion.0 {
        let what = "not below `cluster.suspicion`: a node would work on after its peers gave it up";
        broken.push(Broken::new(
            "cluster.echo_limit",
            what,
            format!("write less than {}", cluster.suspicion),
        ));
    }
    broken
}

impl AtLeast {
    fn check(self) -> Option<Broken> {
        let Self {
            key,
            value,
            times,
            other: (name, other),
            why,
        } = self;
        let least = other.0.saturating_mul(times);
        let what = || match times {
            1 => format!("{value} is less than {name}: {why}"),
            times => format!("{value} is less than {times} times `{name}`: {why}"),
        };
        (value.0 < least).then(|| {
            Broken::new(
                &format!("cluster.{key}"),
                what(),
                format!("write {} or more", Period(least)),
            )
        })
    }
}
