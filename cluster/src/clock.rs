//! Reads the clock for the decision logic. This clock also counts while the machine is suspended.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use crate::moment::Moment;

/// Returns the current time. It does not jump if the time of day is set.
pub fn now() -> Moment {
    let since_boot = clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        .unwrap_or_default();
    Moment::from_millis(u64::try_from(since_boot.as_millis()).unwrap_or(u64::MAX))
}

/// Converts a moment to an `Instant` for timers. A past moment becomes the present.
pub fn instant(moment: Moment) -> Instant {
    Instant::now() + moment.since(now())
}
