//! Shows text as it was written, line by line, on a terminal. Long lines are broken between words,
//! but not those of code. The line that is not complete is previewed, and then overwritten.

use std::ops::Range;

use planck_host::terminal::Drawing;
use textwrap::{WordSeparator, core::Word, wrap_algorithms::wrap_first_fit};
use unicode_width::UnicodeWidthChar as _;

use super::{
    markdown::{CodeFence, Markdown},
    style::{ERASE_LINE, Paint, Style},
};

#[derive(Debug)]
pub struct Prose {
    style: Style,
    /// The paint of the whole text, if it has one.
    paint: Option<Paint>,
    /// The incomplete current line.
    line: String,
    fence: Option<CodeFence>,
    /// The number of empty lines that are written only if more text follows.
    gaps: usize,
    has_begun: bool,
    preview: Preview,
}

impl Prose {
    pub fn new(style: Style, paint: Option<Paint>) -> Self {
        Self {
            style,
            paint,
            line: String::new(),
            fence: None,
            gaps: 0,
            has_begun: false,
            preview: Preview::default(),
        }
    }

    /// Adds text. Returns the drawing of the lines that the text completes, and a preview of the
    /// incomplete one.
    pub fn push(&mut self, text: &str) -> Drawing {
        let mut out = self.preview.erase();
        for line in complete_lines(&mut self.line, text) {
            self.take(&line, &mut out);
        }
        self.preview.draw(&self.line, self.style, &mut out);
        out
    }

    /// Draws a line above the incomplete one.
    pub fn interject(&mut self, line: &Drawing) -> Drawing {
        let mut out = self.preview.erase() + line.clone() + "\n";
        self.preview.draw(&self.line, self.style, &mut out);
        out
    }

    /// Returns the drawing of the remaining text, and resets the state for the next text.
    pub fn finish(&mut self) -> Drawing {
        let mut out = self.preview.erase();
        let line = std::mem::take(&mut self.line);
        self.take(&line, &mut out);
        (self.fence, self.gaps, self.has_begun) = (None, 0, false);
        out
    }

    fn take(&mut self, line: &str, out: &mut Drawing) {
        if line.trim().is_empty() {
            self.gaps += usize::from(self.has_begun);
            return;
        }
        *out += "\n".repeat(std::mem::take(&mut self.gaps)).as_str();
        self.has_begun = true;
        let is_fence = match self.fence {
            Some(fence) => fence.is_closed_by(line),
            None => CodeFence::of(line).is_some(),
        };
        let is_code = is_fence || self.fence.is_some() || is_laid_out(line);
        if is_fence {
            self.fence = match self.fence {
                Some(_) => None,
                None => CodeFence::of(line),
            };
        }
        if is_code {
            return self.draw(line, out);
        }
        let width = self.style.width;
        for part in wrapped(line, width, width) {
            self.draw(line.get(part).unwrap_or_default(), out);
        }
    }

    fn draw(&self, line: &str, out: &mut Drawing) {
        *out += &match self.paint {
            Some(paint) => self.style.paint(paint, line),
            None => Drawing::text(line),
        };
        *out += "\n";
    }
}

/// Returns whether a line is indented like code or is a row of a table, so that its blanks matter.
fn is_laid_out(line: &str) -> bool {
    line.starts_with("    ") || line.starts_with(['\t', '|'])
}

/// The text that is shown at the moment: an answer or what the model thinks.
#[derive(Debug)]
pub struct LiveText {
    answer: AnswerText,
    thoughts: Prose,
    /// Whether the open text is what the model thinks.
    is_thinking: bool,
}

/// The way in which answers are shown.
#[derive(Debug)]
enum AnswerText {
    Rendered(Markdown),
    /// Without colours, as it was written.
    Written(Prose),
}

impl LiveText {
    pub fn new(style: Style) -> Self {
        Self {
            answer: match style.colour {
                true => AnswerText::Rendered(Markdown::new(style)),
                false => AnswerText::Written(Prose::new(style, None)),
            },
            thoughts: Prose::new(style, Some(Paint::Dim)),
            is_thinking: false,
        }
    }

    /// Adds text. Before the other kind of text is added, [`Self::finish`] is called.
    pub fn push(&mut self, thinking: bool, text: &str) -> Drawing {
        self.is_thinking = thinking;
        match &mut self.answer {
            _ if thinking => self.thoughts.push(text),
            AnswerText::Rendered(markdown) => markdown.push(text),
            AnswerText::Written(prose) => prose.push(text),
        }
    }

    /// Draws a line above the part of the open text that is not complete.
    pub fn interject(&mut self, line: &Drawing) -> Drawing {
        match &mut self.answer {
            _ if self.is_thinking => self.thoughts.interject(line),
            AnswerText::Rendered(markdown) => markdown.interject(line),
            AnswerText::Written(prose) => prose.interject(line),
        }
    }

    /// Draws the rest of the open text.
    pub fn finish(&mut self) -> Drawing {
        match &mut self.answer {
            _ if self.is_thinking => self.thoughts.finish(),
            AnswerText::Rendered(markdown) => markdown.finish(),
            AnswerText::Written(prose) => prose.finish(),
        }
    }
}

