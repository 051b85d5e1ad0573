//! Values from the environment: `PLANCK_<SECTION>_<KEY>`, and the names people already have set.

use std::collections::BTreeMap;

use super::{
    key::{Key, KeyPath, nearest},
    origin::{Origin, Problem},
    values::{Given, Raw},
};

/// Names of other programs that mean a key of ours.
pub const HONOURED: [(&str, &str); 14] = [
    ("NATS_URL", "nats.url"),
    ("NATS_CREDS", "nats.creds"),
    ("NATS_NKEY", "nats.nkey"),
    ("DATABASE_URL", "store.url"),
    ("ANTHROPIC_API_KEY", "providers.anthropic.api_key"),
    ("OPENAI_API_KEY", "providers.openai.api_key"),
    ("GOOGLE_API_KEY", "providers.google.api_key"),
    ("ANTHROPIC_BASE_URL", "providers.anthropic.base_url"),
    ("OPENAI_BASE_URL", "providers.openai.base_url"),
    ("GOOGLE_BASE_URL", "providers.google.base_url"),
    ("OLLAMA_HOST", "providers.ollama.base_url"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "telemetry.otlp_endpoint"),
    ("OTEL_SERVICE_NAME", "telemetry.service_name"),
    ("RUST_LOG", "telemetry.log"),
];

/// The honoured name of a key.
pub fn honoured_name(key: &KeyPath) -> Option<&'static str> {
    let key = key.to_string();
    HONOURED.iter().find(|(_, known)| *known == key).map(|(name, _)| *name)
}

/// What the environment gives, our own names over the honoured ones. An empty variable gives nothing.
pub fn read(environment: &BTreeMap<String, String>, keys: &[Key]) -> (Vec<(KeyPath, Given)>, Vec<Problem>) {
    let set = || environment.iter().filter(|(_, text)| !text.is_empty());
    let honoured = HONOURED.iter().filter_map(|(name, key)| {
        let text = environment.get(*name).filter(|text| !text.is_empty())?;
        Some((KeyPath::of(key), given(name, &adapted(name, text))))
    });
    let mut values: Vec<_> = honoured.collect();
    let mut problems = Vec::new();
    for (name, text) in set() {
        match meant(name, keys) {
            Meant::Key(key) => values.push((key, given(name, text))),
            Meant::Nothing(wanted) => problems.push(unknown(name, &wanted, keys)),
            Meant::Other => {}
        }
    }
    (values, problems)
}

fn given(name: &str, text: &str) -> Given {
    Given { raw: Raw::Text(text.into()), origin: Origin::Environment(name.into()) }
}

/// `OLLAMA_HOST` is often no more than host and port, and often the address the server listens on.
fn adapted(name: &str, text: &str) -> String {
    match name {
        "OLLAMA_HOST" => {
            let url = if text.contains("://") { text.into() } else { format!("http://{text}") };
            url.replace("//0.0.0.0", "//127.0.0.1")
        }
        _ => text.into(),
    }
}

enum Meant {
    Key(KeyPath),
    /// A name with one of our sections, and no key of it.
    Nothing(KeyPath),
    /// Not for the configuration.
    Other,
}

fn meant(name: &str, keys: &[Key]) -> Meant {
    let Some(rest) = name.strip_prefix("PLANCK_") else { return Meant::Other };
    let exact = keys.iter().find(|key| key.pattern.variable() == name).map(|key| key.pattern.clone());
    if let Some(key) = exact.or_else(|| keys.iter().find_map(|key| open(name, &key.pattern))) {
        return Meant::Key(key);
    }
    let lower = rest.to_ascii_lowercase();
    let section = keys
        .iter()
        .map(|key| key.pattern.section())
        .find(|section| lower.strip_prefix(section).is_some_and(|rest| rest.starts_with('_')));
    match section {
        Some(section) => Meant::Nothing(KeyPath::of(section).then(lower.get(section.len() + 1..).unwrap_or_default())),
        None => Meant::Other,
    }
}

/// The key of a pattern with a name of the reader's choice in it: `PLANCK_WORKSPACES_SRC` is `workspaces.src`.
fn open(name: &str, pattern: &KeyPath) -> Option<KeyPath> {
    let variable = pattern.variable();
    let (before, after) = variable.split_once("<NAME>")?;
    let chosen = name.strip_prefix(before)?.strip_suffix(after).filter(|chosen| !chosen.is_empty())?;
    let words = pattern.words().iter();
    Some(words.fold(KeyPath::default(), |path, word| match word.as_str() {
        "*" => path.then(&chosen.to_ascii_lowercase()),
        _ => path.then(word),
    }))
}

fn unknown(name: &str, wanted: &KeyPath, keys: &[Key]) -> Problem {
    let remedy = match nearest(keys, wanted) {
        Some(known) => format!("did you mean {}?", known.variable()),
        None => "take it out; `planck config show` lists every key".into(),
    };
    Problem { origin: Origin::Environment(name.into()), key: None, what: "no key has this name".into(), remedy }
}
