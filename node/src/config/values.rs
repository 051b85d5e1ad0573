//! All values that were given, by key. The sections read their values from [`Values`].

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use super::{
    key::KeyPath,
    origin::{ConfigProblem, ValueOrigin},
    setting::Setting,
};

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
                self.problems.push(ConfigProblem {
                    origin: given.origin.clone(),
                    key: Some(key.clone()),
                    what: wrong.what,
                    remedy: wrong.remedy,
                });
                default.at_home(&self.world)
            }
        }
    }
}
