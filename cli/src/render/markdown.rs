//! Renders Markdown on a terminal, block by block, while the text still arrives. The end of the
//! incomplete block is previewed on one line, which is then overwritten.
//!
//! A Markdown parser needs the whole document, so this module separates the blocks itself, line by
//! line, and `pulldown_cmark` parses the text within a block. All text goes through [`Drawing`], so
//! it cannot contain escape sequences.

mod inline;

use unicode_width::UnicodeWidthStr as _;

use super::{
    preview::{self, Preview},
    style::{Paint, Style},
};
use inline::InlineText;
use planck_host::terminal::Drawing;

/// The size in bytes above which an incomplete block is drawn.
const LONGEST_BLOCK: usize = 64 * 1024;
/// The length of a horizontal rule in characters.
const RULE: usize = 40;

#[derive(Debug)]
pub struct Markdown {
    style: Style,
    /// The incomplete current line.
    line: String,
    /// The complete lines of the current block.
    block: String,
    fence: Option<CodeFence>,
    /// Whether an empty line is written before the next block.
    has_gap: bool,
    has_begun: bool,
    preview: Preview,
}

/// The opening line of a code block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeFence {
    mark: char,
    length: usize,
    indent: usize,
}

impl CodeFence {
    pub fn of(line: &str) -> Option<Self> {
        let text = line.trim_start();
        let mark = text
            .chars()
            .next()
            .filter(|mark| matches!(mark, '`' | '~'))?;
        let length = text.chars().take_while(|c| *c == mark).count();
        // A line with three backticks at its beginning and more after them is inline code and not a
        // fence.
        let is_fence = length >= 3 && !(mark == '`' && text.get(length..)?.contains('`'));
        is_fence.then(|| Self {
            mark,
            length,
            indent: line.len() - text.len(),
        })
    }

    pub fn is_closed_by(self, line: &str) -> bool {
        let text = line.trim();
        text.chars().all(|c| c == self.mark) && text.chars().count() >= self.length
    }
}

impl Markdown {
    pub fn new(style: Style) -> Self {
        Self {
            style,
            line: String::new(),
            block: String::new(),
            fence: None,
            has_gap: false,
            has_begun: false,
            preview: Preview::default(),
        }
    }

    /// Adds text. Returns the drawing of the blocks that the text completes, and a preview of the
    /// incomplete block.
    pub fn push(&mut self, text: &str) -> Drawing {
        let mut out = self.preview.erase();
        for line in preview::completed(&mut self.line, text) {
            self.take(&line, &mut out);
        }
        self.draw_preview(&mut out);
        out
    }

    /// Returns the drawing of the remaining text, and resets the state for the next text.
    pub fn finish(&mut self) -> Drawing {
        let mut out = self.preview.erase();
        let line = std::mem::take(&mut self.line);
        if !line.trim().is_empty() {
            self.take(&line, &mut out);
        }
        self.flush(&mut out);
        (self.fence, self.has_gap, self.has_begun) = (None, false, false);
        out
    }

    /// Draws a line above the incomplete block, of which only the preview is on the screen.
    pub fn interject(&mut self, line: &Drawing) -> Drawing {
        let mut out = self.preview.erase() + line.clone() + "\n";
        self.draw_preview(&mut out);
        out
    }

    fn draw_preview(&mut self, out: &mut Drawing) {
        let text = if self.line.trim().is_empty() {
            self.block.lines().last().unwrap_or_default()
        } else {
            &self.line
        };
        self.preview.draw(text, self.style, out);
    }

    /// Processes a complete line. Draws a line of code at once, and other text when its block is
    /// complete.
    fn take(&mut self, line: &str, out: &mut Drawing) {
        if let Some(fence) = self.fence {
            match fence.is_closed_by(line) {
                true => self.fence = None,
                false => self.code(line, fence.indent, out),
            }
            return;
        }
        if let Some(fence) = CodeFence::of(line) {
            self.flush(out);
            self.fence = Some(fence);
        } else if line.trim().is_empty() {
            self.flush(out);
            self.has_gap = true;
        } else {
            let is_one_line = is_heading(line) || is_rule(line);
            if is_one_line
                || ListItem::of(line).is_some()
                || self.block.len() + line.len() > LONGEST_BLOCK
            {
                self.flush(out);
            }
            self.block.push_str(line);
            self.block.push('\n');
            if is_one_line {
                self.flush(out);
            }
        }
    }

    fn code(&mut self, line: &str, indent: usize, out: &mut Drawing) {
        let own = line.len() - line.trim_start_matches(' ').len();
        let line = line.get(own.min(indent)..).unwrap_or(line);
        self.begin(out);
        *out += &(self.style.paint(Paint::Code, line) + "\n");
    }

    fn begin(&mut self, out: &mut Drawing) {
        if self.has_gap && self.has_begun {
            *out += "\n";
        }
        (self.has_gap, self.has_begun) = (false, true);
    }

