//! The rules that the types of values cannot express: ranges, and relations between several values.

use planck_cluster::ClusterTimes;
use planck_common::{event::ToolEffect, inbox::InboxPrefix, subject::Prefix};
use planck_mcp::ServerUrl;
use planck_toolbox::toolchain::{TOOLCHAINS, Toolchain};

use super::{
    Cluster, Config, Provider,
    section::Limits,
    setting::{Period, ServerScope, Size},
    values::{KeyPath, Values},
};
use crate::{agent::permission, team::template::did_you_mean};
use planck_providers::{PRESETS, Preset};

/// The maximum number of agents that a session can allow. Postgres handles the number as a 32-bit
/// integer.
const LARGEST_TEAM: u32 = i32::MAX.unsigned_abs();

/// The maximum size of a prompt or an answer that can be allowed, because a node accepts no larger
/// message.
const LARGEST_TEXT: Size = Size::mebibytes(64);

/// Reports each rule that `config` violates to `values`, at the key that must be changed.
pub fn check(config: &Config, values: &mut Values) {
    numbers(config, values);
    sizes(&config.limits, values);
    addresses(config, values);
    providers(config, values);
    models(config, values);
    sidecars(config, values);
    mcp(config, values);
    toolchains(config, values);
    permissions(config, values);
    times(&config.cluster, values);
}

fn numbers(config: &Config, values: &mut Values) {
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
            values.refuse(key, "0 would let nothing happen", "write 1 or more");
        }
    }
    if config.limits.session.max_agents > LARGEST_TEAM {
        values.refuse(
            "limits.session.max_agents",
            "out of range",
            format!("write at most {LARGEST_TEAM}"),
        );
    }
    if !(0.1..=0.95).contains(&config.compaction.ratio) {
        values.refuse(
            "compaction.ratio",
            "out of range",
            "write a share between 0.1 and 0.95",
        );
    }
    if config.tools.repeat_refuse <= config.tools.repeat_note {
        values.refuse(
            "tools.repeat_refuse",
            "not above `tools.repeat_note`",
            "the note must come first",
        );
    }
}

fn toolchains(config: &Config, values: &mut Values) {
    let known: Vec<&str> = TOOLCHAINS.iter().map(|known| known.name).collect();
    for name in &config.tools.toolchains {
        if Toolchain::find(name).is_none() {
            values.refuse(
                "tools.toolchains",
                format!("there is no toolchain `{name}`"),
                format!(
                    "write some of {}, or name folders in `tools.readable`",
                    known.join(", ")
                ),
            );
        }
    }
}

/// Checks the limits of texts and of inboxes. Every allowed prompt must fit into an empty inbox,
/// and one full inbox must not exceed the limit of its session.
fn sizes(limits: &Limits, values: &mut Values) {
    for (key, size) in [
        ("limits.max_prompt", limits.max_prompt),
        ("limits.answer.max_bytes", limits.answer.max_bytes),
    ] {
        if size.0 == 0 || size > LARGEST_TEXT {
            values.refuse(
                key,
                "out of range",
                format!("write at least 1 and at most {LARGEST_TEXT}"),
            );
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
            values.refuse(
                key,
                format!("{size} is less than `{other}`"),
                format!("write {least} or more"),
            );
        }
    }
}

fn times(cluster: &Cluster, values: &mut Values) {
    let (least, most) = ClusterTimes::SUSPICION.into_inner();
    if !(least..=most).contains(&cluster.suspicion.0) {
        values.refuse(
            "cluster.suspicion",
            format!("{} is out of range", cluster.suspicion),
            format!("write {} to {}", Period(least), Period(most)),
        );
    }
    let least = Period::seconds(1);
    if cluster.sweep < least {
        values.refuse(
            "cluster.sweep",
            format!(
                "{} is out of range: sweeps would load the database",
                cluster.sweep
            ),
            format!("write {least} or more"),
        );
    }
}

fn addresses(config: &Config, values: &mut Values) {
    if config.store.kind().is_none() {
        let what = format!("`{}` names no store", config.store.url);
        values.refuse("store.url", what, "write `sqlite:DIR` or `postgres://…`");
    }
    if let Err(error) = Prefix::parse(&config.nats.subject_prefix) {
        values.refuse(
            "nats.subject_prefix",
            error.to_string(),
            "write words joined by dots, or nothing",
        );
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
            values.refuse(key, error.to_string(), "write for example _INBOX_client");
        }
    }
    if !matches!(config.nats.replicas, 1 | 3 | 5) {
        values.refuse(
            "nats.replicas",
            "JetStream keeps 1, 3 or 5 copies",
            "write 1 alone, 3 in a cluster",
        );
    }
    if config.nats.tls_cert.is_some() != config.nats.tls_key.is_some() {
        values.refuse(
            "nats.tls_cert",
            "a client's certificate needs its key",
            "set `tls_cert` and `tls_key`, or neither",
        );
    }
    if config.nats.creds.is_some() && config.nats.nkey.is_some() {
        values.refuse(
            "nats.nkey",
            "both `creds` and `nkey` are set",
            "set one of them",
        );
    }
}

