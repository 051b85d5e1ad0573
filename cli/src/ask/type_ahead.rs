//! Text that was typed before a question took keys. It is meant for the next prompt and not for the
//! question.

use std::collections::VecDeque;

use super::{
    keys::Key,
    line::{LineInput, LineStep},
};

/// The number of lines that are kept. Later ones are dropped.
const MOST_LINES: usize = 64;

#[derive(Debug, Default)]
pub struct TypeAhead {
    lines: VecDeque<String>,
    line: LineInput,
    /// Whether the end of the input was typed.
    is_over: bool,
}

impl TypeAhead {
    pub fn add(&mut self, keys: &[Key]) {
        for key in keys {
            match self.line.apply(key) {
                LineStep::Changed => {}
                // The prompt continues on the next line.
                LineStep::Done if self.line.text().ends_with('\\') => {
                    self.line.apply(&Key::Paste("\n".into()));
                }
                LineStep::Done => {
                    let line = std::mem::take(&mut self.line).text();
                    if self.lines.len() < MOST_LINES {
                        self.lines.push_back(line);
                    }
                }
                LineStep::EndOfInput => self.is_over |= self.line.is_empty(),
            }
        }
    }

    /// Removes the complete lines that consist of this text. Returns whether there was one.
    pub fn take(&mut self, text: &str) -> bool {
        let before = self.lines.len();
        self.lines.retain(|line| line.trim_end() != text);
        self.lines.len() < before
    }

    /// Adds what was typed later.
    pub fn append(&mut self, later: Self) {
        let keys = later
            .lines
            .into_iter()
            .flat_map(|line| [Key::Paste(line), Key::Enter]);
        self.add(&keys.collect::<Vec<_>>());
        self.add(&[Key::End, Key::Paste(later.line.text())]);
        self.is_over |= later.is_over;
    }

    /// Returns the first complete line.
    pub fn line(&mut self) -> Option<String> {
        self.lines.pop_front()
    }

    /// Returns whether the end of the input was typed, which counts after all lines.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the text of the line that is not complete.
    pub fn unfinished_line(&mut self) -> String {
        std::mem::take(&mut self.line).text()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::keys::KeyDecoder, *};

    #[test]
    fn complete_lines_come_first_and_then_the_rest() {
        let of = |bytes: &str| {
            let mut ahead = TypeAhead::default();
            ahead.add(&KeyDecoder::default().add(bytes.as_bytes()));
            ahead
        };
        let mut ahead = of("one\rtw\x7fwo\r\x1b[200~thr\nee\x1b[201~");
        ahead.append(of("!\rfour"));
        let lines: Vec<String> = std::iter::from_fn(|| ahead.line()).collect();
        assert_eq!(lines, ["one", "two", "thr\nee!"]);
        assert_eq!(ahead.unfinished_line(), "four");
        assert_eq!(ahead.unfinished_line(), "");
    }

    #[test]
    fn commands_continued_lines_and_the_end_are_recognised() {
        let mut ahead = TypeAhead::default();
        ahead.add(&KeyDecoder::default().add(b"one \\\rmore\r/abort\rtwo\r\x04"));
        assert!(ahead.take("/abort") && !ahead.take("/abort"));
        let lines: Vec<String> = std::iter::from_fn(|| ahead.line()).collect();
        assert_eq!(lines, ["one \\\nmore", "two"]);
        assert!(ahead.is_over());
    }
}
