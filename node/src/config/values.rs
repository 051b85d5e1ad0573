//! All values that were given, by key, as sections read them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use super::{
    key::KeyPath,
    origin::{Origin, Problem},
    setting::Setting,
};

/// A value as it was written. Like all that holds one it has no `Debug`: it may be a secret.
#[derive(Clone)]
pub enum Raw {
    Toml(toml::Value),
    /// From the environment or a flag.
    Text(String),
}

#[derive(Clone)]
pub struct Given {
    pub raw: Raw,
    pub origin: Origin,
}

/// What values may refer to.
#[derive(Clone, Default)]
pub struct World {
    pub environment: BTreeMap<String, String>,
    pub home: Option<PathBuf>,
    /// The folder planck was started in.
    pub folder: PathBuf,
}

/// The values that win, and the problems found in reading them.
pub struct Values {
    given: BTreeMap<KeyPath, Given>,
    world: World,
    pub problems: Vec<Problem>,
}

impl Values {
    pub fn new(world: World) -> Self {
        Self {
            given: BTreeMap::new(),
            world,
            problems: Vec::new(),
        }
    }

    /// Lays a value over what was given before.
    pub fn put(&mut self, key: KeyPath, given: Given) {
        self.given.insert(key, given);
    }

    pub fn given(&self) -> &BTreeMap<KeyPath, Given> {
        &self.given
    }

    pub fn origin(&self, key: &KeyPath) -> Origin {
        self.given
            .get(key)
            .map_or(Origin::Default, |given| given.origin.clone())
    }

    /// The names of what was given directly below `at`.
    pub fn children(&self, at: &KeyPath) -> BTreeSet<String> {
        let depth = at.words().len();
        let below = self.given.keys().filter(|key| key.starts_with(at));
        below
            .filter_map(|key| key.words().get(depth).cloned())
            .collect()
    }

    /// The value of a key; the default where none was given, or one that cannot be read.
    pub fn read<T: Setting>(&mut self, key: &KeyPath, default: T) -> T {
        let Some(given) = self.given.get(key) else {
            return default.at_home(&self.world);
        };
        match T::parse(&given.raw, &self.world) {
            Ok(value) => value,
            Err(wrong) => {
                self.problems.push(Problem {
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
