//! The times of the protocol: RFC 3339 in UTC with milliseconds.

use std::{fmt, time::SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use time::{OffsetDateTime, format_description::well_known::Rfc3339, macros::format_description};

#[cfg(any(debug_assertions, feature = "simulation"))]
thread_local! {
    /// The clock of this thread, or `None` if it has the wall clock.
    static CLOCK: std::cell::Cell<Option<fn() -> Timestamp>> = const { std::cell::Cell::new(None) };
}

/// A time with a precision of milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(with = "String")
)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Returns the time from milliseconds since the Unix epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Returns the milliseconds since the Unix epoch.
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// Returns the present time of the wall clock, or 0 if the clock is before 1970.
    pub fn now() -> Self {
        #[cfg(any(debug_assertions, feature = "simulation"))]
        if let Some(clock) = CLOCK.get() {
            return clock();
        }
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    /// Makes `now` return the time of this clock on this thread from now on. It is public because the
    /// simulation of whole nodes is a test of `planck-node`. What is shipped has neither debug
    /// assertions nor the feature, and so no such clock.
    #[cfg(any(debug_assertions, feature = "simulation"))]
    #[doc(hidden)]
    pub fn simulate(clock: fn() -> Self) {
        CLOCK.set(Some(clock));
    }

    /// Returns the milliseconds from `earlier` to this time, or 0 if `earlier` is later, as after
    /// the clock was set back.
    pub fn millis_since(self, earlier: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }

    /// Parses a time in RFC 3339 in any time zone. Fractions of a millisecond are dropped.
    pub fn parse(text: &str) -> Result<Self, time::error::Parse> {
        let at = OffsetDateTime::parse(text, &Rfc3339)?;
        Ok(Self(
            i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX),
        ))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layout = format_description!(
            "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z"
        );
        let text = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000_000)
            .ok()
            .and_then(|at| at.format(layout).ok())
            .unwrap_or_default();
        f.write_str(&text)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form() {
        let at = Timestamp::from_millis(1_767_268_800_123);
        assert_eq!(at.to_string(), "2026-01-01T12:00:00.123Z");
        assert_eq!(Timestamp::parse("2026-01-01T12:00:00.123Z"), Ok(at));
        assert_eq!(Timestamp::parse("2026-01-01T13:00:00.123+01:00"), Ok(at));
    }
}
