//! Who on this node waits for an input to get its outcome. Hints only: a waiter also looks in the
//! store now and then.

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

/// One who waits; forgotten when dropped.
#[derive(Debug)]
pub struct Waiter<'a> {
    waiters: &'a Waiters,
    input: InputId,
    news: Arc<Notify>,
}

impl Waiters {
    /// Registers before the question is put, so that no news is missed.
    pub fn register(&self, input: InputId) -> Waiter<'_> {
        let news = Arc::clone(self.lock().entry(input.clone()).or_default());
        Waiter {
            waiters: self,
            input,
            news,
        }
    }

    /// The input has its outcome.
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
    /// Returns when there may be news.
    pub async fn news(&self) {
        self.news.notified().await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waiters.lock();
        // One in the map and one here: nobody else waits for the same.
        if Arc::strong_count(&self.news) <= 2 {
            waiting.remove(&self.input);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn news_reach_whoever_waits_and_is_left() {
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
