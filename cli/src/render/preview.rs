//! The last words of a text that is not complete, on one line of the terminal that is then
//! overwritten.

use unicode_width::UnicodeWidthChar as _;

use super::style::{ERASE_LINE, Paint, Style};
use planck_host::terminal::Drawing;

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
