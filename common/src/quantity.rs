//! Quantities that people write as a number with a unit: lengths of time and numbers of bytes.

use std::{fmt, str::FromStr, time::Duration};

/// A length of time, written as `500ms`, `30s`, `10m`, `2h` or `30d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

/// A number of bytes, written as `4096`, `64KiB`, `512MiB` or `4GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Units with their scales, from the largest to the smallest. The smallest has the scale 1.
type Units = [(&'static str, u64); 5];

/// The units of time in milliseconds.
const TIMES: Units = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// The units of sizes in bytes.
const SIZES: Units = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("", 1),
];

impl Period {
    /// The description of a valid text, for errors and for the page of the configuration.
    pub const KIND: &str = "a time like 500ms, 30s, 10m, 2h or 30d";

    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl Size {
    /// The description of a valid text, for errors and for the page of the configuration.
    pub const KIND: &str = "a size like 4096, 64KiB, 512MiB or 4GiB";

    pub const fn mebibytes(mebibytes: u64) -> Self {
        Self(mebibytes << 20)
    }
}

/// The error for a text that is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not {1}")]
pub struct MalformedQuantity(String, &'static str);

impl FromStr for Period {
    type Err = MalformedQuantity;

    fn from_str(text: &str) -> Result<Self, MalformedQuantity> {
        parse(text, TIMES)
            .map(Self::millis)
            .ok_or_else(|| MalformedQuantity(text.into(), Self::KIND))
    }
}

impl FromStr for Size {
    type Err = MalformedQuantity;

    fn from_str(text: &str) -> Result<Self, MalformedQuantity> {
        parse(text, SIZES)
            .map(Self)
            .ok_or_else(|| MalformedQuantity(text.into(), Self::KIND))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        write(millis, TIMES, f)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(self.0, SIZES, f)
    }
}

/// Returns the amount in the smallest unit, or `None` if the text is no whole number with one of
/// the units.
fn parse(text: &str, units: Units) -> Option<u64> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let (_, scale) = units.into_iter().find(|(name, _)| *name == unit.trim())?;
    number.parse::<u64>().ok()?.checked_mul(scale)
}

/// Writes an amount in the largest unit in which it is a whole number.
fn write(amount: u64, units: Units, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let fits =
        |(_, scale): &(&str, u64)| *scale == 1 || (amount != 0 && amount.is_multiple_of(*scale));
    let (unit, scale) = units.into_iter().find(fits).unwrap_or(("", 1));
    write!(f, "{}{unit}", amount / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_round_trip_in_their_largest_unit() {
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
        for (text, shown) in [
            ("0", "0"),
            ("4096", "4KiB"),
            ("1000", "1000"),
            ("512MiB", "512MiB"),
            ("2048 MiB", "2GiB"),
        ] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), shown);
        }
        assert_eq!(Size::mebibytes(4096).to_string(), "4GiB");
    }

    #[test]
    fn other_texts_are_no_quantities() {
        for bad in ["", "5", "s", "5 weeks", "-1s", "99999999999999999d"] {
            assert!(bad.parse::<Period>().is_err(), "{bad}");
        }
        for bad in ["", "GiB", "4G", "1.5GiB", "-1", "99999999999TiB"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }
}
