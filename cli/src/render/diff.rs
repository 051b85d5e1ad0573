//! The lines of a change to a text: those that are removed and added, with a few of the equal lines
//! around them, as in a unified diff.

use std::time::Duration;

use similar::{ChangeTag, TextDiff};
use unicode_width::UnicodeWidthChar as _;

use super::style::{Paint, Style, counted, cut};
use planck_host::terminal::{Drawing, clean};

/// The number of lines of a change that are shown at first.
pub const FIRST_LINES: usize = 24;

/// The number of equal lines that are shown before and after a change.
const CONTEXT: usize = 3;

/// How long the comparison of two texts may take. After that it is coarser, but still right.
const LONGEST: Duration = Duration::from_millis(200);

/// The number of characters of a line that are written where no terminal has a width.
const MOST: usize = 400;

/// The kind of a line of a change or of another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineMark {
    Plain,
    Note,
    Removed,
    Added,
}

pub type MarkedLine = (LineMark, String);

/// Returns the hunks of the change from one text to another. A note stands between two of them.
pub fn hunks(old: &str, new: &str) -> Vec<MarkedLine> {
    let diff = TextDiff::configure().timeout(LONGEST).diff_lines(old, new);
    let mut lines = Vec::new();
    for (at, group) in diff.grouped_ops(CONTEXT).iter().enumerate() {
        if at > 0 {
            lines.push((LineMark::Note, "⋯".to_owned()));
        }
        let changes = group.iter().flat_map(|part| diff.iter_changes(part));
        lines.extend(changes.map(|change| {
            let mark = match change.tag() {
                ChangeTag::Equal => LineMark::Plain,
                ChangeTag::Delete => LineMark::Removed,
                ChangeTag::Insert => LineMark::Added,
            };
            let line = change.value().trim_end_matches(['\n', '\r']);
            (mark, line.to_owned())
        }));
    }
    lines
}

/// Draws the first lines of a change, to follow the line of its call, one row each. A line that is
/// wider than the terminal is cut and not broken, so that the signs at the left stay in their column.
pub fn below_its_call(lines: &[MarkedLine], style: Style) -> Drawing {
    let room = match style.in_place {
        true => style.width.saturating_sub(6),
        false => MOST,
    };
    let mut drawing: Drawing = lines
        .iter()
        .take(FIRST_LINES)
        .map(|(mark, text)| Drawing::text("\n") + row(*mark, &cut(&shown(text), room), style))
        .collect();
    let hidden = lines.len().saturating_sub(FIRST_LINES);
    if hidden > 0 {
        let more = format!("… {} more", counted(hidden, "line"));
        drawing += "\n";
        drawing += &row(LineMark::Note, &more, style);
    }
    drawing
}

/// Draws a line on as many rows as it needs, so that a person who decides about it sees all of it.
pub fn whole(mark: LineMark, text: &str, style: Style) -> Drawing {
    let columns = style.width.saturating_sub(6).max(20);
    let rows = rows(&shown(text), columns);
    let rows = rows.iter().map(|text| row(mark, text, style) + "\n");
    rows.collect()
}

/// Draws a row with a bar at its left, so that it never looks like a line of Planck itself.
fn row(mark: LineMark, text: &str, style: Style) -> Drawing {
    let (sign, paint) = match mark {
        LineMark::Plain => (" ", None),
        LineMark::Note => (" ", Some(Paint::Dim)),
        LineMark::Removed => ("-", Some(Paint::Bad)),
        LineMark::Added => ("+", Some(Paint::Good)),
    };
    let row = format!("{sign} {text}");
    let bar = style.paint(Paint::Dim, "  │ ");
    let row = match paint {
        Some(paint) => style.paint(paint, &row),
        None => Drawing::text(&row),
    };
    bar + row
}

fn shown(text: &str) -> String {
    clean(&text.replace('\t', "    ")).into_owned()
}

/// Cuts a text into rows of at most this many columns.
fn rows(text: &str, columns: usize) -> Vec<String> {
    let (mut rows, mut used) = (vec![String::new()], 0);
    for c in text.chars() {
        let width = c.width().unwrap_or(1);
        if used + width > columns {
            rows.push(String::new());
            used = 0;
        }
        used += width;
        if let Some(row) = rows.last_mut() {
            row.push(c);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(old: &str, new: &str, style: Style) -> String {
        let drawing = below_its_call(&hunks(old, new), style);
        drawing.as_str().replace('\x1b', "␛")
    }

    #[test]
    fn change_is_shown_with_a_few_equal_lines_around_it() {
        let old: String = (1..=30).map(|n| format!("line {n}\n")).collect();
        let new = old
            .replace("line 5\n", "five\nand a half\n")
            .replace("line 25\n", "");
        insta::assert_snapshot!(drawn(&old, &new, Style::plain(60)), @r"
          │   line 2
          │   line 3
          │   line 4
          │ - line 5
          │ + five
          │ + and a half
          │   line 6
          │   line 7
          │   line 8
          │   ⋯
          │   line 22
          │   line 23
          │   line 24
          │ - line 25
          │   line 26
          │   line 27
          │   line 28
        ");
    }

    #[test]
    fn only_a_terminal_gets_colours_and_cut_lines() {
        let wide = "wörd ".repeat(30);
        let terminal = Style {
            colour: true,
            in_place: true,
            width: 40,
        };
        let old = format!("\tone \u{1b}[2J\n{wide}\n");
        insta::assert_snapshot!(drawn(&old, "\tone\n", terminal), @r"
        ␛[2m  │ ␛[0m␛[31m-     one ␛[2J␛[0m
        ␛[2m  │ ␛[0m␛[31m- wörd wörd wörd wörd wörd wörd wör…␛[0m
        ␛[2m  │ ␛[0m␛[32m+     one␛[0m
        ");
        let plain = drawn(&old, "", Style::plain(40));
        assert!(plain.contains(wide.trim_end()), "{plain}");
    }

    #[test]
    fn long_change_says_how_much_of_it_is_hidden() {
        let new: String = (1..=30).map(|n| format!("{n}\n")).collect();
        let drawn = drawn("", &new, Style::plain(40));
        assert!(drawn.ends_with("  │ + 24\n  │   … 6 lines more"), "{drawn}");
    }
}
