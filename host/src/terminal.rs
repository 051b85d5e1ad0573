//! Makes text from other sources safe to write to a terminal. This module does no I/O.
//!
//! A terminal executes escape sequences, which can move the cursor, write to the clipboard and
//! rename the window. Bidirectional controls and invisible characters can make a line look like a
//! different one. This module replaces each of them with a visible symbol and does not remove it,
//! so the reader notices the attempt. It removes only the carriage return of a line end.

mod log;

use std::{
    borrow::Cow,
    ops::{Add, AddAssign},
};

pub use self::log::LogWriter;

/// Replaces all characters that control a terminal or are invisible, except line feeds and tabs,
/// with visible symbols. Removes a carriage return before a line feed.
pub fn clean(text: &str) -> Cow<'_, str> {
    rewrite(text, |c, next| match c {
        '\n' | '\t' => None,
        '\r' if next == Some('\n') => Some(String::new()),
        c => Some(visible(c)),
    })
}

/// Does the same as [`clean`], but also replaces line ends and tabs, for text that must stay on one
/// line, such as a table cell.
pub fn clean_line(text: &str) -> Cow<'_, str> {
    rewrite(text, |c, _| Some(visible(c)))
}

/// Escapes invisible and control characters in the strings of JSON. The meaning of the JSON does
/// not change.
///
/// Line feeds and tabs are kept, and a carriage return becomes a space, because valid JSON contains
/// them only between its tokens. If the text is not valid JSON, all other hidden characters are
/// escaped everywhere.
pub fn clean_json(text: &str) -> Cow<'_, str> {
    rewrite(text, |c, _| match c {
        '\n' | '\t' => None,
        '\r' => Some(" ".into()),
        c => Some(
            c.encode_utf16(&mut [0; 2])
                .iter()
                .map(|unit| format!("\\u{unit:04x}"))
                .collect(),
        ),
    })
}

/// Replaces each hidden character with the result of `instead`, which gets the character and the
/// next one, if any. If the result is `None`, the character is kept.
fn rewrite(text: &str, instead: impl Fn(char, Option<char>) -> Option<String>) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    let (mut clean, mut before) = (String::with_capacity(text.len()), Before::Other);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let is_hidden = is_hidden(c, before);
        before = Before::of(c, before);
        match instead(c, chars.peek().copied()).filter(|_| is_hidden) {
            Some(text) => clean.push_str(&text),
            None => clean.push(c),
        }
    }
    Cow::Owned(clean)
}

/// The kind of the preceding character, which decides whether a joiner or a variation selector is
/// allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A visible character outside of ASCII.
    Base,
    /// A digit, `#` or `*`, which a variation selector can turn into a keycap.
    Keycap,
    /// A visible character that already has a variation selector.
    Varied,
    Other,
}

impl Before {
    fn of(c: char, before: Self) -> Self {
        match c {
            '\u{fe00}'..='\u{fe0f}' if before == Self::Base => Self::Varied,
            '0'..='9' | '#' | '*' => Self::Keycap,
            c if c.is_ascii() || is_hidden(c, Self::Other) => Self::Other,
            _ => Self::Base,
        }
    }
}

/// Returns whether a terminal would interpret this character or show nothing for it.
///
/// Emoji and several scripts need joiners and variation selectors, so a visible character outside
/// of ASCII may be followed by a variation selector, a joiner, or both in this order. A digit, `#`
/// or `*` may be followed by U+FE0F. A further joiner or selector counts as hidden, because a
/// longer sequence could contain secret text.
fn is_hidden(c: char, before: Before) -> bool {
    match c {
        '\u{200c}' | '\u{200d}' => !matches!(before, Before::Base | Before::Varied),
        '\u{fe0f}' if before == Before::Keycap => false,
        '\u{fe00}'..='\u{fe0f}' => before != Before::Base,
        c if c.is_control() => true,
        // Characters of Unicode 16 that are ignorable by default or only affect formatting, and the
        // separators of lines and paragraphs.
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' => {
            true
        }
        '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' => true,
        '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' => true,
        '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}' => true,
        _ => false,
    }
}

/// Returns the visible symbol for a hidden character: its control picture in Unicode, or its code
/// point.
fn visible(c: char) -> String {
    match c {
        '\u{0}'..='\u{1f}' => char::from_u32(0x2400 + u32::from(c)).into_iter().collect(),
        '\u{7f}' => "␡".into(),
        c => c.escape_unicode().collect(),
    }
}

// Text for a terminal that contains no escape sequences except Planck's own.

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

#[cfg(test)]
mod tests;
