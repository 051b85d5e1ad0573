//! Cleans the lines of the log before they are written to standard error.

use std::{
    borrow::Cow,
    io::{self, Stderr, Write, stderr},
};

use super::{clean, clean_json};

/// A writer that replaces control characters in each line of the log and writes the line to
/// standard error. In a log that is not JSON, the colour sequences of the log formatter are kept,
/// and so is any other sequence that only sets colours or weights.
#[derive(Debug)]
pub struct LogWriter {
    stderr: Stderr,
    json: bool,
}

impl LogWriter {
    pub fn new(json: bool) -> Self {
        Self {
            stderr: stderr(),
            json,
        }
    }
}

impl Write for LogWriter {
    /// Replaces control characters in a line and writes it. The formatter passes complete lines, so
    /// no character is split between two calls.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let cleaned = if self.json {
            clean_json(&text)
        } else {
            clean_log(&text)
        };
        self.stderr.write_all(cleaned.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stderr.flush()
    }
}

/// Replaces control characters, but keeps the sequences that set colours and weights (`ESC [ … m`).
pub(super) fn clean_log(text: &str) -> Cow<'_, str> {
    if !text.contains('\x1b') {
        return clean(text);
    }
    let mut parts = text.split('\x1b');
    let mut cleaned = clean(parts.next().unwrap_or_default()).into_owned();
    for part in parts {
        let (colour, rest) = part.split_at(colour_length(part));
        cleaned.push(if colour.is_empty() { '␛' } else { '\x1b' });
        cleaned.push_str(colour);
        cleaned.push_str(&clean(rest));
    }
    Cow::Owned(cleaned)
}

/// Returns the length in bytes of the colour sequence that begins the text, without its escape
/// character, or 0 if the text does not begin with one.
fn colour_length(text: &str) -> usize {
    let Some(rest) = text.strip_prefix('[') else {
        return 0;
    };
    let digits = rest
        .bytes()
        .take_while(|byte| byte.is_ascii_digit() || *byte == b';')
        .count();
    if rest.as_bytes().get(digits) == Some(&b'm') {
        digits + 2
    } else {
        0
    }
}
