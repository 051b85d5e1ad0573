//! A handle that breaks a circular dependency: tools call the services, and the services host
//! agents with tools. The tools are built first, with a handle to the services that are built
//! later.

use std::sync::{Arc, OnceLock, Weak};

/// A handle to a value that is built later. It does not keep the value alive.
pub struct Late<T>(Arc<OnceLock<Weak<T>>>);

impl<T> Late<T> {
    /// Sets the value of the handle and of all its clones. Only the first call has an effect.
    pub fn set(&self, value: &Arc<T>) {
        let _ = self.0.set(Arc::downgrade(value));
    }

    /// Returns the value, or `None` if it is not built yet or was dropped.
    pub fn get(&self) -> Option<Arc<T>> {
        self.0.get()?.upgrade()
    }
}

impl<T> Default for Late<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Late<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_finds_the_value_as_long_as_it_lives() {
        let (late, value) = (Late::default(), Arc::new(7));
        let copy = late.clone();
        assert_eq!(copy.get(), None);
        late.set(&value);
        late.set(&Arc::new(8));
        assert_eq!(copy.get().as_deref(), Some(&7));
        drop(value);
        assert_eq!(copy.get(), None);
    }
}
