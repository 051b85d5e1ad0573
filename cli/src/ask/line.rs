//! A line of text that is edited key by key.

use unicode_width::UnicodeWidthChar as _;

use super::keys::Key;
use planck_host::terminal::{Drawing, clean_line};

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

    pub fn apply(&mut self, key: &Key) -> LineStep {
        match key {
            Key::Enter => return LineStep::Done,
            Key::EndOfInput => return LineStep::EndOfInput,
            Key::Char(c) => self.insert(c.encode_utf8(&mut [0; 4])),
            Key::Paste(text) => self.insert(text),
            Key::Erase => drop(self.before.pop()),
            Key::EraseWord => {
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
            Key::EraseLine => self.before.clear(),
            Key::Left => {
                if let Some(c) = self.before.pop() {
                    self.after.insert(0, c);
                }
            }
            Key::Right => {
                if !self.after.is_empty() {
                    self.before.push(self.after.remove(0));
                }
            }
            Key::Home => self.after.insert_str(0, &std::mem::take(&mut self.before)),
            Key::End => self.before.push_str(&std::mem::take(&mut self.after)),
            Key::Other => {}
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
    use super::{super::keys::KeyDecoder, *};

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
        let paste = Key::Paste("x".repeat(LONGEST / 2 + 1));
        line.apply(&paste);
        line.apply(&paste);
        assert_eq!(line.text().len(), LONGEST / 2 + 1);
    }
}
