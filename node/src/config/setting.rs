//! The types of values: how each is written in a file and in the environment, and how it is shown.

mod address;
mod compound;
mod words;

use std::{collections::BTreeMap, fmt, path::PathBuf};

pub use address::{ConfiguredUrl, ProjectPlace};
pub use compound::{Authorities, HeaderText, KeyChoice, KeyEntry, ModelsFile, ProxyRule, RuleList};
pub use planck_common::quantity::{Period, Size};
pub use words::{
    LimitReaction, Listen, LogFormat, Network, Sandbox, StoreKind, Synchronous, Unsandboxed,
};

use super::values::{KeyDescription, KeyPath, Raw, ValueContext, Values};

/// The reason why a value is not valid, and how to correct it.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidValue {
    pub what: String,
    pub remedy: String,
}

impl InvalidValue {
    fn kind<T: Setting>(raw: &Raw) -> Self {
        let found = match raw {
            Raw::Toml(toml::Value::String(text)) | Raw::Text(text) => format!("{text:?}"),
            Raw::Toml(value) => format!("`{}`", value.to_string().trim()),
        };
        Self {
            what: format!("{found} is not {}", T::kind()),
            remedy: format!("write {}", T::kind()),
        }
    }
}

/// A type of value that can be configured.
pub trait Setting: Sized + Clone {
    /// Returns a description of valid values that completes the sentence "write …".
    fn kind() -> String;
    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue>;
    /// Returns the value as text for users, or `None` if it is unset. Secrets are never shown.
    fn show(&self) -> Option<String>;
    /// Returns the value adapted to its context. Paths below `~` are expanded, and the address of
    /// the default store gets its place.
    fn at_home(self, _: &ValueContext) -> Self {
        self
    }
}

/// A field of a section: a single value, a nested section, or fields by name.
pub trait Field: Sized + Clone {
    /// Returns the descriptions of the keys at and below `at`, with `self` as their defaults.
    /// `about` is the description of this field in its section.
    fn keys(&self, at: &KeyPath, about: &'static str) -> Vec<KeyDescription>;
    /// Returns the field with the values that were given. Keys without a valid value keep the value
    /// of `self`, adapted to its context.
    fn read(self, at: &KeyPath, values: &mut Values) -> Self;
    /// Adds each value at and below `at`, as text, to `into`.
    fn show(&self, at: &KeyPath, into: &mut Vec<(KeyPath, Option<String>)>);
}

impl<T: Setting> Field for T {
    fn keys(&self, at: &KeyPath, about: &'static str) -> Vec<KeyDescription> {
        let about = about.split_whitespace().collect::<Vec<_>>().join(" ");
        let default = Setting::show(self).filter(|text| !text.is_empty());
        vec![KeyDescription {
            pattern: at.clone(),
            kind: T::kind(),
            default,
            about,
        }]
    }

    fn read(self, at: &KeyPath, values: &mut Values) -> Self {
        values.read(at, self)
    }

    fn show(&self, at: &KeyPath, into: &mut Vec<(KeyPath, Option<String>)>) {
        into.push((at.clone(), Setting::show(self)));
    }
}

/// Fields of the same type under names that the user chooses.
#[derive(Clone, PartialEq)]
pub struct NamedSettings<T>(pub BTreeMap<String, T>);

impl<T> Default for NamedSettings<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: fmt::Debug> fmt::Debug for NamedSettings<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Field + Default> Field for NamedSettings<T> {
    fn keys(&self, at: &KeyPath, about: &'static str) -> Vec<KeyDescription> {
        T::default().keys(&at.then("*"), about)
    }

    fn read(self, at: &KeyPath, values: &mut Values) -> Self {
        let names = values.children(at);
        Self(
            names
                .into_iter()
                .map(|name| (name.clone(), T::default().read(&at.then(&name), values)))
                .collect(),
        )
    }

