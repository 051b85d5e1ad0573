//! Whether this node may begin anything now: a model call, a tool, taking up an input. What runs
//! goes on without it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// A cheap handle. The permit ends by itself at a time that whoever gives it moves on: a node that
/// was stopped and goes on finds it ended before anything else, and so does one whose giver hangs.
#[derive(Debug, Clone)]
pub struct Permit(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// In milliseconds of the clock that goes on while the machine sleeps.
    until: AtomicU64,
    given: Notify,
    /// Cancelled when agents are to be handed over: no model is called any more.
    draining: CancellationToken,
}

impl Permit {
    /// Of a node that works alone.
    pub fn always() -> Self {
        Self::until(u64::MAX)
    }

    /// Until it is given.
    pub fn withheld() -> Self {
        Self::until(0)
    }

    fn until(until: u64) -> Self {
        Self(Arc::new(Inner {
            until: AtomicU64::new(until),
            given: Notify::new(),
            draining: CancellationToken::new(),
        }))
    }

    /// Gives it until a time, or takes it back when that is over.
    pub fn give_until(&self, millis: u64) {
        let was_given = self.is_given();
        self.0.until.store(millis, Ordering::SeqCst);
        if !was_given && self.is_given() {
            self.0.given.notify_waiters();
        }
    }

    pub fn take_back(&self) {
        self.0.until.store(0, Ordering::SeqCst);
    }

    /// Cancelled when agents are to be handed over: no model is called any more.
    pub fn draining(&self) -> &CancellationToken {
        &self.0.draining
    }

    pub fn is_given(&self) -> bool {
        let until = self.0.until.load(Ordering::SeqCst);
        until == u64::MAX || now() < Duration::from_millis(until)
    }

    /// Returns when it is given.
    pub async fn given(&self) {
        loop {
            let mut given = std::pin::pin!(self.0.given.notified());
            given.as_mut().enable();
            if self.is_given() {
                return;
            }
            given.await;
        }
    }
}

fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_millis(millis: u64) -> u64 {
        u64::try_from(now().as_millis()).unwrap() + millis
    }

    #[tokio::test]
    async fn who_waits_goes_on_when_it_is_given() {
        let permit = Permit::withheld();
        let waiting = tokio::spawn({
            let permit = permit.clone();
            async move { permit.given().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        permit.give_until(in_millis(60_000));
        waiting.await.unwrap();
        permit.take_back();
        assert!(!permit.is_given());
        assert!(Permit::always().is_given());
    }

    #[tokio::test]
    async fn it_ends_by_itself_and_is_given_anew() {
        let permit = Permit::withheld();
        permit.give_until(in_millis(30));
        while permit.is_given() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let waiting = permit.clone();
        let waiting = tokio::spawn(async move { waiting.given().await });
        tokio::task::yield_now().await;
        permit.give_until(in_millis(60_000));
        waiting.await.unwrap();
    }
}
