//! Limits how many requests of this node to one endpoint run at once, and delays requests after an
//! overload. Each endpoint has its own limit.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until},
};

/// The maximum time for which one overload delays other requests.
const LONGEST: Duration = Duration::from_secs(60);
/// The delay after the first overload if the provider names no time. It doubles with each further
/// overload, up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct ConcurrencyLimit {
    places: Arc<Semaphore>,
    hold: Mutex<GateHold>,
}

#[derive(Debug, Default)]
struct GateHold {
    until: Option<Instant>,
    /// The number of overloads since the last request that the provider accepted.
    overloads: u32,
}

impl ConcurrencyLimit {
    pub fn new(max_concurrent: usize) -> Self {
        let places = max_concurrent.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            places: Arc::new(Semaphore::new(places)),
            hold: Mutex::default(),
        }
    }

    /// Waits until a request may be sent. The request counts as running until the returned permit
    /// is dropped. Dropping the future cancels the wait.
    pub async fn enter(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.places).acquire_owned().await.ok();
        while let Some(until) = self.held_until() {
            // Each waiting request sleeps for a random additional time, because otherwise all of
            // them would be sent at once.
            let spread = (until - Instant::now()) / 4;
            sleep_until(until + spread.mul_f64(fastrand::f64())).await;
        }
        permit
    }

    /// Records that the provider is overloaded. No further request is sent for `wait`, or for a
    /// default delay if the provider named none, but at most for [`LONGEST`].
    pub fn slow_down(&self, wait: Option<Duration>) {
        let mut hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        let own = FIRST * 2u32.saturating_pow(hold.overloads.min(8));
        hold.overloads = hold.overloads.saturating_add(1);
        let until = Instant::now() + wait.unwrap_or(own).min(LONGEST);
        hold.until = hold.until.max(Some(until));
    }

    /// Records that the provider accepted a request, which resets the delay for the next overload.
    pub fn went_well(&self) {
        let mut hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        hold.overloads = 0;
    }

    fn held_until(&self) -> Option<Instant> {
        let mut hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        hold.until = hold.until.filter(|until| *until > Instant::now());
        hold.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_overload_delays_every_request() {
        let concurrency = ConcurrencyLimit::new(8);
        let start = Instant::now();
        concurrency.slow_down(Some(Duration::from_secs(8)));
        let (one, two) = tokio::join!(concurrency.enter(), concurrency.enter());
        assert!(one.is_some() && two.is_some());
        assert!(
            (8..=10).contains(&start.elapsed().as_secs()),
            "{:?}",
            start.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_is_bounded_and_grows_only_while_overloaded() {
        let concurrency = ConcurrencyLimit::new(1);
        concurrency.slow_down(Some(Duration::from_secs(100_000)));
        assert!(concurrency.held_until().unwrap() - Instant::now() <= LONGEST);
        tokio::time::advance(LONGEST).await;
        assert_eq!(concurrency.held_until(), None);
        concurrency.went_well();
        concurrency.slow_down(None);
        assert_eq!(concurrency.held_until().unwrap() - Instant::now(), FIRST);
        concurrency.slow_down(None);
        assert_eq!(
            concurrency.held_until().unwrap() - Instant::now(),
            FIRST * 2
        );
    }

    #[tokio::test(start_paused = true)]
    async fn requests_at_once_are_limited() {
        let concurrency = ConcurrencyLimit::new(1);
        let held = concurrency.enter().await;
        assert!(
            tokio::time::timeout(Duration::from_secs(1), concurrency.enter())
                .await
                .is_err()
        );
        drop(held);
        assert!(
            tokio::time::timeout(Duration::from_secs(1), concurrency.enter())
                .await
                .is_ok()
        );
    }
}