/// The size in bytes above which an incomplete line counts as complete.
const LONGEST_LINE: usize = 64 * 1024;

/// Adds text to an incomplete line, and returns the lines that the text completes.
pub fn complete_lines(line: &mut String, text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for piece in text.split_inclusive('\n') {
        line.push_str(piece);
        if piece.ends_with('\n') || line.len() > LONGEST_LINE {
            let whole = std::mem::take(line);
            lines.push(whole.trim_end_matches(['\n', '\r']).to_owned());
        }
    }
    lines
}

#[derive(Debug, Default)]
pub struct Preview {
    is_drawn: bool,
}

impl Preview {
    /// Draws as much of the end of a text as fits on one line.
    pub fn draw(&mut self, text: &str, style: Style, out: &mut Drawing) {
        let mut room = style.width.saturating_sub(2);
        let tail: Vec<char> = text
            .chars()
            .rev()
            .take_while(|c| {
                let width = c.width().unwrap_or(8);
                let fits = width <= room;
                room = room.saturating_sub(width);
                fits
            })
            .collect();
        if tail.is_empty() {
            return;
        }
        let tail: String = tail
            .into_iter()
            .rev()
            .map(|c| if c == '\t' { ' ' } else { c })
            .collect();
        *out += &style.paint(Paint::Dim, &tail);
        self.is_drawn = true;
    }

    /// Takes the line off the screen.
    pub fn erase(&mut self) -> Drawing {
        match std::mem::take(&mut self.is_drawn) {
            true => Drawing::control(ERASE_LINE),
            false => Drawing::default(),
        }
    }
}

/// Returns the parts of a line that become lines of their own. The first one may be `first` columns
/// wide, and the others `rest`. The blanks at which the line is broken are in none of them.
///
/// A word that is wider than a line stays whole: the terminal breaks it, and it can still be copied
/// as one word. Addresses, paths, and sentences of scripts without blanks are such words.
pub fn wrapped(line: &str, first: usize, rest: usize) -> Vec<Range<usize>> {
    let words: Vec<Word<'_>> = WordSeparator::AsciiSpace.find_words(line).collect();
    let widths = [first, rest].map(|width| u16::try_from(width.max(1)).unwrap_or(u16::MAX).into());
    let mut start = 0;
    let parts = wrap_first_fit(&words, &widths).into_iter().map(|part| {
        let length = |word: &Word<'_>| word.word.len() + word.whitespace.len();
        let length: usize = part.iter().map(length).sum();
        let blanks = part.last().map_or(0, |word| word.whitespace.len());
        let range = start..start + length - blanks;
        start += length;
        range
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLE: Style = Style {
        colour: false,
        in_place: true,
        width: 20,
    };

    /// Returns the part of the output that remains visible, for text in pieces of this size.
    fn drawn(text: &str, piece: usize) -> String {
        let mut prose = Prose::new(STYLE, None);
        let chars: Vec<char> = text.chars().collect();
        let mut out = Drawing::default();
        for piece in chars.chunks(piece) {
            out += &prose.push(&piece.iter().collect::<String>());
        }
        out += &prose.finish();
        let lines = out.as_str().split('\n');
        let lines = lines.map(|line| line.rsplit("\r\x1b[2K").next().unwrap_or(line).to_owned());
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn prose_is_broken_between_words_and_code_is_not() {
        let text = "\nThe quick brown fox jumps over **it**.\n\n```\nlet a_long_line_of_code = 1 + 2;\n\n```\n    four spaces before this line\n| a | very wide | table |\n- and an item that is long\n\n";
        let expected = "\
The quick brown fox
jumps over **it**.

```
let a_long_line_of_code = 1 + 2;

```
    four spaces before this line
| a | very wide | table |
- and an item that
is long
";
        for piece in [1, 3, 1000] {
            assert_eq!(drawn(text, piece), expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn line_of_somebody_else_stands_above_the_incomplete_line() {
        let mut prose = Prose::new(STYLE, Some(Paint::Dim));
        let out = prose.push("One.\nAnd tw") + prose.interject(&Drawing::text("! it"));
        let out = out + prose.push("o.") + prose.finish();
        assert_eq!(
            out.as_str().replace("\r\x1b[2K", "⌫"),
            "One.\nAnd tw⌫! it\nAnd tw⌫And two.⌫And two.\n"
        );
    }

    #[test]
    fn lines_are_broken_at_blanks_only() {
        for (text, first, rest, expected) in [
            ("one two three", 20, 20, &["one two three"][..]),
            ("one two three", 7, 7, &["one two", "three"]),
            ("one two three", 3, 9, &["one", "two three"]),
            ("one  two", 5, 5, &["one", "two"]),
            ("  one two", 6, 6, &["  one", "two"]),
            (
                "see https://example.org/a/b now",
                10,
                10,
                &["see", "https://example.org/a/b", "now"],
            ),
            ("größer 日本 x", 11, 11, &["größer 日本", "x"]),
            ("one ", 10, 10, &["one"]),
            ("", 10, 10, &[""]),
        ] {
            let parts = wrapped(text, first, rest);
            let parts: Vec<&str> = parts.into_iter().map(|part| &text[part]).collect();
            assert_eq!(parts, expected, "{text:?}");
        }
    }
}
