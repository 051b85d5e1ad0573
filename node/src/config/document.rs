//! Splits a TOML file into its values, each with its line number.

use std::{path::PathBuf, sync::Arc};

use toml::{
    Spanned, Value,
    de::{DeTable, DeValue},
};

use super::{
    key::KeyPath,
    origin::{ConfigProblem, ValueOrigin},
    values::{GivenValues, Raw},
};

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