    fn show(&self, at: &KeyPath, into: &mut Vec<(KeyPath, Option<String>)>) {
        self.0
            .iter()
            .for_each(|(name, value)| value.show(&at.then(name), into));
    }
}

/// Returns the text of a value, or `None` if the value is not a text.
fn text(raw: &Raw) -> Option<&str> {
    match raw {
        Raw::Toml(value) => value.as_str(),
        Raw::Text(text) => Some(text),
    }
}

impl Setting for String {
    fn kind() -> String {
        "a text".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        text(raw)
            .map(Into::into)
            .ok_or_else(|| InvalidValue::kind::<Self>(raw))
    }

    fn show(&self) -> Option<String> {
        Some(self.clone())
    }
}

impl Setting for bool {
    fn kind() -> String {
        "true or false".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        let found = match raw {
            Raw::Toml(value) => value.as_bool(),
            Raw::Text(text) => match text.as_str() {
                "true" | "1" | "yes" => Some(true),
                "false" | "0" | "no" => Some(false),
                _ => None,
            },
        };
        found.ok_or_else(|| InvalidValue::kind::<Self>(raw))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

macro_rules! whole {
    ($($type:ty),+) => {$(
        impl Setting for $type {
            fn kind() -> String {
                "a whole number".into()
            }

            fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
                let found = match raw {
                    Raw::Toml(value) => value.as_integer().and_then(|number| number.try_into().ok()),
                    Raw::Text(text) => text.replace('_', "").parse().ok(),
                };
                found.ok_or_else(|| InvalidValue::kind::<Self>(raw))
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )+};
}

whole!(u32, u64, usize);

impl Setting for f64 {
    fn kind() -> String {
        "a number".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        let found = match raw {
            Raw::Toml(toml::Value::Integer(number)) => number.to_string().parse().ok(),
            Raw::Toml(value) => value.as_float(),
            Raw::Text(text) => text.parse().ok(),
        };
        found
            .filter(|number: &f64| number.is_finite() && *number >= 0.0)
            .ok_or_else(|| InvalidValue::kind::<Self>(raw))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Setting for PathBuf {
    fn kind() -> String {
        "a path".into()
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        let text = text(raw)
            .filter(|text| !text.is_empty())
            .ok_or_else(|| InvalidValue::kind::<Self>(raw))?;
        Ok(Self::from(text).at_home(world))
    }

    fn show(&self) -> Option<String> {
        Some(self.display().to_string())
    }

    fn at_home(self, world: &ValueContext) -> Self {
        match (self.strip_prefix("~"), &world.home) {
            (Ok(rest), Some(home)) => home.join(rest),
            (Ok(_), None) | (Err(_), _) => self,
        }
    }
}

impl<T: Setting> Setting for Option<T> {
    fn kind() -> String {
        T::kind()
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        T::parse(raw, world).map(Some)
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(Setting::show)
    }

    fn at_home(self, world: &ValueContext) -> Self {
        self.map(|value| value.at_home(world))
    }
}

/// In an environment variable, a flag or a setting of the embedding program, commas separate the
/// items of a list.
impl<T: Setting> Setting for Vec<T> {
    fn kind() -> String {
        format!("a list, each {}", T::kind())
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        match raw {
            Raw::Toml(toml::Value::Array(items)) => items
                .iter()
                .map(|item| T::parse(&Raw::Toml(item.clone()), world))
                .collect(),
            Raw::Toml(_) => Err(InvalidValue::kind::<Self>(raw)),
            Raw::Text(text) => {
                let words = text
                    .split(',')
                    .map(str::trim)
                    .filter(|word| !word.is_empty());
                words
                    .map(|word| T::parse(&Raw::Text(word.into()), world))
                    .collect()
            }
        }
    }

    fn show(&self) -> Option<String> {
        Some(
            self.iter()
                .filter_map(Setting::show)
                .collect::<Vec<_>>()
                .join(", "),
        )
    }

    fn at_home(self, world: &ValueContext) -> Self {
        self.into_iter().map(|value| value.at_home(world)).collect()
    }
}
