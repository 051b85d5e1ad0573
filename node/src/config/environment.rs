//! Reads values from environment variables: `PLANCK_<SECTION>_<KEY>`, and variables of other
//! programs that users often have set already.

use std::collections::BTreeMap;

use super::{
    Secret,
    setting::{ConfiguredUrl, Setting},
    values::{ConfigProblem, GivenValues, KeyDescription, KeyPath, Raw, ValueOrigin, nearest},
};
use planck_providers::{PRESETS, Preset};

/// The variables of other programs that set a key, without those of providers.
const OTHERS: [(&str, &str); 7] = [
    ("NATS_URL", "nats.url"),
    ("NATS_CREDS", "nats.creds"),
    ("NATS_NKEY", "nats.nkey"),
    ("DATABASE_URL", "store.url"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "telemetry.otlp_endpoint"),
    ("OTEL_SERVICE_NAME", "telemetry.service_name"),
    ("RUST_LOG", "telemetry.log"),
];

/// Returns the variables of other programs, each with the key that it sets.
pub fn honoured() -> impl Iterator<Item = (&'static str, KeyPath)> {
    let of_provider = |preset: &'static Preset| {
        let variables = [
            (preset.key_variable, "api_key"),
            (preset.address_variable, "base_url"),
        ];
        let at = KeyPath::of("providers").then(preset.name);
        variables
            .into_iter()
            .filter_map(move |(name, key)| Some((name?, at.then(key))))
    };
    let others = OTHERS.iter().map(|(name, key)| (*name, KeyPath::of(key)));
    others.chain(PRESETS.iter().flat_map(of_provider))
}

/// Words in the name of a variable which suggest that its value is a secret.
const SECRET_WORDS: [&str; 11] = [
    "KEY",
    "KEYS",
    "APIKEY",
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "CREDENTIALS",
    "CREDS",
];

/// Returns whether libraries read a variable from the process's own environment. Such a variable
/// must stay in the environment.
fn is_read_by_libraries(name: &str) -> bool {
    let prefixes = ["PG", "OTEL_", "SSL_CERT_", "LC_", "LD_"];
    name.to_ascii_uppercase().ends_with("_PROXY")
        || prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns whether the name of a variable or of a header says that its value is a secret.
pub fn is_secret_name(name: &str) -> bool {
    name.split(['_', '-'])
        .any(|word| SECRET_WORDS.contains(&word.to_ascii_uppercase().as_str()))
}

/// Returns whether a variable may hold a secret. It may if it sets a key whose kind is a secret or an
/// address. It also may if its name or its value looks like a secret, unless libraries read the
/// variable from the environment. The value is examined too, because a configuration may refer to any
/// variable by `env:NAME`. False positives are harmless, because Planck reads its variables both
/// from the environment and from the memory to which secrets are moved.
pub fn may_be_secret(name: &str, text: &str, keys: &[KeyDescription]) -> bool {
    let kinds = [Secret::kind(), ConfiguredUrl::kind()];
    let holds = |path: &KeyPath| {
        keys.iter()
            .any(|key| key.pattern.matches(path) && kinds.contains(&key.kind))
    };
    let ours = match meant(name, keys) {
        VariableMeaning::Key(key) => Some(key),
        VariableMeaning::Nothing(_) | VariableMeaning::Other => honoured()
            .find(|(known, _)| *known == name)
            .map(|(_, key)| key),
    };
    if ours.as_ref().is_some_and(holds) {
        return true;
    }
    !is_read_by_libraries(name)
        && (is_secret_name(name) || has_password(text) || is_like_a_token(text))
}

/// Returns whether a text looks like `scheme://user:password@host`.
fn has_password(text: &str) -> bool {
    let user = text
        .split_once("://")
        .and_then(|(_, rest)| rest.rsplit_once('@'));
    user.is_some_and(|(user, _)| user.contains(':'))
}

/// Returns whether a text looks like a token: a single long word with letters and digits.
fn is_like_a_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.+=~".contains(&byte);
    let has = |wanted: fn(&u8) -> bool| text.as_bytes().iter().any(wanted);
    text.len() >= 20
        && text.bytes().all(fits)
        && has(u8::is_ascii_digit)
        && has(u8::is_ascii_alphabetic)
}

/// Returns the values that variables set, and a problem for each variable of Planck that names a
/// section but none of its keys. Planck's own variables come last, so that they override those of
/// other programs. An empty variable of either kind is ignored.
pub fn read(
    environment: &BTreeMap<String, String>,
    keys: &[KeyDescription],
) -> (Vec<(KeyPath, GivenValues)>, Vec<ConfigProblem>) {
    let set = || environment.iter().filter(|(_, text)| !text.is_empty());
    let honoured = honoured().filter_map(|(name, key)| {
        let text = environment.get(name).filter(|text| !text.is_empty())?;
        Some((key, given(name, &adapted(name, text))))
    });
    let mut values: Vec<_> = honoured.collect();
    let mut problems = Vec::new();
    for (name, text) in set() {
        match meant(name, keys) {
            VariableMeaning::Key(key) => values.push((key, given(name, text))),
            VariableMeaning::Nothing(wanted) => problems.push(unknown(name, &wanted, keys)),
            VariableMeaning::Other => {}
        }
    }
    (values, problems)
}

