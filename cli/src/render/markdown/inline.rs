//! Renders the text within a block: emphasis, code, links and table cells.

use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use unicode_width::UnicodeWidthStr as _;

use crate::render::{
    style::{Paint, RESET, Style},
    wrap,
};
use planck_host::terminal::{Drawing, clean};

/// A parsed text and how its parts are painted.
#[derive(Debug, Default)]
pub struct InlineText {
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
    pub fn of(text: &str) -> Self {
        let mut inline = Self::default();
        parser(text).for_each(|event| inline.event(event));
        inline
    }

    /// Returns the width on the screen, if the text is on one line.
    pub fn width(&self) -> usize {
        self.text.width()
    }

    /// Draws the text as it is.
    pub fn drawing(&self, style: Style) -> Drawing {
        let mut ink = Ink::of(self, style);
        ink.draw(0..self.text.len());
        ink.out
    }

    /// Draws the text on lines that end before the width of the terminal. The first line begins in
    /// the column `indent`. All others begin with `lead`, which takes as many columns.
    pub fn wrapped(&self, style: Style, indent: usize, lead: &Drawing) -> Drawing {
        let (mut ink, mut start) = (Ink::of(self, style), 0);
        let room = style.width.saturating_sub(indent);
        for (at, line) in self.text.split('\n').enumerate() {
            let parts = wrap::lines(line, room, room);
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
pub fn table(block: &str, style: Style) -> Drawing {
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
