//! Makes foreign text safe to write to a terminal. Pure: text goes in, text comes out.
//!
//! A terminal obeys escape sequences, which move the cursor, write the clipboard and rename the
//! window. Bidirectional controls and invisible characters make a line look like another. This
//! module replaces each of them with a visible mark. Nothing is removed, so a reader sees the
//! attempt.

mod drawing;
mod log;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

pub use drawing::Drawing;
pub use log::LogWriter;

/// Returns the text with visible marks for everything that controls a terminal except line ends and
/// tabs.
pub fn clean(text: &str) -> Cow<'_, str> {
    rewrite(text, |c, next| match c {
        '\n' | '\t' => None,
        '\r' if next == Some('\n') => Some(String::new()),
        c => Some(visible(c)),
    })
}

/// Like [`clean`], for text that must stay on one line: a cell of a table, or a word in a sentence.
pub fn clean_line(text: &str) -> Cow<'_, str> {
    rewrite(text, |c, _| Some(visible(c)))
}

/// Returns JSON with the same meaning, whose strings contain no character that a terminal would
/// obey or hide.
///
/// Raw control characters cannot occur inside a string of valid JSON. If the text is not valid,
/// they are escaped as well.
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

/// Replaces each hidden character with the result of `instead` for it and its successor, if there
/// is one.
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

/// The character before the current one, as far as joiners and variation selectors depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A visible character outside of ASCII.
    Base,
    /// A digit or mark that a selector turns into a keycap.
    Keycap,
    /// A base with its variation selector.
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

/// Returns whether a terminal would obey this character, or show nothing for it.
///
/// Joiners and variation selectors belong to emoji and to several scripts, so one of them may
/// follow a visible character outside of ASCII. A sequence of them is hidden, because it can carry
/// secret text.
fn is_hidden(c: char, before: Before) -> bool {
    match c {
        '\u{200c}' | '\u{200d}' => !matches!(before, Before::Base | Before::Varied),
        '\u{fe0f}' if before == Before::Keycap => false,
        '\u{fe00}'..='\u{fe0f}' => before != Before::Base,
        c if c.is_control() => true,
        // Default-ignorable and format characters of Unicode 16 without a shape of their own, and
        // both line separators.
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

/// Returns the mark for a hidden character: Unicode's own picture of it, or its number.
fn visible(c: char) -> String {
    match c {
        '\u{0}'..='\u{1f}' => char::from_u32(0x2400 + u32::from(c)).into_iter().collect(),
        '\u{7f}' => "␡".into(),
        c => c.escape_unicode().collect(),
    }
}
