//! The configuration as text: every value with its origin.

use super::{key::KeyPath, load::Loaded, origin::ValueOrigin, setting::Field as _};

/// The current value of a key.
#[derive(Debug, Clone)]
pub struct ShownValue {
    pub key: KeyPath,
    /// The value, or `None` if it is unset.
    pub value: Option<String>,
    pub origin: ValueOrigin,
}

/// Returns the current value of every key, in the order of the sections. Of the keys with a name
/// that the user chooses, only the configured ones are returned. A secret that is set is returned
/// as `(set)`.
pub fn values(loaded: &Loaded) -> Vec<ShownValue> {
    let mut shown = Vec::new();
    loaded.config.show(&KeyPath::default(), &mut shown);
    shown
        .into_iter()
        .map(|(key, value)| ShownValue {
            origin: loaded.origin(&key),
            key,
            value,
        })
        .collect()
}