    /// Draws the current block and empties it.
    fn flush(&mut self, out: &mut Drawing) {
        let block = std::mem::take(&mut self.block);
        if block.is_empty() {
            return;
        }
        self.begin(out);
        if hides_text(&block) {
            *out += block.as_str();
        } else if is_rule(&block) {
            *out += &(self
                .style
                .paint(Paint::Dim, &"─".repeat(RULE.min(self.style.width)))
                + "\n");
        } else if let Some(item) = ListItem::of(&block) {
            let mark = self.style.paint(Paint::Dim, &item.mark);
            *out += &(Drawing::text(&" ".repeat(item.indent)) + mark + " ");
            *out += &self.indented(item.text, item.indent + item.mark.width() + 1);
        } else if block.lines().all(|line| line.trim_start().starts_with('>')) {
            let inner: String = block
                .lines()
                .map(|line| {
                    line.trim_start()
                        .trim_start_matches('>')
                        .trim_start()
                        .to_owned()
                        + "\n"
                })
                .collect();
            let mark = self.style.paint(Paint::Dim, "│ ");
            for line in inner.lines() {
                *out += &(mark.clone() + self.paragraph(line, 2, &mark));
            }
        } else if block.trim_start().starts_with('|') && block.lines().count() > 1 {
            *out += &inline::table(&block, self.style);
        } else {
            let indent = block.len() - block.trim_start_matches(' ').len();
            *out += " ".repeat(indent).as_str();
            *out += &self.indented(&block, indent);
        }
    }

    /// Draws the text of a block, whose first line begins in the column `indent`.
    fn indented(&self, text: &str, indent: usize) -> Drawing {
        self.paragraph(text, indent, &Drawing::text(&" ".repeat(indent)))
    }

    /// Draws the text of a block. All lines except the first begin with `lead`, which takes `indent`
    /// columns.
    fn paragraph(&self, text: &str, indent: usize, lead: &Drawing) -> Drawing {
        // The parser would treat indented text as code.
        let text: String = text
            .lines()
            .map(|line| line.trim_start().to_owned() + "\n")
            .collect();
        InlineText::of(&text).wrapped(self.style, indent, lead) + "\n"
    }
}

/// Returns whether the parser could omit parts of a block: HTML, link definitions, or table cells
/// without a column.
fn hides_text(block: &str) -> bool {
    let mut lines = block.lines().map(str::trim_start);
    let cells = |line: &str| line.matches('|').count();
    let columns = block.lines().next().map_or(0, cells);
    lines.any(|line| {
        line.starts_with('<')
            || (line.starts_with('[') && line.contains("]:"))
            || (line.starts_with('|') && cells(line) > columns)
    })
}

fn is_heading(line: &str) -> bool {
    let level = line.chars().take_while(|c| *c == '#').count();
    (1..=6).contains(&level) && line.chars().nth(level) == Some(' ')
}

fn is_rule(line: &str) -> bool {
    let text: Vec<char> = line.chars().filter(|c| !c.is_whitespace()).collect();
    text.len() >= 3
        && text.first().is_some_and(|first| {
            matches!(first, '-' | '*' | '_') && text.iter().all(|c| c == first)
        })
}

/// The marker and the text of a list item.
struct ListItem<'a> {
    indent: usize,
    mark: String,
    text: &'a str,
}

