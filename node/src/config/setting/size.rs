//! A number of bytes: a number and a unit.

use std::{fmt, str::FromStr};

use super::{InvalidValue, Setting, plain::text};
use crate::config::values::{Raw, ValueContext};

/// A number of bytes, written as `4096`, `64KiB`, `512MiB` or `4GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// The units with their exponents of two, from the largest to the smallest.
const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("", 0)];

impl Size {
    pub const fn mebibytes(mebibytes: u64) -> Self {
        Self(mebibytes << 20)
    }
}

/// The error for a text that is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a size like 4096, 64KiB, 512MiB or 4GiB")]
pub struct MalformedSize(String);

impl FromStr for Size {
    type Err = MalformedSize;

    fn from_str(text: &str) -> Result<Self, MalformedSize> {
        let split = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let bytes = || {
            let (_, power) = UNITS.into_iter().find(|(name, _)| *name == unit.trim())?;
            number.parse::<u64>().ok()?.checked_mul(1 << power)
        };
        bytes().map(Self).ok_or_else(|| MalformedSize(text.into()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = UNITS
            .into_iter()
            .find(|(_, power)| self.0 != 0 && self.0.is_multiple_of(1 << power));
        let (unit, power) = fits.unwrap_or(("", 0));
        write!(f, "{}{unit}", self.0 >> power)
    }
}

impl Setting for Size {
    fn kind() -> String {
        "a size like 4096, 64KiB, 512MiB or 4GiB".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        let bytes = match raw {
            Raw::Toml(value) => value
                .as_integer()
                .and_then(|bytes| u64::try_from(bytes).ok())
                .map(Self),
            Raw::Text(_) => None,
        };
        bytes
            .or_else(|| text(raw)?.parse().ok())
            .ok_or_else(|| InvalidValue::kind::<Self>(raw))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_trip_in_their_largest_unit() {
        for (text, shown) in [
            ("0", "0"),
            ("4096", "4KiB"),
            ("1000", "1000"),
            ("512MiB", "512MiB"),
            ("2048 MiB", "2GiB"),
        ] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), shown);
        }
        for bad in ["", "GiB", "4G", "1.5GiB", "-1", "99999999999TiB"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
        assert_eq!(Size::mebibytes(4096).to_string(), "4GiB");
    }
}
