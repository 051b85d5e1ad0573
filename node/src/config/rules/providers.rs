//! The rules for providers and for the models that they serve.

use super::BrokenRule;
use crate::config::{Config, ModelEntry, Provider, values::KeyPath};
use crate::team::mistake::did_you_mean;
use planck_providers::{PRESETS, Preset};

pub fn check(config: &Config) -> Vec<BrokenRule> {
    config
        .providers
        .by_name
        .iter()
        .flat_map(|(name, provider)| provider_problems(name, provider))
        .collect()
}

fn provider_problems(name: &str, provider: &Provider) -> Vec<BrokenRule> {
    let at = |word: &str| KeyPath::of("providers").then(name).then(word);
    let mut broken = Vec::new();
    let mut wrong = |word: &str, what: String, remedy: String| {
        broken.push(BrokenRule {
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
    for (key, is_zero) in [
        ("max_attempts", provider.max_attempts == 0),
        ("max_concurrent", provider.max_concurrent == 0),
    ] {
        if is_zero {
            wrong(key, format!("`{key}` must be 1 or more"), "raise it".into());
        }
    }
    broken.extend(assumed(name, provider, &at));
    broken
}

/// Returns a violated rule if the preset is unknown, or if `wire` or `base_url` is missing and no
/// preset supplies it. A preset without an address is allowed for a provider without a key.
fn assumed(name: &str, provider: &Provider, at: &dyn Fn(&str) -> KeyPath) -> Option<BrokenRule> {
    let presets = PRESETS.iter().map(|preset| preset.name);
    let presets = presets.collect::<Vec<_>>().join(", ");
    let has_address = provider.base_url.is_some();
    let preset = provider.preset.as_deref().unwrap_or(name);
    let (word, what, remedy) = match (Preset::find(preset), &provider.preset) {
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
    };
    Some(BrokenRule {
        key: at(word),
        what,
        remedy,
    })
}

pub fn check_models(config: &Config) -> Vec<BrokenRule> {
    let entries = &config.models.entries.0;
    let mut broken: Vec<BrokenRule> = entries
        .iter()
        .filter_map(|(name, entry)| unserved(config, name, entry))
        .collect();
    if let Some(default) = &config.models.default {
        let parts = default.split_once(':');
        let known = entries.contains_key(default)
            || parts.is_some_and(|(name, id)| config.providers.has(name) && !id.is_empty());
        if !known {
            let (what, remedy) = match parts {
                Some((name, _)) if config.providers.has(name) => (
                    format!("`{default}` names no model"),
                    "write its id after the colon; `planck model ls` lists them".into(),
                ),
                Some((name, _)) => (
                    format!("`{default}` names no model: unknown provider `{name}`"),
                    did_you_mean(name, config.providers.names()),
                ),
                None => (
                    format!("`{default}` names no model"),
                    format!(
                        "write `provider:model` with one of {}, or the name of an entry",
                        names(config)
                    ),
                ),
            };
            broken.push(BrokenRule::new("models.default", what, remedy));
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

fn unserved(config: &Config, name: &str, entry: &ModelEntry) -> Option<BrokenRule> {
    let what = match &entry.provider {
        None => "no provider".to_owned(),
        Some(provider) if !config.providers.has(provider) => {
            format!("unknown provider `{provider}`")
        }
        Some(_) => return None,
    };
    let key = KeyPath::of("models.entries").then(name).then("provider");
    Some(BrokenRule {
        key,
        what,
        remedy: format!("write one of {}", names(config)),
    })
}
