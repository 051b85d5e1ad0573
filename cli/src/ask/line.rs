//! Decodes the bytes that a terminal sends into keys, and edits a line of text key by key.

use planck_host::terminal::{Drawing, clean_line};
use unicode_width::UnicodeWidthChar as _;

/// The number of pasted bytes that are kept. The rest of a longer paste is dropped.
const LONGEST_PASTE: usize = 64 * 1024;

/// The length of the longest escape sequence that is decoded.
const LONGEST_SEQUENCE: usize = 16;

const PASTE_ENDS: &[u8] = b"\x1b[201~";

/// A key, or a text that was pasted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPress {
    Char(char),
    Enter,
    /// Erases the character before the cursor.
    Erase,
    EraseWord,
    EraseLine,
    Left,
    Right,
    Home,
    End,
    Paste(String),
    /// Ctrl-D.
    EndOfInput,
    /// A key without a meaning here.
    Other,
}

/// Collects bytes until they make up a key.
#[derive(Debug, Default)]
pub struct KeyDecoder {
    bytes: Vec<u8>,
    is_pasting: bool,
}

/// The result of decoding the first bytes: a key and its length, or the start of a paste.
enum Decoded {
    Key(KeyPress, usize),
    PasteBegins(usize),
    Incomplete,
}

impl KeyDecoder {
    /// Adds bytes, and returns the keys that are complete.
    pub fn add(&mut self, bytes: &[u8]) -> Vec<KeyPress> {
        self.bytes.extend(bytes);
        let mut keys = Vec::new();
        loop {
            if self.is_pasting {
                let Some(text) = self.paste() else {
                    return keys;
                };
                keys.push(KeyPress::Paste(text));
            }
            match first(&self.bytes) {
                Decoded::Key(key, length) => {
                    self.bytes.drain(..length);
                    keys.push(key);
                }
                Decoded::PasteBegins(length) => {
                    self.bytes.drain(..length);
                    self.is_pasting = true;
                }
                Decoded::Incomplete => return keys,
            }
        }
    }

    /// Returns the pasted text if its end has arrived.
    fn paste(&mut self) -> Option<String> {
        let ends = |window: &[u8]| window == PASTE_ENDS;
        let Some(end) = self.bytes.windows(PASTE_ENDS.len()).position(ends) else {
            // The end may arrive in pieces, so the last bytes are kept.
            if self.bytes.len() > LONGEST_PASTE + PASTE_ENDS.len() {
                let last = self.bytes.len() - PASTE_ENDS.len();
                self.bytes.drain(LONGEST_PASTE..last);
            }
            return None;
        };
        let mut text: Vec<u8> = self.bytes.drain(..end).collect();
        self.bytes.drain(..PASTE_ENDS.len());
        self.is_pasting = false;
        text.truncate(LONGEST_PASTE);
        let text = String::from_utf8_lossy(&text);
        Some(text.replace("\r\n", "\n").replace('\r', "\n"))
    }
}

fn first(bytes: &[u8]) -> Decoded {
    let Some(byte) = bytes.first() else {
        return Decoded::Incomplete;
    };
    let key = match byte {
        b'\r' | b'\n' => KeyPress::Enter,
        0x7f | 0x08 => KeyPress::Erase,
        0x17 => KeyPress::EraseWord,
        0x15 => KeyPress::EraseLine,
        0x01 => KeyPress::Home,
        0x05 => KeyPress::End,
        0x02 => KeyPress::Left,
        0x06 => KeyPress::Right,
        0x04 => KeyPress::EndOfInput,
        0x1b => return sequence(bytes),
        0x00..0x20 => KeyPress::Other,
        _ => return character(bytes),
    };
    Decoded::Key(key, 1)
}

/// Decodes an escape sequence. A single Escape counts as the start of one, so the key after it has
/// no meaning of its own.
fn sequence(bytes: &[u8]) -> Decoded {
    let (introducer, rest) = match bytes {
        [_, introducer @ (b'[' | b'O'), rest @ ..] => (introducer, rest),
        [_, b'\x1b', ..] => return Decoded::Key(KeyPress::Other, 1),
        [_, _, ..] => return Decoded::Key(KeyPress::Other, 2),
        _ => return Decoded::Incomplete,
    };
    let ends = |byte: &u8| matches!(byte, 0x40..=0x7e);
    let Some(end) = rest.iter().position(ends) else {
        return match rest.len() > LONGEST_SEQUENCE {
            true => Decoded::Key(KeyPress::Other, bytes.len()),
            false => Decoded::Incomplete,
        };
    };
    let length = end + 3;
    let key = match (introducer, rest.get(..=end).unwrap_or_default()) {
        (b'[', b"200~") => return Decoded::PasteBegins(length),
        (_, b"D") => KeyPress::Left,
        (_, b"C") => KeyPress::Right,
        (_, b"H" | b"1~" | b"7~") => KeyPress::Home,
        (_, b"F" | b"4~" | b"8~") => KeyPress::End,
        _ => KeyPress::Other,
    };
    Decoded::Key(key, length)
}

