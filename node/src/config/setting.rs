//! The types of values: how each is written in a file and in the environment, and how it is shown.

mod choice;
mod keys;
mod listen;
mod models_file;
mod outside;
mod period;
mod permissions;
mod plain;
mod references;
mod size;

use std::{collections::BTreeMap, fmt};

pub use choice::{LimitReaction, LogFormat, Network, Sandbox, StoreKind, Synchronous, Unsandboxed};
pub use keys::{KeyChoice, KeyEntry};
pub use listen::Listen;
pub use models_file::ModelsFile;
pub use outside::{Authorities, HeaderText, ProxyRule};
pub use permissions::RuleList;
pub use planck_common::period::Period;
pub use references::ConfiguredUrl;
pub use size::Size;

use super::{
    key::{KeyDescription, KeyPath},
    values::{Raw, ValueContext, Values},
};

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

/// Returns a list as JSON for users, or an empty text if the list is empty.
fn shown_list<T: serde::Serialize>(list: &[T]) -> String {
    match list.is_empty() {
        true => String::new(),
        false => planck_common::event::json(&list),
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
