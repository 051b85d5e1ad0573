//! Shows text as it was written, line by line, on a terminal. Long lines are broken between words,
//! but not those of code. The line that is not complete is previewed.

use super::{
    markdown::CodeFence,
    preview::{self, Preview},
    style::{Paint, Style},
    wrap,
};
use planck_host::terminal::Drawing;

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
        for line in preview::completed(&mut self.line, text) {
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
        for part in wrap::lines(line, width, width) {
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
}
