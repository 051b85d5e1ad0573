//! The values that were given, by key: the path of a key, the origin of a value, and the mistakes
//! in values. A TOML file is split into its values here, and the sections read their values from
//! [`Values`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use planck_common::similar;
use planck_providers::secret::Secret;
use toml::{
    Spanned, Value,
    de::{DeTable, DeValue},
};

use super::{
    keys,
    setting::{ConfiguredUrl, Setting},
};

/// The words of a key. In a pattern, the word `*` stands for any single word.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct KeyPath(Vec<String>);

impl KeyPath {
    /// Splits a text at its dots. No word may contain a dot.
    pub fn of(dotted: &str) -> Self {
        Self(dotted.split('.').map(Into::into).collect())
    }

    pub fn then(&self, word: &str) -> Self {
        let mut words = self.0.clone();
        words.push(word.into());
        Self(words)
    }

    pub fn words(&self) -> &[String] {
        &self.0
    }

    pub fn section(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    pub fn starts_with(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// Returns whether this pattern describes the key `path`.
    pub fn matches(&self, path: &Self) -> bool {
        self.0.len() == path.0.len() && self.covers(path)
    }

    /// Returns whether this pattern describes a key below `path`.
    pub fn is_below(&self, path: &Self) -> bool {
        self.0.len() > path.0.len() && self.covers(path)
    }

    fn covers(&self, path: &Self) -> bool {
        self.0
            .iter()
            .zip(&path.0)
            .all(|(pattern, word)| pattern == "*" || pattern == word)
    }

    /// Returns this pattern with each `*` replaced by the word of `path` at the same position, or
    /// by `NAME` if `path` is too short.
    pub fn filled_from(&self, path: &Self) -> Self {
        let fill = |(at, word): (usize, &String)| match word.as_str() {
            "*" => path.0.get(at).cloned().unwrap_or_else(|| "NAME".into()),
            _ => word.clone(),
        };
        Self(self.0.iter().enumerate().map(fill).collect())
    }

    /// Returns the name of the environment variable that sets the key: `PLANCK_<SECTION>_<KEY>`. A
    /// `*` of a pattern becomes `<NAME>`.
    pub fn variable(&self) -> String {
        let words = self.0.iter().map(|word| {
            if word == "*" {
                "<NAME>".into()
            } else {
                upper(word)
            }
        });
        words.fold("PLANCK".into(), |name, word| format!("{name}_{word}"))
    }
}

impl From<&str> for KeyPath {
    fn from(dotted: &str) -> Self {
        Self::of(dotted)
    }
}

fn upper(word: &str) -> String {
    word.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect()
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, word) in self.0.iter().enumerate() {
            let dot = if at == 0 { "" } else { "." };
            let bare = word == "*"
                || word
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
            if bare {
                write!(f, "{dot}{word}")?
            } else {
                write!(f, "{dot}{word:?}")?
            }
        }
        Ok(())
    }
}

/// The description of a key, as in the documentation.
#[derive(Debug, Clone)]
pub struct KeyDescription {
    pub pattern: KeyPath,
    pub kind: String,
    /// The default, or `None` if the key is unset or empty by default.
    pub default: Option<String>,
    pub about: String,
}

/// Returns the known key that is most similar to an unknown one, or `None` if none is similar
/// enough.
pub fn nearest(keys: &[KeyDescription], path: &KeyPath) -> Option<KeyPath> {
    let known = keys.iter().map(|key| key.pattern.filled_from(path));
    let mut known: Vec<_> = known.map(|known| (known.to_string(), known)).collect();
    let names = known.iter().map(|(name, _)| name.as_str());
    let meant = similar::nearest(&path.to_string(), names)?.to_owned();
    let at = known.iter().position(|(name, _)| *name == meant)?;
    Some(known.swap_remove(at).1)
}

