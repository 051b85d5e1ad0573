//! The rules that the types of values cannot express: ranges, and relations between several values.

mod providers;

use planck_cluster::ClusterTimes;
use planck_common::{inbox::InboxPrefix, subject::Prefix};
use planck_toolbox::toolchain::{TOOLCHAINS, Toolchain};

use super::{
    Cluster, Config,
    section::Limits,
    setting::{Period, Size},
    values::{ConfigProblem, KeyPath, Values},
};
use crate::agent::permission;

/// The maximum number of agents that a session can allow. Postgres handles the number as a 32-bit
/// integer.
const LARGEST_TEAM: u32 = i32::MAX.unsigned_abs();

/// The maximum size of a prompt or an answer that can be allowed, because a node accepts no larger
/// message.
const LARGEST_TEXT: Size = Size::mebibytes(64);

/// A violated rule, and the key that must be changed.
#[derive(Debug)]
pub struct BrokenRule {
    key: KeyPath,
    what: String,
    remedy: String,
}

impl BrokenRule {
    fn new(key: &str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            key: KeyPath::of(key),
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    pub fn at(self, values: &Values) -> ConfigProblem {
        ConfigProblem {
            origin: values.origin(&self.key),
            key: Some(self.key),
            what: self.what,
            remedy: self.remedy,
        }
    }
}

/// Returns all violated rules.
pub fn check(config: &Config) -> Vec<BrokenRule> {
    let groups = [
        numbers(config),
        sizes(&config.limits),
        addresses(config),
        providers::check(config),
        providers::check_models(config),
        sidecars(config),
        toolchains(config),
        permissions(config),
        times(&config.cluster),
    ];
    groups.into_iter().flatten().collect()
}

fn numbers(config: &Config) -> Vec<BrokenRule> {
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
            broken.push(BrokenRule::new(
                key,
                "0 would let nothing happen",
                "write 1 or more",
            ));
        }
    }
    if config.limits.session.max_agents > LARGEST_TEAM {
        broken.push(BrokenRule::new(
            "limits.session.max_agents",
            "out of range",
            format!("write at most {LARGEST_TEAM}"),
        ));
    }
    if !(0.1..=0.95).contains(&config.compaction.ratio) {
        broken.push(BrokenRule::new(
            "compaction.ratio",
            "out of range",
            "write a share between 0.1 and 0.95",
        ));
    }
    if config.tools.repeat_refuse <= config.tools.repeat_note {
        broken.push(BrokenRule::new(
            "tools.repeat_refuse",
            "not above `tools.repeat_note`",
            "the note must come first",
        ));
    }
    broken
}

fn toolchains(config: &Config) -> Vec<BrokenRule> {
    let names = config.tools.toolchains.iter();
    let unknown = names.filter(|name| Toolchain::find(name).is_none());
    let known: Vec<&str> = TOOLCHAINS.iter().map(|known| known.name).collect();
    let broken = unknown.map(|name| {
        BrokenRule::new(
            "tools.toolchains",
            format!("there is no toolchain `{name}`"),
            format!(
                "write some of {}, or name folders in `tools.readable`",
                known.join(", ")
            ),
        )
    });
    broken.collect()
}

/// Checks the limits of texts and of inboxes. Every allowed prompt must fit into an empty inbox,
/// and one full inbox must not exceed the limit of its session.
fn sizes(limits: &Limits) -> Vec<BrokenRule> {
    let mut broken = Vec::new();
    for (key, size) in [
        ("limits.max_prompt", limits.max_prompt),
        ("limits.answer.max_bytes", limits.answer.max_bytes),
    ] {
        if size.0 == 0 || size > LARGEST_TEXT {
            broken.push(BrokenRule::new(
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
            broken.push(BrokenRule::new(
                key,
                format!("{size} is less than `{other}`"),
                format!("write {least} or more"),
            ));
        }
    }
    broken
}

fn times(cluster: &Cluster) -> Vec<BrokenRule> {
    let mut broken = Vec::new();
    let (least, most) = ClusterTimes::SUSPICION.into_inner();
    if !(least..=most).contains(&cluster.suspicion.0) {
        broken.push(BrokenRule::new(
            "cluster.suspicion",
            format!("{} is out of range", cluster.suspicion),
            format!("write {} to {}", Period(least), Period(most)),
        ));
    }
    let least = Period::seconds(1);
    if cluster.sweep < least {
        broken.push(BrokenRule::new(
            "cluster.sweep",
            format!(
                "{} is out of range: sweeps would load the database",
                cluster.sweep
            ),
            format!("write {least} or more"),
        ));
    }
    broken
}

fn addresses(config: &Config) -> Vec<BrokenRule> {
    let mut broken = Vec::new();
    if config.store.kind().is_none() {
        let what = format!("`{}` names no store", config.store.url);
        broken.push(BrokenRule::new(
            "store.url",
            what,
            "write `sqlite:DIR` or `postgres://…`",
        ));
    }
    if let Err(error) = Prefix::parse(&config.nats.subject_prefix) {
        broken.push(BrokenRule::new(
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
            broken.push(BrokenRule::new(
                key,
                error.to_string(),
                "write for example _INBOX_client",
            ));
        }
    }
    if !matches!(config.nats.replicas, 1 | 3 | 5) {
        broken.push(BrokenRule::new(
            "nats.replicas",
            "JetStream keeps 1, 3 or 5 copies",
            "write 1 alone, 3 in a cluster",
        ));
    }
    if config.nats.tls_cert.is_some() != config.nats.tls_key.is_some() {
        broken.push(BrokenRule::new(
            "nats.tls_cert",
            "a client's certificate needs its key",
            "set `tls_cert` and `tls_key`, or neither",
        ));
    }
    if config.nats.creds.is_some() && config.nats.nkey.is_some() {
        broken.push(BrokenRule::new(
            "nats.nkey",
            "both `creds` and `nkey` are set",
            "set one of them",
        ));
    }
    broken
}

fn sidecars(config: &Config) -> Vec<BrokenRule> {
    let mut broken = Vec::new();
    for (name, tool) in &config.sidecars.tools.0 {
        let at = |word| KeyPath::of("sidecars.tools").then(name).then(word);
        if tool.subject.is_empty() {
            broken.push(BrokenRule {
                key: at("subject"),
                what: "no subject".into(),
                remedy: "write the subject to ask".into(),
            });
        }
        if planck_common::event::ToolEffect::find(&tool.effect).is_none() {
            let remedy = "write pure, idempotent or mutating".into();
            broken.push(BrokenRule {
                key: at("effect"),
                what: format!("unknown effect `{}`", tool.effect),
                remedy,
            });
        }
        let schema = serde_json::from_str::<serde_json::Value>(&tool.parameters);
        if !schema.is_ok_and(|schema| schema.is_object()) {
            let remedy = "write the schema of an object, as JSON in a text".into();
            broken.push(BrokenRule {
                key: at("parameters"),
                what: "not a JSON Schema".into(),
                remedy,
            });
        }
    }
    broken
}

fn permissions(config: &Config) -> Vec<BrokenRule> {
    let mistakes = permission::check(&config.permissions.rules.0).into_iter();
    mistakes
        .map(|mistake| {
            let what = match mistake.field.as_str() {
                "" => mistake.what,
                field => format!("{field}: {}", mistake.what),
            };
            BrokenRule::new("permissions.rules", what, mistake.remedy)
        })
        .collect()
}
