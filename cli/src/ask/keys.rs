//! Decodes the bytes that a terminal sends into keys.

/// The number of pasted bytes that are kept. The rest of a longer paste is dropped.
const LONGEST_PASTE: usize = 64 * 1024;

/// The length of the longest escape sequence that is decoded.
const LONGEST_SEQUENCE: usize = 16;

const PASTE_ENDS: &[u8] = b"\x1b[201~";

/// A key, or a text that was pasted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
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
    Key(Key, usize),
    PasteBegins(usize),
    Incomplete,
}

impl KeyDecoder {
    /// Adds bytes, and returns the keys that are complete.
    pub fn add(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.bytes.extend(bytes);
        let mut keys = Vec::new();
        loop {
            if self.is_pasting {
                let Some(text) = self.paste() else {
                    return keys;
                };
                keys.push(Key::Paste(text));
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
        b'\r' | b'\n' => Key::Enter,
        0x7f | 0x08 => Key::Erase,
        0x17 => Key::EraseWord,
        0x15 => Key::EraseLine,
        0x01 => Key::Home,
        0x05 => Key::End,
        0x02 => Key::Left,
        0x06 => Key::Right,
        0x04 => Key::EndOfInput,
        0x1b => return sequence(bytes),
        0x00..0x20 => Key::Other,
        _ => return character(bytes),
    };
    Decoded::Key(key, 1)
}

/// Decodes an escape sequence. A single Escape counts as the start of one, so the key after it has
/// no meaning of its own.
fn sequence(bytes: &[u8]) -> Decoded {
    let (introducer, rest) = match bytes {
        [_, introducer @ (b'[' | b'O'), rest @ ..] => (introducer, rest),
        [_, b'\x1b', ..] => return Decoded::Key(Key::Other, 1),
        [_, _, ..] => return Decoded::Key(Key::Other, 2),
        _ => return Decoded::Incomplete,
    };
    let ends = |byte: &u8| matches!(byte, 0x40..=0x7e);
    let Some(end) = rest.iter().position(ends) else {
        return match rest.len() > LONGEST_SEQUENCE {
            true => Decoded::Key(Key::Other, bytes.len()),
            false => Decoded::Incomplete,
        };
    };
    let length = end + 3;
    let key = match (introducer, rest.get(..=end).unwrap_or_default()) {
        (b'[', b"200~") => return Decoded::PasteBegins(length),
        (_, b"D") => Key::Left,
        (_, b"C") => Key::Right,
        (_, b"H" | b"1~" | b"7~") => Key::Home,
        (_, b"F" | b"4~" | b"8~") => Key::End,
        _ => Key::Other,
    };
    Decoded::Key(key, length)
}

fn character(bytes: &[u8]) -> Decoded {
    let length = match bytes.first() {
        Some(0x20..0x80) => 1,
        Some(0xc2..0xe0) => 2,
        Some(0xe0..0xf0) => 3,
        Some(0xf0..0xf5) => 4,
        Some(_) | None => return Decoded::Key(Key::Other, 1),
    };
    let Some(encoded) = bytes.get(..length) else {
        return Decoded::Incomplete;
    };
    let text = std::str::from_utf8(encoded).ok();
    match text.and_then(|text| text.chars().next()) {
        Some(c) => Decoded::Key(Key::Char(c), length),
        None => Decoded::Key(Key::Other, 1),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_keys_also_in_pieces() {
        let text = |text: &str| Key::Paste(text.into());
        for (bytes, keys) in [
            ("y", vec![Key::Char('y')]),
            ("é😀", vec![Key::Char('é'), Key::Char('😀')]),
            ("y\r", vec![Key::Char('y'), Key::Enter]),
            (
                "\x7f\x17\x15\x04",
                vec![Key::Erase, Key::EraseWord, Key::EraseLine, Key::EndOfInput],
            ),
            (
                "\x1b[D\x1bOC\x1b[1~\x1b[F",
                vec![Key::Left, Key::Right, Key::Home, Key::End],
            ),
            (
                "\x1b[A\x1b[1;5Cy",
                vec![Key::Other, Key::Other, Key::Char('y')],
            ),
            ("\x1by", vec![Key::Other]),
            ("\x1b", vec![]),
            (
                "\x1b[200~y\r\nes\x1b[201~n",
                vec![text("y\nes"), Key::Char('n')],
            ),
            ("\x1b[200~y", vec![]),
            ("\t\x03", vec![Key::Other, Key::Other]),
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
        assert!(matches!(keys.as_slice(), [Key::Paste(text)] if text.len() == LONGEST_PASTE));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_and_the_next_key_is_found(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = KeyDecoder::default();
            decoder.add(&bytes);
            // These bytes end any sequence, character and paste that is still open.
            decoder.add(b"~~~~\x1b[201~~~~~");
            prop_assert_eq!(decoder.add(b"y"), vec![Key::Char('y')]);
        }
    }
}