/// The source of a value. Later variants take precedence over earlier ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueOrigin {
    Default,
    File {
        path: Arc<PathBuf>,
        line: usize,
    },
    Environment(String),
    Flag(String),
    /// A setting from the program that embeds the runtime.
    Program,
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
            Self::Program => f.write_str("the program"),
        }
    }
}

/// One mistake: where it is, which key it concerns, what is wrong, and how to correct it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    pub origin: ValueOrigin,
    pub key: Option<KeyPath>,
    pub what: String,
    pub remedy: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            origin,
            key,
            what,
            remedy,
        } = self;
        match key {
            Some(key) => write!(f, "{origin}: `{key}`: {what}; {remedy}"),
            None => write!(f, "{origin}: {what}; {remedy}"),
        }
    }
}

/// All mistakes. They are shown one per line, after a line with their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<ConfigProblem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        write!(
            f,
            "the configuration has {count} problem{}",
            if count == 1 { "" } else { "s" }
        )?;
        self.0
            .iter()
            .try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Problems {}

/// A value as it was written. This type does not implement `Debug`, because the value may be a
/// secret.
#[derive(Clone)]
pub enum Raw {
    Toml(toml::Value),
    /// The text of an environment variable, of a flag, or from a program that embeds the runtime.
    Text(String),
}

#[derive(Clone)]
pub struct GivenValues {
    pub raw: Raw,
    pub origin: ValueOrigin,
}

/// The context that is needed to interpret values, such as the home folder and the environment.
#[derive(Clone, Default)]
pub struct ValueContext {
    pub environment: BTreeMap<String, String>,
    pub home: Option<PathBuf>,
    /// The folder in which planck was started.
    pub folder: PathBuf,
}

/// For each key that was given, the value with the highest precedence. Also the mistakes that were
/// found so far.
pub struct Values {
    given: BTreeMap<KeyPath, GivenValues>,
    world: ValueContext,
    pub problems: Vec<ConfigProblem>,
}

impl Values {
    pub fn new(world: ValueContext) -> Self {
        Self {
            given: BTreeMap::new(),
            world,
            problems: Vec::new(),
        }
    }

    /// Sets the value of a key and replaces an earlier value. Sources must therefore be added from
    /// the lowest precedence to the highest.
    pub fn put(&mut self, key: KeyPath, given: GivenValues) {
        self.given.insert(key, given);
    }

    /// Reports a mistake in the value of a key, which may be its default.
    pub fn refuse(
        &mut self,
        key: impl Into<KeyPath>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let key = key.into();
        self.problems.push(ConfigProblem {
            origin: self.origin(&key),
            key: Some(key),
            what: what.into(),
            remedy: remedy.into(),
        });
    }

    pub fn origin(&self, key: &KeyPath) -> ValueOrigin {
        self.given
            .get(key)
            .map_or(ValueOrigin::Default, |given| given.origin.clone())
    }

    /// Returns the words that directly follow `at` in the keys that were given.
    pub fn children(&self, at: &KeyPath) -> BTreeSet<String> {
        let depth = at.words().len();
        let below = self.given.keys().filter(|key| key.starts_with(at));
        below
            .filter_map(|key| key.words().get(depth).cloned())
            .collect()
    }

    /// Reads the value of a key. Returns the default if no value was given. A value that cannot be
    /// read is recorded as a problem, and the default is returned.
    pub fn read<T: Setting>(&mut self, key: &KeyPath, default: T) -> T {
        let Some(given) = self.given.get(key) else {
            return default.at_home(&self.world);
        };
        match T::parse(&given.raw, &self.world) {
            Ok(value) => value,
            Err(wrong) => {
                self.refuse(key.clone(), wrong.what, wrong.remedy);
                default.at_home(&self.world)
            }
        }
    }
}

/// Returns all values of a file, and the problems with the parts that cannot be read.
pub fn parse_document(
    path: PathBuf,
    text: &str,
) -> (Vec<(KeyPath, GivenValues)>, Vec<ConfigProblem>) {
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
    let (values, problems) = parse_document(path.into(), text);
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
