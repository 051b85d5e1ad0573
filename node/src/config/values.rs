//! All given values by key, in the form in which sections read them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use super::{
    key::KeyPath,
    origin::{ConfigProblem, ValueOrigin},
    setting::Setting,
};

/// A value as it was written. This type and all that contain it have no `Debug`, because the value
/// may be a secret.
#[derive(Clone)]
pub enum Raw {
    Toml(toml::Value),
    /// The text of a variable or a flag.
    Text(String),
}

#[derive(Clone)]
pub struct GivenValues {
    pub raw: Raw,
    pub origin: ValueOrigin,
}

/// The surroundings that values may refer to.
#[derive(Clone, Default)]
pub struct ValueContext {
    pub environment: BTreeMap<String, String>,
    pub home: Option<PathBuf>,
    /// The folder that planck was started in.
    pub folder: PathBuf,
}

/// The values that take precedence, and the mistakes that were found while reading them.
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

    /// Adds a value, in place of one that was given before.
    pub fn put(&mut self, key: KeyPath, given: GivenValues) {
        self.given.insert(key, given);
    }

    pub fn origin(&self, key: &KeyPath) -> ValueOrigin {
        self.given
            .get(key)
            .map_or(ValueOrigin::Default, |given| given.origin.clone())
    }

    /// Returns the names of the values directly below `at`.
    pub fn children(&self, at: &KeyPath) -> BTreeSet<String> {
        let depth = at.words().len();
        let below = self.given.keys().filter(|key| key.starts_with(at));
        below
            .filter_map(|key| key.words().get(depth).cloned())
            .collect()
    }

    /// Reads the value of a key. Returns the default if no value was given or the value cannot be
    /// read.
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
