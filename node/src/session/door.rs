//! How many agents a node takes in: those that are here and those that are on their way in are within its capacity.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub struct Door {
    arriving: Mutex<u32>,
}

/// A place that is kept until the agent is in, or does not come.
#[derive(Debug)]
pub struct Guest<'a> {
    door: &'a Door,
    is_in: bool,
}

impl Door {
    /// How many are on their way in.
    pub fn arriving(&self) -> u32 {
        *self.lock()
    }

    /// Keeps a place if there is one: `inside` tells how many are here.
    pub fn enter(&self, capacity: u32, inside: impl FnOnce() -> usize) -> Option<Guest<'_>> {
        let mut arriving = self.lock();
        let taken = u32::try_from(inside()).unwrap_or(u32::MAX).saturating_add(*arriving);
        if taken >= capacity {
            return None;
        }
        *arriving += 1;
        Some(Guest { door: self, is_in: false })
    }

    fn lock(&self) -> MutexGuard<'_, u32> {
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guest<'_> {
    /// The agent comes in; nobody sees it counted twice or not at all.
    pub fn comes_in(mut self, start: impl FnOnce()) {
        let mut arriving = self.door.lock();
        start();
        *arriving = arriving.saturating_sub(1);
        self.is_in = true;
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        if !self.is_in {
            let mut arriving = self.door.lock();
            *arriving = arriving.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_kept_and_given_back() {
        let door = Door::default();
        let mut inside = 0;
        let one = door.enter(2, || inside).unwrap();
        let other = door.enter(2, || inside).unwrap();
        assert!(door.enter(2, || inside).is_none());
        drop(other);
        assert_eq!(door.arriving(), 1);
        one.comes_in(|| inside += 1);
        assert_eq!((door.arriving(), inside), (0, 1));
        assert!(door.enter(2, || inside).is_some());
        assert!(door.enter(1, || inside).is_none());
    }
}
