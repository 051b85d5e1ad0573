//! The last words of a text that is not complete, on one line of the terminal that is then
//! overwritten.

use unicode_width::UnicodeWidthChar as _;

use super::style::{ERASE_LINE, Paint, Style};
use planck_host::terminal::Drawing;

/// The size in bytes above which an incomplete line counts as complete.
const LONGEST_LINE: usize = 64 * 1024;

/// Adds text to an incomplete line, and returns the lines that the text completes.
pub fn completed(line: &mut String, text: &str) -> Vec<String> {
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
