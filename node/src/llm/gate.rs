//! Shared by all requests of this node to one server: limits how many run at once, and holds them
//! back after an overload.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until},
};

/// The longest that one answer holds the others back.
const LONGEST: Duration = Duration::from_secs(60);
/// The first hold where the provider names no time; it doubles with each further overload.
const FIRST: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Gate {
    places: Arc<Semaphore>,
    hold: Mutex<Hold>,
}

#[derive(Debug, Default)]
struct Hold {
    until: Option<Instant>,
    /// Overloads since a request went well.
    overloads: u32,
}

impl Gate {
    pub fn new(max_concurrent: usize) -> Self {
        let places = max_concurrent.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            places: Arc::new(Semaphore::new(places)),
            hold: Mutex::default(),
        }
    }

    /// Waits until a request may be sent; it is under way until the permit is dropped. A caller
    /// that gives up just drops the wait.
    pub async fn enter(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.places).acquire_owned().await.ok();
        while let Some(until) = self.held_until() {
            // Waiting requests are spread over time, because otherwise all would arrive at once.
            let spread = (until - Instant::now()) / 4;
            sleep_until(until + spread.mul_f64(fastrand::f64())).await;
        }
        permit
    }

    /// The provider is overloaded: nobody sends before the time it named.
    pub fn slow_down(&self, asked: Option<Duration>) {
        let mut hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        let own = FIRST * 2u32.saturating_pow(hold.overloads.min(8));
        hold.overloads = hold.overloads.saturating_add(1);
        let until = Instant::now() + asked.unwrap_or(own).min(LONGEST);
        hold.until = hold.until.max(Some(until));
    }

    /// A request was accepted.
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
    async fn an_overload_holds_everybody_back() {
        let gate = Gate::new(8);
        let start = Instant::now();
        gate.slow_down(Some(Duration::from_secs(8)));
        let (one, two) = tokio::join!(gate.enter(), gate.enter());
        assert!(one.is_some() && two.is_some());
        assert!(
            (8..=10).contains(&start.elapsed().as_secs()),
            "{:?}",
            start.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_has_a_bound_and_grows_only_while_overloaded() {
        let gate = Gate::new(1);
        gate.slow_down(Some(Duration::from_secs(100_000)));
        assert!(gate.held_until().unwrap() - Instant::now() <= LONGEST);
        tokio::time::advance(LONGEST).await;
        assert_eq!(gate.held_until(), None);
        gate.went_well();
        gate.slow_down(None);
        assert_eq!(gate.held_until().unwrap() - Instant::now(), FIRST);
        gate.slow_down(None);
        assert_eq!(gate.held_until().unwrap() - Instant::now(), FIRST * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_at_once() {
        let gate = Gate::new(1);
        let held = gate.enter().await;
        assert!(
            tokio::time::timeout(Duration::from_secs(1), gate.enter())
                .await
                .is_err()
        );
        drop(held);
        assert!(
            tokio::time::timeout(Duration::from_secs(1), gate.enter())
                .await
                .is_ok()
        );
    }
}
