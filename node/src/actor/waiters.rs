//! The callers on this node that wait for the outcome of an input. A notification may be lost, so a
//! caller also reads the store at intervals.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use planck_common::InputId;
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub struct Waiters {
    waiting: Mutex<HashMap<InputId, Arc<Notify>>>,
}

/// A registered waiter. It is unregistered when it is dropped.
#[derive(Debug)]
pub struct Waiter<'a> {
    waiters: &'a Waiters,
    input: InputId,
    news: Arc<Notify>,
}

impl Waiters {
    /// Registers a waiter. The caller must register the waiter before it stores the input, because
    /// a notification could be missed otherwise.
    pub fn register(&self, input: InputId) -> Waiter<'_> {
        let news = Arc::clone(self.lock().entry(input.clone()).or_default());
        Waiter {
            waiters: self,
            input,
            news,
        }
    }

    /// Notifies the waiters that the input now has an outcome.
    pub fn settle(&self, input: &InputId) {
        if let Some(news) = self.lock().get(input) {
            news.notify_waiters();
            news.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<InputId, Arc<Notify>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter<'_> {
    /// Waits for a notification that the outcome may be available.
    pub async fn news(&self) {
        self.news.notified().await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waiters.lock();
        // The map and this waiter hold one reference each. If there are no more, no other waiter is
        // registered for this input.
        if Arc::strong_count(&self.news) <= 2 {
            waiting.remove(&self.input);
        }
    }
}

#[cfg(test)]
mod tests {
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
