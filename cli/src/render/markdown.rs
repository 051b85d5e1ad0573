//! Renders Markdown on a terminal, block by block, while the text still arrives. The end of the
//! incomplete block is previewed on one line, which is then overwritten.
//!
//! A Markdown parser needs the whole document, so this module separates the blocks itself, line by
//! line, and `pulldown_cmark` parses the text within a block. All text goes through [`Drawing`], so
//! it cannot contain escape sequences.

use std::ops::Range;

use planck_host::terminal::{Drawing, clean};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use unicode_width::UnicodeWidthStr as _;

use super::{
    prose::{self, Preview},
    style::{Paint, RESET, Style},
};

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
        for line in prose::complete_lines(&mut self.line, text) {
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
            *out += &table(&block, self.style);
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

/// A parsed text and how its parts are painted.
#[derive(Debug, Default)]
struct InlineText {
    text: String,
    /// The paints from a position in the text on.
    changes: Vec<(usize, Vec<Paint>)>,
    /// The paints that are open.
    paints: Vec<Paint>,
    /// The targets of the links that are open, each with the position at which its text begins.
    links: Vec<(String, usize)>,
}

impl InlineText {
    /// Parses the text of one block.
    fn of(text: &str) -> Self {
        let mut inline = Self::default();
        parser(text).for_each(|event| inline.event(event));
        inline
    }

    /// Returns the width on the screen, if the text is on one line.
    fn width(&self) -> usize {
        self.text.width()
    }

    /// Draws the text as it is.
    fn drawing(&self, style: Style) -> Drawing {
        let mut ink = Ink::of(self, style);
        ink.draw(0..self.text.len());
        ink.out
    }

    /// Draws the text on lines that end before the width of the terminal. The first line begins in
    /// the column `indent`. All others begin with `lead`, which takes as many columns.
    fn wrapped(&self, style: Style, indent: usize, lead: &Drawing) -> Drawing {
        let (mut ink, mut start) = (Ink::of(self, style), 0);
        let room = style.width.saturating_sub(indent);
        for (at, line) in self.text.split('\n').enumerate() {
            let parts = prose::wrapped(line, room, room);
            for (part_at, part) in parts.into_iter().enumerate() {
                if at + part_at > 0 {
                    ink.out += "\n";
                    ink.out += lead;
                }
                ink.draw(start + part.start..start + part.end);
            }
            start += line.len() + 1;
        }
        ink.out
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            // A quotation may begin within the text, without a line end of its own.
            Event::Start(Tag::Paragraph) if !self.text.is_empty() && !self.text.ends_with('\n') => {
                self.write("\n");
            }
            Event::Start(Tag::Heading { .. } | Tag::Strong) => self.open(Paint::Strong),
            Event::Start(Tag::Emphasis) => self.open(Paint::Soft),
            Event::Start(Tag::Strikethrough) => self.open(Paint::Dim),
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                self.links.push((dest_url.into_string(), self.text.len()));
            }
            Event::End(
                TagEnd::Heading(_) | TagEnd::Strong | TagEnd::Emphasis | TagEnd::Strikethrough,
            ) => self.close(),
            Event::End(TagEnd::Link | TagEnd::Image) => self.target(),
            Event::Code(code) => {
                self.open(Paint::Code);
                self.write(&code);
                self.close();
            }
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => {
                self.write(text.trim_end_matches('\n'))
            }
            Event::SoftBreak | Event::HardBreak => self.write("\n"),
            Event::TaskListMarker(done) => self.write(if done { "☑ " } else { "☐ " }),
            Event::InlineMath(text) | Event::DisplayMath(text) | Event::FootnoteReference(text) => {
                self.write(&text)
            }
            Event::Start(_) | Event::End(_) | Event::Rule => {}
        }
    }

    /// Appends the target of the link that ends, unless its text already shows the target.
    fn target(&mut self) {
        let Some((url, at)) = self.links.pop() else {
            return;
        };
        if self.text.get(at..).is_some_and(|text| text != url) && !url.is_empty() {
            self.open(Paint::Dim);
            self.write(&format!(" ({url})"));
            self.close();
        }
    }

    fn write(&mut self, text: &str) {
        self.text.push_str(&clean(text));
    }

    fn open(&mut self, paint: Paint) {
        self.paints.push(paint);
        self.changes.push((self.text.len(), self.paints.clone()));
    }

    fn close(&mut self) {
        self.paints.pop();
        self.changes.push((self.text.len(), self.paints.clone()));
    }
}

