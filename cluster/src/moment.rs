//! The time, which decision logic receives as an argument instead of reading a clock.

use std::{ops::Add, time::Duration};

/// A point on the clock of this machine that also counts while the machine is suspended
/// (`CLOCK_BOOTTIME`), in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    pub(crate) const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    pub(crate) const fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`, or zero if this moment is before it.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Returns the moment `ago` before this one, or the first one of the clock.
    pub(crate) fn before(self, ago: Duration) -> Self {
        Self(self.0.saturating_sub(whole_millis(ago)))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(whole_millis(later)))
    }
}

fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