fn character(bytes: &[u8]) -> Decoded {
    let length = match bytes.first() {
        Some(0x20..0x80) => 1,
        Some(0xc2..0xe0) => 2,
        Some(0xe0..0xf0) => 3,
        Some(0xf0..0xf5) => 4,
        Some(_) | None => return Decoded::Key(KeyPress::Other, 1),
    };
    let Some(encoded) = bytes.get(..length) else {
        return Decoded::Incomplete;
    };
    let text = std::str::from_utf8(encoded).ok();
    match text.and_then(|text| text.chars().next()) {
        Some(c) => Decoded::Key(KeyPress::Char(c), length),
        None => Decoded::Key(KeyPress::Other, 1),
    }
}

/// The number of bytes that a line may have. Keys that would make it longer are ignored.
const LONGEST: usize = 64 * 1024;

const CURSOR_LEFT: &str = "\x1b[D";

/// The text before and after the cursor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LineInput {
    before: String,
    after: String,
}

/// The effect of a key on a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineStep {
    Changed,
    /// The line is complete.
    Done,
    EndOfInput,
}

impl LineInput {
    pub fn text(&self) -> String {
        format!("{}{}", self.before, self.after)
    }

    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }

    pub fn apply(&mut self, key: &KeyPress) -> LineStep {
        match key {
            KeyPress::Enter => return LineStep::Done,
            KeyPress::EndOfInput => return LineStep::EndOfInput,
            KeyPress::Char(c) => self.insert(c.encode_utf8(&mut [0; 4])),
            KeyPress::Paste(text) => self.insert(text),
            KeyPress::Erase => drop(self.before.pop()),
            KeyPress::EraseWord => {
                let kept = self.before.trim_end();
                let start = kept.rfind(char::is_whitespace);
                let start = start.map_or(0, |at| {
                    at + kept
                        .get(at..)
                        .and_then(|rest| rest.chars().next())
                        .map_or(0, char::len_utf8)
                });
                self.before.truncate(start);
            }
            KeyPress::EraseLine => self.before.clear(),
            KeyPress::Left => {
                if let Some(c) = self.before.pop() {
                    self.after.insert(0, c);
                }
            }
            KeyPress::Right => {
                if !self.after.is_empty() {
                    self.before.push(self.after.remove(0));
                }
            }
            KeyPress::Home => self.after.insert_str(0, &std::mem::take(&mut self.before)),
            KeyPress::End => self.before.push_str(&std::mem::take(&mut self.after)),
            KeyPress::Other => {}
        }
        LineStep::Changed
    }

    fn insert(&mut self, text: &str) {
        if self.before.len() + self.after.len() + text.len() <= LONGEST {
            self.before.push_str(text);
        }
    }

    /// Returns the part around the cursor that fits into this many columns, and moves the cursor to
    /// its place. Without `in_place` the cursor stays at the end.
    pub fn draw(&self, columns: usize, in_place: bool) -> Drawing {
        let (before, after) = (clean_line(&self.before), clean_line(&self.after));
        let after_width: usize = after.chars().map(width).sum();
        let room = columns.saturating_sub(after_width.min(columns / 3));
        let left: String = fitting(before.chars().rev(), room).chars().rev().collect();
        let used: usize = left.chars().map(width).sum();
        let right = fitting(after.chars(), columns.saturating_sub(used));
        let mut drawing = Drawing::text(&left) + right.as_str();
        if in_place {
            let back: usize = right.chars().map(width).sum();
            (0..back).for_each(|_| drawing += &Drawing::control(CURSOR_LEFT));
        }
        drawing
    }
}

fn width(c: char) -> usize {
    c.width().unwrap_or(1)
}