impl<'a> ListItem<'a> {
    fn of(block: &'a str) -> Option<Self> {
        let text = block.trim_start_matches(' ');
        let indent = block.len() - text.len();
        let (mark, rest) = text.split_once(' ')?;
        let digits = mark.trim_end_matches(['.', ')']);
        let is_number = digits.len() + 1 == mark.len() && digits.len() <= 9 && !digits.is_empty();
        match mark {
            "-" | "*" | "+" => Some(Self {
                indent,
                mark: "•".into(),
                text: rest,
            }),
            _ if is_number && digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(Self {
                indent,
                mark: mark.into(),
                text: rest,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::style::ERASE_LINE;

    const STYLE: Style = Style {
        colour: true,
        in_place: true,
        width: 60,
    };

    /// Returns the output for a text that arrives in pieces of this number of characters.
    fn written(text: &str, piece: usize) -> String {
        let mut markdown = Markdown::new(STYLE);
        let chars: Vec<char> = text.chars().collect();
        let mut out = Drawing::default();
        for piece in chars.chunks(piece) {
            out += &markdown.push(&piece.iter().collect::<String>());
        }
        out += &markdown.finish();
        out.as_str().to_owned()
    }

    /// Returns the part of the output of `written` that remains visible on the screen.
    fn drawn(text: &str, piece: usize) -> String {
        let text = written(text, piece);
        // Previews are overwritten, so only the text after the last erasure of each line remains.
        let lines = text
            .split('\n')
            .map(|line| line.rsplit(ERASE_LINE).next().unwrap_or(line));
        lines.collect::<Vec<_>>().join("\n").replace('\x1b', "␛")
    }

    const TEXT: &str = "\
\n# A title\n\nSome **bold** and *soft* words with `code`,\nand a [link](https://x.y).\n\n\n- one\n- two **b**\n  more\n  - below\n
3. three\n\n```rust\nfn main() {\n\n    **no**\n}\n```\n> quoted\n> twice\n\n| a | long |\n|---|---|\n| `x` | 1 |\n\n---\nlast <b>raw</b>";

    #[test]
    fn each_kind_of_block_is_drawn() {
        let rule = "─".repeat(RULE);
        let expected = [
            "␛[1mA title␛[0m",
            "",
            "Some ␛[1mbold␛[0m and ␛[3msoft␛[0m words with ␛[36mcode␛[0m,",
            "and a link␛[2m (https://x.y)␛[0m.",
            "",
            "␛[2m•␛[0m one",
            "␛[2m•␛[0m two ␛[1mb␛[0m",
            "  more",
            "  ␛[2m•␛[0m below",
            "",
            "␛[2m3.␛[0m three",
            "",
            "␛[36mfn main() {␛[0m",
            "␛[36m␛[0m",
            "␛[36m    **no**␛[0m",
            "␛[36m}␛[0m",
            "␛[2m│ ␛[0mquoted",
            "␛[2m│ ␛[0mtwice",
            "",
            "␛[1ma␛[0m  ␛[1mlong␛[0m",
            "␛[36mx␛[0m  1",
            "",
            &format!("␛[2m{rule}␛[0m"),
            "last <b>raw</b>",
            "",
        ];
        assert_eq!(drawn(TEXT, 1000), expected.join("\n"));
    }

    #[test]
    fn prose_is_broken_between_words_and_code_is_not() {
        let words = "word ".repeat(14);
        let long = "x".repeat(70);
        let text = format!(
            "{words}**{words}end**\n\n- {words}\n\n> {words}\n\n```\n{words}\n```\nsee {long}"
        );
        let line = "word ".repeat(12);
        let expected = [
            line.trim_end(),
            &format!("word word ␛[1m{}␛[0m", "word ".repeat(10).trim_end()),
            "␛[1mword word word word end␛[0m",
            "",
            &format!("␛[2m•␛[0m {}", "word ".repeat(11).trim_end()),
            "  word word word",
            "",
            &format!("␛[2m│ ␛[0m{}", "word ".repeat(11).trim_end()),
            "␛[2m│ ␛[0mword word word",
            "",
            &format!("␛[36m{words}␛[0m"),
            "see",
            &long,
            "",
        ];
        assert_eq!(drawn(&text, 1000), expected.join("\n"));
    }

    #[test]
    fn text_that_a_parser_would_drop_is_kept() {
        for text in [
            "<!-- one\ntwo -->",
            "[1]: http://x.y",
            "| a |\n|---|\n| b | c |",
            "<p>one</p>\ntwo",
        ] {
            assert_eq!(drawn(text, 1000).trim_end(), text);
        }
        assert_eq!(drawn("one\n> two", 1000), "one\ntwo\n");
    }

    #[test]
    fn pieces_of_any_size_draw_the_same() {
        for piece in [1, 2, 7, 40] {
            assert_eq!(
                drawn(TEXT, piece),
                drawn(TEXT, 1000),
                "in pieces of {piece}"
            );
        }
    }

    #[test]
    fn text_is_previewed_while_it_is_written() {
        let mut markdown = Markdown::new(STYLE);
        assert_eq!(
            markdown.push("A sentence that is").as_str(),
            "\x1b[2mA sentence that is\x1b[0m"
        );
        assert_eq!(
            markdown.push(" done.\n\n").as_str(),
            "\r\x1b[2KA sentence that is done.\n"
        );
        let long = markdown.push(&"wörd ".repeat(100));
        assert!(
            long.as_str().chars().count() < 60 + 8,
            "a preview is one line: {long:?}"
        );
    }

    #[test]
    fn nothing_in_markdown_moves_the_cursor() {
        let hostile = "# \x1b[2J\n\n**\x1b]0;t\x07** `\u{9b}2J` [a](http://\x1b[1m) \u{202e} &#27;[2J\n\n| \x1b[2J | b |\n|-|-|\n| \x07 | c |\n\n```\n\x1b[2J\n```\n- \x1b[H";
        let written = written(hostile, 3);
        let ours = [
            ERASE_LINE, "\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[3m", "\x1b[36m",
        ];
        let foreign = ours
            .iter()
            .fold(written.clone(), |text, own| text.replace(own, ""));
        assert!(
            !foreign.contains(|c: char| (c.is_control() && c != '\n') || c == '\u{202e}'),
            "{written:?}"
        );
        assert!(
            foreign.contains("␛[2J"),
            "it is shown that somebody tried: {written:?}"
        );
    }
}
