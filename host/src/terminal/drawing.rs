//! Text for a terminal that contains no escape sequences except Planck's own.

use std::ops::{Add, AddAssign};

use super::clean;

/// Text that can be written to a terminal unchanged. Text from other sources can only be added
/// through [`clean`], which replaces control characters with visible symbols.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Drawing(String);

impl Drawing {
    /// Creates a drawing from a text, in which control characters are replaced.
    pub fn text(text: &str) -> Self {
        Self(clean(text).into_owned())
    }

    /// Creates a drawing from an escape sequence, which must be a constant in the source code.
    pub fn control(sequence: &'static str) -> Self {
        Self(sequence.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the size in bytes, for limits.
    pub fn size(&self) -> usize {
        self.0.len()
    }
}

impl From<&str> for Drawing {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<String> for Drawing {
    fn from(text: String) -> Self {
        Self::text(&text)
    }
}

impl Add<&str> for Drawing {
    type Output = Self;

    fn add(mut self, text: &str) -> Self {
        self += text;
        self
    }
}

impl Add<String> for Drawing {
    type Output = Self;

    fn add(self, text: String) -> Self {
        self + text.as_str()
    }
}

impl Add for Drawing {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += &other;
        self
    }
}

impl AddAssign<&str> for Drawing {
    fn add_assign(&mut self, text: &str) {
        self.0.push_str(&clean(text));
    }
}

impl AddAssign<&Self> for Drawing {
    fn add_assign(&mut self, other: &Self) {
        self.0.push_str(&other.0);
    }
}

impl FromIterator<Self> for Drawing {
    fn from_iter<T: IntoIterator<Item = Self>>(parts: T) -> Self {
        parts.into_iter().fold(Self::default(), Add::add)
    }
}
