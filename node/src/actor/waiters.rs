//! The callers on this node that wait for the outcome of an input, or of any input of a session. A
//! notification may be lost, so a caller also reads the store at intervals.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Notify, futures::Notified};

/// The waiters, by the input or the session whose news they wait for.
#[derive(Debug)]
pub struct Waiters<K: Eq + Hash> {
    waiting: Mutex<HashMap<K, Arc<Notify>>>,
}

/// A registered waiter. It is unregistered when it is dropped.
#[derive(Debug)]
pub struct Waiter<'a, K: Eq + Hash> {
    waiters: &'a Waiters<K>,
    about: K,
    news: Arc<Notify>,
}

impl<K: Eq + Hash> Default for Waiters<K> {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash + Clone> Waiters<K> {
    /// Registers a waiter. The caller must register the waiter before it stores the input or reads
    /// the outcome, because a notification could be missed otherwise.
    pub fn register(&self, about: K) -> Waiter<'_, K> {
        let news = Arc::clone(self.lock().entry(about.clone()).or_default());
        Waiter {
            waiters: self,
            about,
            news,
        }
    }

    /// Notifies the waiters that there is an outcome now.
    pub fn settle(&self, about: &K) {
        if let Some(news) = self.lock().get(about) {
            news.notify_waiters();
            news.notify_one();
        }
    }
}

impl<K: Eq + Hash> Waiters<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Arc<Notify>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Waiter<'_, K> {
    /// Waits for a notification that an outcome may be available. A notification after this call is
    /// not missed, even if the future is awaited later.
    pub fn news(&self) -> Notified<'_> {
        self.news.notified()
    }
}

impl<K: Eq + Hash> Drop for Waiter<'_, K> {
    fn drop(&mut self) {
        let mut waiting = self.waiters.lock();
        // The map and this waiter hold one reference each. If there are no more, no other waiter is
        // registered for this.
        if Arc::strong_count(&self.news) <= 2 {
            waiting.remove(&self.about);
        }
    }
}

#[cfg(test)]
mod tests {
    use planck_common::InputId;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_notification_reaches_the_remaining_waiter() {
        let (waiters, input) = (Waiters::default(), InputId::parse("q").unwrap());
        let (gone, left) = (
            waiters.register(input.clone()),
            waiters.register(input.clone()),
        );
        drop(gone);
        waiters.settle(&input);
        tokio::time::timeout(std::time::Duration::from_secs(1), left.news())
            .await
            .unwrap();
        drop(left);
        assert!(waiters.lock().is_empty());
    }
}
