//! Splits a TOML file into its values, each with its line number, and shows the settings of a file to
//! a user who decides whether to trust it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use toml::{
    Spanned, Value,
    de::{DeTable, DeValue},
};

use super::{
    keys,
    setting::{ConfiguredUrl, Setting},
    values::{ConfigProblem, GivenValues, KeyDescription, KeyPath, Raw, ValueOrigin},
};
use planck_providers::secret::Secret;

/// Returns all values of a file, and the problems with the parts that cannot be read.
pub fn parse(path: PathBuf, text: &str) -> (Vec<(KeyPath, GivenValues)>, Vec<ConfigProblem>) {
    let file = ConfigFile {
        path: Arc::new(path),
        text,
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    let problems = errors.iter().map(|error| file.problem(error)).collect();
    let mut values = Vec::new();
    file.walk(&KeyPath::default(), table.get_ref(), &mut values);
    (values, problems)
}

struct ConfigFile<'a> {
    path: Arc<PathBuf>,
    text: &'a str,
}

impl ConfigFile<'_> {
    fn origin(&self, at: usize) -> ValueOrigin {
        let before = self.text.as_bytes().iter().take(at);
        ValueOrigin::File {
            path: self.path.clone(),
            line: before.filter(|byte| **byte == b'\n').count() + 1,
        }
    }

    fn problem(&self, error: &toml::de::Error) -> ConfigProblem {
        let at = error.span().map_or(0, |span| span.start);
        let what = format!("not TOML: {}", error.message());
        ConfigProblem {
            origin: self.origin(at),
            key: None,
            what,
            remedy: "correct the line".into(),
        }
    }

    /// Adds all values of a table. An empty table is added as one value.
    fn walk(&self, at: &KeyPath, table: &DeTable<'_>, into: &mut Vec<(KeyPath, GivenValues)>) {
        for (key, value) in table {
            let (path, line) = (at.then(key.get_ref()), key.span().start);
            match value.get_ref() {
                DeValue::Table(inner) if !inner.is_empty() => self.walk(&path, inner, into),
                DeValue::Table(_)
                | DeValue::String(_)
                | DeValue::Integer(_)
                | DeValue::Float(_)
                | DeValue::Boolean(_)
                | DeValue::Datetime(_)
                | DeValue::Array(_) => into.push((
                    path,
                    GivenValues {
                        raw: Raw::Toml(plain(value)),
                        origin: self.origin(line),
                    },
                )),
            }
        }
    }
}

/// Returns a value without its position in the file. A number that cannot be represented becomes
/// text.
fn plain(value: &Spanned<DeValue<'_>>) -> Value {
    match value.get_ref() {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => {
            let parsed = i64::from_str_radix(number.as_str(), number.radix());
            parsed.map_or_else(|_| Value::String(number.as_str().into()), Value::Integer)
        }
        DeValue::Float(number) => number
            .as_str()
            .parse()
            .map_or_else(|_| Value::String(number.as_str().into()), Value::Float),
        DeValue::Boolean(yes) => Value::Boolean(*yes),
        DeValue::Datetime(at) => Value::Datetime(*at),
        DeValue::Array(items) => Value::Array(items.iter().map(plain).collect()),
        DeValue::Table(table) => Value::Table(
            table
                .iter()
                .map(|(key, value)| (key.get_ref().to_string(), plain(value)))
                .collect(),
        ),
    }
}

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
    let (values, problems) = parse(path.into(), text);
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
