//! Limits the part of a tool's output that reaches the model, in lines and bytes. Text is never cut
//! within a character.

use tokio::io::{AsyncRead, AsyncReadExt};

/// The line that is added at the end of a text that was cut.
pub const TRUNCATED: &str = "[output truncated]";

/// The limits for the text that a model receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    pub lines: usize,
    pub bytes: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            lines: 2000,
            bytes: 50_000,
        }
    }
}

impl Caps {
    /// Returns the text unchanged if it is within the limits. Otherwise returns its beginning, with
    /// [`TRUNCATED`] on a line of its own.
    pub fn apply(self, text: String) -> String {
        let end = self.end(&text);
        if end == text.len() {
            text
        } else {
            cut(text, end)
        }
    }

    /// Returns the length in bytes of the longest beginning of the text that is within the limits.
    pub fn end(self, text: &str) -> usize {
        let lines = memchr::memchr_iter(b'\n', text.as_bytes())
            .nth(self.lines.saturating_sub(1))
            .map_or(text.len(), |at| at + 1);
        text.floor_char_boundary(lines.min(self.bytes))
    }
}

/// Cuts the text at `end` and appends [`TRUNCATED`].
pub fn cut(mut text: String, end: usize) -> String {
    text.truncate(end);
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(TRUNCATED);
    text
}

/// The output that is collected while a stream is read. The first `keep` bytes are kept, and the
/// rest is discarded.
#[derive(Debug)]
pub struct Capture {
    kept: Vec<u8>,
    keep: usize,
    total: u64,
}

impl Capture {
    pub fn new(keep: usize) -> Self {
        Self {
            kept: Vec::new(),
            keep,
            total: 0,
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let room = self.keep.saturating_sub(self.kept.len()).min(bytes.len());
        self.kept.extend(bytes.iter().take(room));
        self.total += bytes.len() as u64;
    }

    /// Returns whether some of the output was not kept.
    pub fn is_cut(&self) -> bool {
        self.total > self.kept.len() as u64
    }

    /// Returns the kept output as text, or `None` if it is binary.
    pub fn into_text(self) -> Option<Captured> {
        let truncated = self.is_cut();
        text(self.kept, truncated).map(|text| Captured { text, truncated })
    }

    /// Returns the kept output as text. Binary output is replaced by a note.
    pub fn finish(self) -> Captured {
        let total = self.total;
        self.into_text().unwrap_or_else(|| Captured {
            text: format!("[binary, {total} bytes]"),
            truncated: false,
        })
    }
}

/// The kept part of an output, as text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Captured {
    pub text: String,
    pub truncated: bool,
}

/// Returns the bytes as text, or `None` if they are not UTF-8. Truncated bytes may end within a
/// character, which is then left out.
fn text(bytes: Vec<u8>, truncated: bool) -> Option<String> {
    String::from_utf8(bytes)
        .or_else(|why| {
            let (error, mut bytes) = (why.utf8_error(), why.into_bytes());
            if !truncated || error.error_len().is_some() {
                return Err(());
            }
            bytes.truncate(error.valid_up_to());
            String::from_utf8(bytes).map_err(|_| ())
        })
        .ok()
}

/// Reads the stream until its end or an error, and passes all bytes to `into`.
pub(super) async fn capture(from: Option<impl AsyncRead + Unpin>, into: &mut Capture) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        into.push(buffer.get(..read).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let caps = Caps {
            lines: 3,
            bytes: 10,
        };
        for (text, kept) in [
            ("", ""),
            ("a\nb\nc\n", "a\nb\nc\n"),
            ("a\nb\nc", "a\nb\nc"),
            ("a\nb\nc\nd", "a\nb\nc\n[output truncated]"),
            ("0123456789", "0123456789"),
            ("0123456789x", "0123456789\n[output truncated]"),
            ("012345678ä", "012345678\n[output truncated]"),
            ("\n\n\n\n", "\n\n\n[output truncated]"),
        ] {
            assert_eq!(caps.apply(text.into()), kept, "{text:?}");
        }
    }

    #[test]
    fn captured_output_is_bounded_text_or_marked_as_binary() {
        let captured = |keep, bytes: &[u8]| {
            let mut capture = Capture::new(keep);
            bytes.chunks(2).for_each(|chunk| capture.push(chunk));
            let Captured { text, truncated } = capture.finish();
            (text, truncated)
        };
        assert_eq!(captured(10, b"hello"), ("hello".into(), false));
        assert_eq!(captured(3, b"hello"), ("hel".into(), true));
        assert_eq!(
            captured(2, "aäb".as_bytes()),
            ("a".into(), true),
            "cut within a character"
        );
        assert_eq!(captured(10, b"a\xffb"), ("[binary, 3 bytes]".into(), false));
        assert_eq!(
            captured(10, b"a\xc3"),
            ("[binary, 2 bytes]".into(), false),
            "half a character that was not cut"
        );
        assert_eq!(
            captured(2, b"\xff\xfe\xfd\xfc"),
            ("[binary, 4 bytes]".into(), false)
        );
    }
}
