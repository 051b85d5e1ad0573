//! Reads the clock for the decision logic. This clock also counts while the machine is suspended.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
#[cfg(any(debug_assertions, feature = "simulation"))]
use planck_common::Timestamp;
use tokio::time::Instant;

use crate::moment::Moment;

#[cfg(any(debug_assertions, feature = "simulation"))]
thread_local! {
    /// The moment from which the clock of this thread counts tokio's time, or `None` if it counts
    /// real time.
    static SIMULATED_FROM: std::cell::Cell<Option<Instant>> = const { std::cell::Cell::new(None) };
}

/// What the clock shows when a simulation begins.
#[cfg(any(debug_assertions, feature = "simulation"))]
const SIMULATION_BEGINS: Moment = Moment::from_millis(1_000_000);
/// The time of day at which a simulation begins.
#[cfg(any(debug_assertions, feature = "simulation"))]
const SIMULATION_DATE: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// Returns the current time. It does not jump if the time of day is set.
pub fn now() -> Moment {
    #[cfg(any(debug_assertions, feature = "simulation"))]
    if let Some(from) = SIMULATED_FROM.get() {
        return SIMULATION_BEGINS + from.elapsed();
    }
    let since_boot = clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        .unwrap_or_default();
    Moment::from_millis(u64::try_from(since_boot.as_millis()).unwrap_or(u64::MAX))
}

/// Converts a moment to an `Instant` for timers. A past moment becomes the present.
pub fn instant(moment: Moment) -> Instant {
    Instant::now() + moment.since(now())
}

/// Makes the clock and the time of day of this thread count tokio's time from now on, which a
/// simulation pauses. It is public because the simulation is a test of `planck-node`. What is
/// shipped has neither debug assertions nor the feature, and so no such clock.
#[cfg(any(debug_assertions, feature = "simulation"))]
#[doc(hidden)]
pub fn count_tokio_time() {
    SIMULATED_FROM.set(Some(Instant::now()));
    Timestamp::simulate(|| {
        let since = now().since(SIMULATION_BEGINS).as_millis();
        let since = i64::try_from(since).unwrap_or(i64::MAX);
        Timestamp::from_millis(SIMULATION_DATE.millis().saturating_add(since))
    });
}