/// Returns the first characters that fit into this many columns.
fn fitting(chars: impl Iterator<Item = char>, columns: usize) -> String {
    let mut used = 0;
    chars
        .take_while(|c| {
            used += width(*c);
            used <= columns
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{KeyDecoder, *};

    #[test]
    fn bytes_are_keys_also_in_pieces() {
        let text = |text: &str| KeyPress::Paste(text.into());
        for (bytes, keys) in [
            ("y", vec![KeyPress::Char('y')]),
            ("é😀", vec![KeyPress::Char('é'), KeyPress::Char('😀')]),
            ("y\r", vec![KeyPress::Char('y'), KeyPress::Enter]),
            (
                "\x7f\x17\x15\x04",
                vec![
                    KeyPress::Erase,
                    KeyPress::EraseWord,
                    KeyPress::EraseLine,
                    KeyPress::EndOfInput,
                ],
            ),
            (
                "\x1b[D\x1bOC\x1b[1~\x1b[F",
                vec![
                    KeyPress::Left,
                    KeyPress::Right,
                    KeyPress::Home,
                    KeyPress::End,
                ],
            ),
            (
                "\x1b[A\x1b[1;5Cy",
                vec![KeyPress::Other, KeyPress::Other, KeyPress::Char('y')],
            ),
            ("\x1by", vec![KeyPress::Other]),
            ("\x1b", vec![]),
            (
                "\x1b[200~y\r\nes\x1b[201~n",
                vec![text("y\nes"), KeyPress::Char('n')],
            ),
            ("\x1b[200~y", vec![]),
            ("\t\x03", vec![KeyPress::Other, KeyPress::Other]),
        ] {
            assert_eq!(
                KeyDecoder::default().add(bytes.as_bytes()),
                keys,
                "{bytes:?}"
            );
            let mut decoder = KeyDecoder::default();
            let pieces = bytes.bytes().flat_map(|byte| decoder.add(&[byte]));
            assert_eq!(pieces.collect::<Vec<_>>(), keys, "{bytes:?} byte by byte");
        }
    }

    #[test]
    fn paste_without_an_end_is_bounded() {
        let mut decoder = KeyDecoder::default();
        decoder.add(b"\x1b[200~");
        for _ in 0..100 {
            assert_eq!(decoder.add(&[b'y'; 4096]), []);
            assert!(decoder.bytes.len() <= LONGEST_PASTE + PASTE_ENDS.len());
        }
        let keys = decoder.add(PASTE_ENDS);
        assert!(matches!(keys.as_slice(), [KeyPress::Paste(text)] if text.len() == LONGEST_PASTE));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_and_the_next_key_is_found(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = KeyDecoder::default();
            decoder.add(&bytes);
            // These bytes end any sequence, character and paste that is still open.
            decoder.add(b"~~~~\x1b[201~~~~~");
            prop_assert_eq!(decoder.add(b"y"), vec![KeyPress::Char('y')]);
        }
    }

    fn line_of(text: &str) -> LineInput {
        LineInput {
            before: text.into(),
            after: String::new(),
        }
    }

    fn typed(line: LineInput, bytes: &str) -> (LineInput, Vec<LineStep>) {
        let mut line = line;
        let keys = KeyDecoder::default().add(bytes.as_bytes());
        let steps = keys.iter().map(|key| line.apply(key)).collect();
        (line, steps)
    }

    #[test]
    fn keys_edit_the_line() {
        for (start, keys, text) in [
            ("", "blue", "blue"),
            ("", "blux\x7fe", "blue"),
            ("", "eu\x1b[D\x1b[Dbl", "bleu"),
            ("1}", "\x01{\"a\":\x05\x7f}", "{\"a\":1}"),
            ("one two  ", "\x17three", "one three"),
            ("één twee", "\x17\x17x", "x"),
            ("gone", "\x15new", "new"),
            ("gone", "\x1b[D\x15", "e"),
            ("", "\x7f\x17\x1b[D\x1b[C", ""),
            ("", "\x1b[200~a\nb\x1b[201~", "a\nb"),
        ] {
            let (line, steps) = typed(line_of(start), keys);
            assert_eq!(line.text(), text, "{keys:?}");
            assert!(steps.iter().all(|step| *step == LineStep::Changed));
        }
        let (_, steps) = typed(LineInput::default(), "a\r\x04");
        assert_eq!(
            steps,
            [LineStep::Changed, LineStep::Done, LineStep::EndOfInput]
        );
    }

    #[test]
    fn line_is_drawn_in_its_columns_and_without_controls() {
        for (text, keys, columns, drawn) in [
            ("blue", "", 10, "blue"),
            ("blue", "\x1b[D", 10, "blue\x1b[D"),
            ("0123456789", "", 4, "6789"),
            ("0123456789", "\x01", 4, "0123\x1b[D\x1b[D\x1b[D\x1b[D"),
            ("日本語", "", 4, "本語"),
            ("a\u{9b}2J", "", 20, "a\\u{9b}2J"),
            ("a", "\x1b[200~\nb\x1b[201~", 20, "a␊b"),
        ] {
            let (line, _) = typed(line_of(text), keys);
            assert_eq!(
                line.draw(columns, true).as_str(),
                drawn,
                "{text:?} {keys:?}"
            );
        }
    }

    #[test]
    fn line_is_bounded() {
        let mut line = LineInput::default();
        let paste = KeyPress::Paste("x".repeat(LONGEST / 2 + 1));
        line.apply(&paste);
        line.apply(&paste);
        assert_eq!(line.text().len(), LONGEST / 2 + 1);
    }
}
