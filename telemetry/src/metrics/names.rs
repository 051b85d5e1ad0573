//! Labels with values from users or providers. A limited number of values get their own series, and
//! all others share one.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use opentelemetry::StringValue;

/// The maximum number of values of one label that get their own series.
const MOST: usize = 100;

/// The maximum length in bytes of a value that gets its own series.
const LONGEST: usize = 128;

/// The label value of the series that all other values share.
const OTHER: &str = "other";

/// The values of one label that have their own series.
#[derive(Debug, Default)]
pub struct LabelValues(Mutex<HashSet<Arc<str>>>);

impl LabelValues {
    /// Returns the label value for a name: the name itself, or [`OTHER`] if the name is too long or
    /// [`MOST`] other names already have their own series.
    pub fn of(&self, name: &str) -> StringValue {
        if name.len() > LONGEST {
            return OTHER.into();
        }
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seen.get(name) {
            return Arc::clone(known).into();
        }
        if seen.len() >= MOST {
            return OTHER.into();
        }
        let new: Arc<str> = name.into();
        seen.insert(Arc::clone(&new));
        new.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_the_limit_share_one() {
        let names = LabelValues::default();
        for number in 0..MOST {
            assert_eq!(names.of(&number.to_string()).as_str(), number.to_string());
        }
        assert_eq!(names.of("one more").as_str(), OTHER);
        assert_eq!(names.of("7").as_str(), "7");
        assert_eq!(
            LabelValues::default().of(&"x".repeat(LONGEST + 1)).as_str(),
            OTHER
        );
    }
}