fn providers(config: &Config, values: &mut Values) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    for (name, provider) in &config.providers.by_name {
        let at = |word: &str| KeyPath::of("providers").then(name).then(word);
        if !name.bytes().all(is_plain) {
            values.refuse(
                at("wire"),
                format!("`{name}` cannot stand before a colon in `provider:model`"),
                "use letters, digits, `_`, `-` and `.`",
            );
        }
        for (key, is_zero) in [
            ("max_attempts", provider.max_attempts == 0),
            ("max_concurrent", provider.max_concurrent == 0),
        ] {
            if is_zero {
                values.refuse(at(key), format!("`{key}` must be 1 or more"), "raise it");
            }
        }
        if let Some((word, what, remedy)) = missing(name, provider) {
            values.refuse(at(word), what, remedy);
        }
    }
}

/// Returns the key, the mistake and the remedy if the preset is unknown, or if `wire` or `base_url`
/// is missing and no preset supplies it. A preset without an address is allowed for a provider
/// without a key.
fn missing(name: &str, provider: &Provider) -> Option<(&'static str, String, String)> {
    let presets = PRESETS.iter().map(|preset| preset.name);
    let presets = presets.collect::<Vec<_>>().join(", ");
    let has_address = provider.base_url.is_some();
    let preset = provider.preset.as_deref().unwrap_or(name);
    Some(match (Preset::find(preset), &provider.preset) {
        (Some(preset), _) => {
            let is_known = preset.base_url.is_some() || has_address;
            if is_known || provider.api_key.is_none() {
                return None;
            }
            let what = format!("`{}` has no usual address", preset.name);
            ("base_url", what, "set `base_url`".into())
        }
        (None, Some(unknown)) => {
            let what = format!("unknown preset `{unknown}`");
            ("preset", what, format!("write one of {presets}"))
        }
        (None, None) if provider.wire.is_some() && has_address => return None,
        (None, None) => {
            let what = format!("`{name}` is no preset, so nothing is assumed");
            let remedy = format!("set `wire` and `base_url`, or `preset` to one of {presets}");
            ("wire", what, remedy)
        }
    })
}

fn models(config: &Config, values: &mut Values) {
    let known = config.providers.names();
    let providers = known.iter().copied().collect::<Vec<_>>().join(", ");
    let entries = &config.models.entries.0;
    for (name, entry) in entries {
        let what = match &entry.provider {
            None => "no provider".to_owned(),
            Some(provider) if !config.providers.has(provider) => {
                format!("unknown provider `{provider}`")
            }
            Some(_) => continue,
        };
        let key = KeyPath::of("models.entries").then(name).then("provider");
        values.refuse(key, what, format!("write one of {providers}"));
    }
    let default = config.models.default.as_ref();
    let Some(default) = default.filter(|default| !entries.contains_key(*default)) else {
        return;
    };
    let what = format!("`{default}` names no model");
    let (what, remedy) = match default.split_once(':') {
        Some((name, "")) if config.providers.has(name) => (
            what,
            "write its id after the colon; `planck model ls` lists them".into(),
        ),
        Some((name, _)) if config.providers.has(name) => return,
        Some((name, _)) => (
            format!("{what}: unknown provider `{name}`"),
            did_you_mean(name, known),
        ),
        None => (
            what,
            format!("write `provider:model` with one of {providers}, or the name of an entry"),
        ),
    };
    values.refuse("models.default", what, remedy);
}

fn sidecars(config: &Config, values: &mut Values) {
    for (name, tool) in &config.sidecars.tools.0 {
        let at = |word| KeyPath::of("sidecars.tools").then(name).then(word);
        if tool.subject.is_empty() {
            values.refuse(at("subject"), "no subject", "write the subject to ask");
        }
        effect(at("effect"), &tool.effect, values);
        let schema = serde_json::from_str::<serde_json::Value>(&tool.parameters);
        if !schema.is_ok_and(|schema| schema.is_object()) {
            values.refuse(
                at("parameters"),
                "not a JSON Schema",
                "write the schema of an object, as JSON in a text",
            );
        }
    }
}

fn effect(at: KeyPath, text: &str, values: &mut Values) {
    if ToolEffect::find(text).is_none() {
        values.refuse(
            at,
            format!("unknown effect `{text}`"),
            "write pure, idempotent or mutating",
        );
    }
}

fn mcp(config: &Config, values: &mut Values) {
    for (name, server) in &config.mcp.0 {
        let at = |word| KeyPath::of("mcp").then(name).then(word);
        if !planck_common::id::is_id(name) {
            values.refuse(
                at("command"),
                format!("`{name}` cannot name a sidecar"),
                "use 1 to 64 of A-Z a-z 0-9 _ -",
            );
        }
        match (server.command.is_empty(), &server.url) {
            (true, None) => values.refuse(
                at("command"),
                "neither `command` nor `url` is set",
                "write the program that starts the server, or the address of one",
            ),
            (false, Some(_)) => values.refuse(
                at("url"),
                "both `command` and `url` are set",
                "take one of them out",
            ),
            (false, None) => (),
            (true, Some(url)) => {
                if let Err(why) = url.reveal().parse::<ServerUrl>() {
                    values.refuse(at("url"), why, "write http://… or https://…");
                }
            }
        }
        if server.url.is_some() && server.per == ServerScope::Session {
            values.refuse(
                at("per"),
                "a server at an address has no process for each session",
                "write `node`, or start the server with `command`",
            );
        }
        for (tool, effect) in &server.effects.0 {
            self::effect(at("effects").then(tool), effect, values);
        }
    }
}

fn permissions(config: &Config, values: &mut Values) {
    for mistake in permission::check(&config.permissions.rules.0) {
        let what = match mistake.field.as_str() {
            "" => mistake.what,
            field => format!("{field}: {}", mistake.what),
        };
        values.refuse("permissions.rules", what, mistake.remedy);
    }
}