/// Draws the parts of a text one after the other. Nothing is painted between two parts.
struct Ink<'a> {
    text: &'a str,
    changes: &'a [(usize, Vec<Paint>)],
    active: &'a [Paint],
    style: Style,
    out: Drawing,
}

impl<'a> Ink<'a> {
    fn of(inline: &'a InlineText, style: Style) -> Self {
        Self {
            text: &inline.text,
            changes: if style.colour { &inline.changes } else { &[] },
            active: &[],
            style,
            out: Drawing::default(),
        }
    }

    fn draw(&mut self, part: Range<usize>) {
        while let Some(paints) = self.change_until(part.start) {
            self.active = paints.1;
        }
        self.begin(self.active);
        let mut at = part.start;
        while let Some((from, paints)) = self.change_until(part.end) {
            self.out += self.text.get(at..from).unwrap_or_default();
            at = from;
            match paints.strip_prefix(self.active) {
                Some(more) => self.begin(more),
                None => {
                    self.end();
                    self.begin(paints);
                }
            }
            self.active = paints;
        }
        self.out += self.text.get(at..part.end).unwrap_or_default();
        self.end();
    }

    /// Takes the next change if it is not after a position.
    fn change_until(&mut self, end: usize) -> Option<(usize, &'a [Paint])> {
        let ((from, paints), rest) = self
            .changes
            .split_first()
            .filter(|(first, _)| first.0 <= end)?;
        self.changes = rest;
        Some((*from, paints))
    }

    fn begin(&mut self, paints: &[Paint]) {
        for paint in paints {
            self.out += &Drawing::control(paint.code());
        }
    }

    fn end(&mut self) {
        if !self.active.is_empty() && self.style.colour {
            self.out += &Drawing::control(RESET);
        }
    }
}

fn parser(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH)
}

/// Renders a table with aligned columns. A block that is not a valid table is rendered as text.
fn table(block: &str, style: Style) -> Drawing {
    let mut rows: Vec<Vec<InlineText>> = Vec::new();
    let mut is_table = false;
    for event in parser(block) {
        is_table |= matches!(event, Event::Start(Tag::Table(_)));
        if matches!(event, Event::Start(Tag::TableHead | Tag::TableRow)) {
            rows.push(Vec::new());
            continue;
        }
        let is_head = rows.len() == 1;
        let Some(row) = rows.last_mut() else { continue };
        if matches!(event, Event::Start(Tag::TableCell)) {
            let mut cell = InlineText::default();
            if is_head {
                cell.open(Paint::Strong);
            }
            row.push(cell);
            continue;
        }
        let Some(cell) = row.last_mut() else { continue };
        cell.event(event.clone());
        if is_head && matches!(event, Event::End(TagEnd::TableCell)) {
            cell.close();
        }
    }
    if !is_table {
        return InlineText::of(block).drawing(style) + "\n";
    }
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        rows.iter()
            .filter_map(|row| row.get(at))
            .map(InlineText::width)
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = Drawing::default();
    for row in &rows {
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let room = if at + 1 == columns {
                0
            } else {
                width.saturating_sub(cell.width()) + 2
            };
            out += &cell.drawing(style);
            out += " ".repeat(room).as_str();
        }
        out += "\n";
    }
    out
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
