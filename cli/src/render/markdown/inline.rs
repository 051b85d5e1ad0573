//! Renders the text within a block: emphasis, code, links and table cells.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use unicode_width::UnicodeWidthStr as _;

use crate::render::style::{Paint, RESET, Style};
use planck_host::terminal::Drawing;

/// A rendered text and its width on the screen.
#[derive(Debug, Default)]
pub struct InlineText {
    pub drawing: Drawing,
    pub width: usize,
    paints: Vec<Paint>,
    /// The targets of the links that are open, each with the position at which its text begins.
    links: Vec<(String, usize)>,
    text: String,
}

impl InlineText {
    /// Parses the text of one block. All lines except the first get the indentation.
    pub fn of(text: &str, style: Style, indent: &str) -> Self {
        let mut inline = Self::default();
        for event in parser(text) {
            inline.event(event, style, indent);
        }
        inline
    }

    fn event(&mut self, event: Event<'_>, style: Style, indent: &str) {
        match event {
            Event::Start(Tag::Heading { .. } | Tag::Strong) => self.open(Paint::Strong, style),
            Event::Start(Tag::Emphasis) => self.open(Paint::Soft, style),
            Event::Start(Tag::Strikethrough) => self.open(Paint::Dim, style),
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                self.links.push((dest_url.into_string(), self.text.len()));
            }
            Event::End(
                TagEnd::Heading(_) | TagEnd::Strong | TagEnd::Emphasis | TagEnd::Strikethrough,
            ) => self.close(style),
            Event::End(TagEnd::Link | TagEnd::Image) => self.target(style),
            Event::Code(code) => {
                self.open(Paint::Code, style);
                self.write(&code);
                self.close(style);
            }
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => {
                self.write(text.trim_end_matches('\n'))
            }
            Event::SoftBreak | Event::HardBreak => self.write(&format!("\n{indent}")),
            Event::TaskListMarker(done) => self.write(if done { "☑ " } else { "☐ " }),
            Event::InlineMath(text) | Event::DisplayMath(text) | Event::FootnoteReference(text) => {
                self.write(&text)
            }
            Event::Start(_) | Event::End(_) | Event::Rule => {}
        }
    }

    /// Appends the target of the link that ends, unless its text already shows the target.
    fn target(&mut self, style: Style) {
        let Some((url, at)) = self.links.pop() else {
            return;
        };
        if self.text.get(at..).is_some_and(|text| text != url) && !url.is_empty() {
            self.open(Paint::Dim, style);
            self.write(&format!(" ({url})"));
            self.close(style);
        }
    }

    fn write(&mut self, text: &str) {
        self.drawing += text;
        self.width += text.width();
        self.text.push_str(text);
    }

    fn open(&mut self, paint: Paint, style: Style) {
        self.paints.push(paint);
        if style.colour {
            self.drawing += &Drawing::control(paint.code());
        }
    }

    fn close(&mut self, style: Style) {
        self.paints.pop();
        if style.colour {
            self.drawing += &Drawing::control(RESET);
            self.paints
                .iter()
                .for_each(|paint| self.drawing += &Drawing::control(paint.code()));
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
                cell.open(Paint::Strong, style);
            }
            row.push(cell);
            continue;
        }
        let Some(cell) = row.last_mut() else { continue };
        cell.event(event.clone(), style, "");
        if is_head && matches!(event, Event::End(TagEnd::TableCell)) {
            cell.close(style);
        }
    }
    if !is_table {
        return InlineText::of(block, style, "").drawing + "\n";
    }
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        rows.iter()
            .filter_map(|row| row.get(at))
            .map(|cell| cell.width)
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
                width.saturating_sub(cell.width) + 2
            };
            out += &cell.drawing;
            out += " ".repeat(room).as_str();
        }
        out += "\n";
    }
    out
}
