//! Cleans log lines on their way to standard error.

use std::{
    borrow::Cow,
    io::{self, Stderr, Write, stderr},
};

use super::{clean, clean_json};

/// Standard error for the log, which cleans each line. The colours that the formatter sets itself
/// pass; everything else that a terminal would obey does not, wherever it is in the line.
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
    /// Cleans and writes a line. The formatter passes whole lines, so no character is split.
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

/// Cleans text except for sequences that set colours and weights (`ESC [ … m`).
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

/// Returns the length of a colour sequence after its escape character, or 0 if it is none.
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
