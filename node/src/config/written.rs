//! The settings of one file, for a user who decides whether to trust the file.

use std::{collections::BTreeMap, path::Path};

use toml::Value;

use super::{
    document,
    key::{KeyDescription, KeyPath},
    load::keys,
    setting::{ConfiguredUrl, Setting},
    values::Raw,
};
use planck_providers::secret::Secret;

/// The keys of a file with their values, and the mistakes in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WrittenKeys {
    pub values: BTreeMap<String, String>,
    pub problems: Vec<String>,
}

/// Parses the text of a file. The values of keys for secrets, and the passwords in addresses, are
/// masked. The texts of headers are not masked. References such as `env:NAME` and `file:PATH` are
/// included, because a change of the reference makes Planck use another secret.
pub fn written(path: &Path, text: &str) -> WrittenKeys {
    let (values, problems) = document::parse(path.into(), text);
    let known = keys();
    let shown = |key: &KeyPath, raw: &Raw| match raw {
        Raw::Toml(value) => shown(value, is_secret(&known, key)),
        Raw::Text(_) => "(set)".into(),
    };
    let name = |key: &KeyPath| match known.iter().any(|known| known.pattern.matches(key)) {
        true => key.to_string(),
        false => format!("{key} (no such key)"),
    };
    WrittenKeys {
        values: values
            .iter()
            .map(|(key, given)| (name(key), shown(key, &given.raw)))
            .collect(),
        problems: problems.iter().map(ToString::to_string).collect(),
    }
}

fn is_secret(keys: &[KeyDescription], path: &KeyPath) -> bool {
    keys.iter()
        .any(|key| key.kind == <Secret as Setting>::kind() && key.pattern.matches(path))
}

fn shown(value: &Value, is_secret: bool) -> String {
    match value {
        Value::String(text)
            if is_secret
                && !["env:", "file:"]
                    .iter()
                    .any(|reference| text.starts_with(reference)) =>
        {
            "(a secret)".into()
        }
        Value::String(text) if text.contains("//") => {
            format!("{:?}", ConfiguredUrl::new(text.clone()).to_string())
        }
        Value::String(text) => format!("{text:?}"),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| shown(item, is_secret)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Integer(_)
        | Value::Float(_)
        | Value::Boolean(_)
        | Value::Datetime(_)
        | Value::Table(_) => value.to_string().trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_and_references_are_shown() {
        let text = "[providers.openai]\napi_key = \"env:AWS_SECRET\"\nbase_url = \"http://me:pw@evil/v1?key=pw\"\n\
                    [providers.google]\napi_key = \"sk-literal\"\n[tools]\npass_environment = [\"A\", \"B\"]\nfly = 1\n[bad\n";
        let written = written(Path::new("c.toml"), text);
        let shown: Vec<String> = written
            .values
            .iter()
            .map(|(key, value)| format!("{key} = {value}"))
            .collect();
        insta::assert_snapshot!(shown.join("\n"), @r#"
        bad (no such key) = {}
        providers.google.api_key = (a secret)
        providers.openai.api_key = "env:AWS_SECRET"
        providers.openai.base_url = "http://***@evil/v1?…"
        tools.fly (no such key) = 1
        tools.pass_environment = ["A", "B"]
        "#);
        assert_eq!(written.problems.len(), 1, "{:?}", written.problems);
    }
}
