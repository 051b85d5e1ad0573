//! Draws the open question.

use std::io;

use super::{Asker, OpenQuestion, request};
use crate::{
    render::style::{ERASE_LINE, Paint, counted},
    watch::EventDisplay,
};
use planck_host::terminal::Drawing;

impl Asker {
    /// Returns what takes the prompt's line off the screen, or ends the line.
    pub(super) fn erased(&self) -> Drawing {
        match self.style.in_place {
            true => Drawing::control(ERASE_LINE),
            false => Drawing::text("\n"),
        }
    }

    /// Draws the request of the open question.
    pub(super) fn request(&self, display: &EventDisplay) -> io::Result<()> {
        let Some(OpenQuestion { dialog, .. }) = &self.open else {
            return Ok(());
        };
        let agent = display.name_of(&dialog.wait.agent_id);
        let args = dialog.args.as_deref();
        let mut drawing = request::block(&dialog.wait, args, agent.as_deref(), self.style);
        let more = self.next.len();
        if more > 0 {
            let more = format!("    {} more\n", counted(more, "question"));
            drawing += &self.style.paint(Paint::Dim, &more);
        }
        self.to.draw(&drawing)
    }

    /// Draws the prompt, in place of the last one.
    pub(super) fn prompt(&self) -> io::Result<()> {
        let Some(open) = &self.open else {
            return Ok(());
        };
        if open.counts_at.is_some() {
            return Ok(());
        }
        let start = match self.style.in_place {
            true => Drawing::control(ERASE_LINE),
            false => Drawing::default(),
        };
        self.to.draw(&(start + open.dialog.prompt(self.style)))
    }

    /// Shows the output that was held back if there is much of it, and then the question again.
    pub fn make_room(&mut self, display: &mut EventDisplay) -> io::Result<()> {
        if self.open.is_none() || !display.is_full() {
            return Ok(());
        }
        self.to.draw(&self.erased())?;
        display.release()?;
        display.hold()?;
        self.request(display)?;
        self.prompt()
    }

    /// Draws lines in place of the prompt.
    pub(super) fn say(&self, lines: &[String]) -> io::Result<()> {
        let lines = lines.iter();
        let lines = lines.map(|line| self.style.paint(Paint::Dim, &format!("    {line}")) + "\n");
        self.to.draw(&(self.erased() + lines.collect::<Drawing>()))
    }

    pub(super) fn help(&self) -> io::Result<()> {
        let Some(OpenQuestion { dialog, .. }) = &self.open else {
            return Ok(());
        };
        let whole = request::whole(&dialog.wait, dialog.args.as_deref(), self.style);
        self.to.draw(&(self.erased() + whole))?;
        let lines = dialog.help().into_iter();
        let lines = lines.map(|line| self.style.paint(Paint::Dim, &format!("    {line}")) + "\n");
        self.to.draw(&lines.collect())
    }
}
