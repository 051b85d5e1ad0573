//! The path of a value, such as `section.key`, and the description of each key.

use std::fmt;

use planck_common::similar;

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
