//! A length of time: a number and a unit.

use std::{fmt, str::FromStr, time::Duration};

/// A length of time, written as `500ms`, `30s`, `10m`, `2h` or `30d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

/// The units in milliseconds, from the longest to the shortest.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

impl Period {
    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

/// The error for a text that is not a length of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a time like 500ms, 30s, 10m, 2h or 30d")]
pub struct MalformedPeriod(String);

impl FromStr for Period {
    type Err = MalformedPeriod;

    fn from_str(text: &str) -> Result<Self, MalformedPeriod> {
        let split = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let millis = || {
            let (_, scale) = UNITS.into_iter().find(|(name, _)| *name == unit.trim())?;
            number.parse::<u64>().ok()?.checked_mul(scale)
        };
        millis()
            .map(Self::millis)
            .ok_or_else(|| MalformedPeriod(text.into()))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        let fits = UNITS
            .into_iter()
            .find(|(_, scale)| millis != 0 && millis % scale == 0);
        let (unit, scale) = fits.unwrap_or(("ms", 1));
        write!(f, "{}{unit}", millis / scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_round_trip_in_their_largest_unit() {
        for (text, shown) in [
            ("500ms", "500ms"),
            ("30s", "30s"),
            ("120s", "2m"),
            ("36h", "36h"),
            ("48h", "2d"),
            ("0s", "0ms"),
        ] {
            assert_eq!(text.parse::<Period>().unwrap().to_string(), shown);
        }
        for bad in ["", "5", "s", "5 weeks", "-1s", "99999999999999999d"] {
            assert!(bad.parse::<Period>().is_err(), "{bad}");
        }
    }
}