fn given(name: &str, text: &str) -> GivenValues {
    GivenValues {
        raw: Raw::Text(text.into()),
        origin: ValueOrigin::Environment(name.into()),
    }
}

/// Converts the value of another program's variable to the form of the key. `OLLAMA_HOST` often
/// contains only host and port, or the address at which the server listens. `NATS_NKEY` is the path
/// of a file for the `nats` command line and a seed for other programs. A seed consists of letters
/// and digits only.
fn adapted(name: &str, text: &str) -> String {
    match name {
        "OLLAMA_HOST" => {
            let url = if text.contains("://") {
                text.into()
            } else {
                format!("http://{text}")
            };
            url.replace("//0.0.0.0", "//127.0.0.1")
        }
        "NATS_NKEY" if text.contains(['/', '.']) && !text.starts_with("file:") => {
            format!("file:{text}")
        }
        _ => text.into(),
    }
}

enum VariableMeaning {
    Key(KeyPath),
    /// A variable whose name begins with `PLANCK_` and a section of the configuration, but matches
    /// none of its keys.
    Nothing(KeyPath),
    /// Any other variable, including those in [`honoured`].
    Other,
}

fn meant(name: &str, keys: &[KeyDescription]) -> VariableMeaning {
    let Some(rest) = name.strip_prefix("PLANCK_") else {
        return VariableMeaning::Other;
    };
    let exact = keys
        .iter()
        .find(|key| key.pattern.variable() == name)
        .map(|key| key.pattern.clone());
    if let Some(key) = exact.or_else(|| keys.iter().find_map(|key| open(name, &key.pattern))) {
        return VariableMeaning::Key(key);
    }
    let lower = rest.to_ascii_lowercase();
    let section = keys
        .iter()
        .map(|key| key.pattern.section())
        .find(|section| {
            lower
                .strip_prefix(section)
                .is_some_and(|rest| rest.starts_with('_'))
        });
    match section {
        Some(section) => VariableMeaning::Nothing(
            KeyPath::of(section).then(lower.get(section.len() + 1..).unwrap_or_default()),
        ),
        None => VariableMeaning::Other,
    }
}

/// Returns the key that a variable sets, for a pattern with a name that the user chooses:
/// `PLANCK_WORKSPACES_SRC` sets `workspaces.src`. Returns `None` if the variable does not match the
/// pattern, or if the pattern has no such name.
fn open(name: &str, pattern: &KeyPath) -> Option<KeyPath> {
    let variable = pattern.variable();
    let (before, after) = variable.split_once("<NAME>")?;
    let chosen = name
        .strip_prefix(before)?
        .strip_suffix(after)
        .filter(|chosen| !chosen.is_empty())?;
    let words = pattern.words().iter();
    Some(
        words.fold(KeyPath::default(), |path, word| match word.as_str() {
            "*" => path.then(&chosen.to_ascii_lowercase()),
            _ => path.then(word),
        }),
    )
}

fn unknown(name: &str, wanted: &KeyPath, keys: &[KeyDescription]) -> ConfigProblem {
    let remedy = match nearest(keys, wanted) {
        Some(known) => format!("did you mean {}?", known.variable()),
        None => "take it out; `planck config show` lists every key".into(),
    };
    ConfigProblem {
        origin: ValueOrigin::Environment(name.into()),
        key: None,
        what: "no key has this name".into(),
        remedy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_recognised_by_key_name_or_value() {
        let keys = crate::config::keys();
        for (name, text, wanted) in [
            ("ANTHROPIC_API_KEY", "x", true),
            ("DATABASE_URL", "x", true),
            ("NATS_URL", "nats://localhost", true),
            ("PLANCK_NATS_NKEY", "x", true),
            ("PLANCK_STORE_URL", "x", true),
            ("PLANCK_PROVIDERS_OPENAI_API_KEY", "x", true),
            ("AWS_SECRET_ACCESS_KEY", "x", true),
            ("github_token", "x", true),
            ("REDIS", "redis://me:pw@cache:6379", true),
            ("ANTHROPIC", "sk-ant-api03-0123456789abcdef", true),
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "http://me:pw@collector",
                true,
            ),
            ("PATH", "/usr/local/bin:/usr/bin", false),
            ("PLANCK_NODE_CAPACITY", "10", false),
            ("KEYBOARD", "us", false),
            ("TERM", "xterm-256color", false),
            ("HTTPS_PROXY", "http://me:pw@proxy:3128", false),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization=Bearer x",
                false,
            ),
            ("MAIL", "https://example.org/a@b", false),
        ] {
            assert_eq!(may_be_secret(name, text, &keys), wanted, "{name}={text}");
        }
    }
}
