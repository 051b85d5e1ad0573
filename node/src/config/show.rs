//! The configuration as text: every value with its origin, and the table of all keys for the
//! documentation.

use super::{key::KeyPath, load::Loaded, origin::ValueOrigin, setting::Field as _};

/// A value that is in force.
#[derive(Debug, Clone)]
pub struct ShownValue {
    pub key: KeyPath,
    /// The value, or `None` if it is unset.
    pub value: Option<String>,
    pub origin: ValueOrigin,
}

/// Returns every value in force, in the order of the sections. Of a secret, only the fact that it
/// is set is shown.
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
