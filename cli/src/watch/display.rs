//! Where the events of a session are shown.

use planck_common::{
    AgentId, InputId, Timestamp,
    command::{SessionInfo, WaitRow},
    event::json,
    usage::Usage,
};

use crate::{
    output::{EventFormat, Stream, json_text, warn},
    render::{Screen, Style, retraction, style::ERASE_LINE},
    waits::own_name,
};
use planck_client::{ClientError, FollowEvent};
use planck_host::terminal::Drawing;

/// The number of bytes of held output above which it should be shown.
const MOST_HELD: usize = 64 * 1024;

/// The destination of a session's events.
pub enum EventDisplay {
    Screen(Box<ScreenDisplay>),
    /// JSON lines with one envelope each.
    Jsonl,
}

/// The screen.
pub struct ScreenDisplay {
    screen: Screen,
    /// Without a stream, nothing is written and only the totals are computed.
    to: Option<Stream>,
    /// The output that is held back, or `None` if output is written at once.
    held: Option<Drawing>,
    /// Whether the last line of the terminal shows which tools run. It is erased before other
    /// output.
    has_status: bool,
}

impl ScreenDisplay {
    /// Writes output, and the status below it.
    fn draw(&mut self, drawing: &Drawing) -> std::io::Result<()> {
        match (&mut self.held, self.to) {
            (Some(held), Some(_)) => *held += drawing,
            (None, Some(to)) => {
                let mut all = self.erased() + drawing.clone();
                if let Some(status) = self.screen.status(Timestamp::now()) {
                    all += &status;
                    self.has_status = true;
                }
                to.draw(&all)?;
            }
            (_, None) => {}
        }
        Ok(())
    }

    /// Ends the open text and the status, so that others can write to the terminal.
    fn end_text(&mut self) -> std::io::Result<()> {
        let rest = self.screen.end_text();
        match (&mut self.held, self.to) {
            (Some(held), Some(_)) => *held += &rest,
            (None, Some(to)) => to.draw(&(self.erased() + rest))?,
            (_, None) => {}
        }
        Ok(())
    }

    fn erased(&mut self) -> Drawing {
        match std::mem::take(&mut self.has_status) {
            true => Drawing::control(ERASE_LINE),
            false => Drawing::default(),
        }
    }
}

impl EventDisplay {
    pub fn of(format: EventFormat) -> Self {
        match format {
            EventFormat::Text => {
                let mut screen = Screen::new(Style::of_stdout());
                screen.summary.each_turn = true;
                Self::with(screen, Some(Stream::Out))
            }
            EventFormat::Jsonl => Self::Jsonl,
        }
    }

    pub fn screen(to: Option<Stream>) -> Self {
        Self::with(Screen::new(to.map_or(Style::plain(100), Style::of)), to)
    }

    fn with(mut screen: Screen, to: Option<Stream>) -> Self {
        screen.set_reader(own_name());
        Self::Screen(Box::new(ScreenDisplay {
            screen,
            to,
            held: None,
            has_status: false,
        }))
    }

    pub fn show(&mut self, event: &FollowEvent) -> std::io::Result<()> {
        match (self, event) {
            (Self::Screen(display), event) => {
                let drawing = display.screen.draw_event(event);
                display.draw(&drawing)
            }
            (Self::Jsonl, FollowEvent::Durable(event) | FollowEvent::Live(event)) => {
                json_text(&(json(event) + "\n"))
            }
            (Self::Jsonl, FollowEvent::Retracted(retracted)) => {
                warn(&format!("planck: {}", retraction(retracted)));
                Ok(())
            }
            (Self::Jsonl, FollowEvent::Retrying(error)) => {
                warn(&format!("planck: {error}"));
                Ok(())
            }
            (Self::Jsonl, FollowEvent::CaughtUp) => Ok(()),
        }
    }

    /// Prints why the session cannot be followed any longer.
    pub fn lost(&mut self, error: &ClientError) -> std::io::Result<()> {
        match self {
            Self::Screen(display) => {
                let drawing = display.screen.lost(error);
                display.draw(&drawing)
            }
            Self::Jsonl => {
                warn(&format!("planck: {error}"));
                Ok(())
            }
        }
    }

    /// Ends the open text on the screen, and writes the output that waited for its end.
    pub fn end_text(&mut self) -> std::io::Result<()> {
        match self {
            Self::Screen(display) => display.end_text(),
            Self::Jsonl => Ok(()),
        }
    }

    /// Returns whether the time that a tool has run is shown, so that it must be drawn again soon.
    pub fn shows_time(&self) -> bool {
        let Self::Screen(display) = self else {
            return false;
        };
        let is_shown = display.to.is_some() && display.held.is_none();
        is_shown && display.screen.status(Timestamp::now()).is_some()
    }

    /// Draws the time that a tool has run.
    pub fn tick(&mut self) -> std::io::Result<()> {
        match self {
            Self::Screen(display) => display.draw(&Drawing::default()),
            Self::Jsonl => Ok(()),
        }
    }

    /// Ends the open text, and holds the output back from now on.
    pub fn hold(&mut self) -> std::io::Result<()> {
        self.end_text()?;
        if let Self::Screen(display) = self {
            display.held.get_or_insert_default();
        }
        Ok(())
    }

    /// Writes the output that was held back, and all further output at once.
    pub fn release(&mut self) -> std::io::Result<()> {
        if let Self::Screen(display) = self
            && let Some(held) = display.held.take()
        {
            display.draw(&held)?;
        }
        Ok(())
    }

    /// Returns whether so much output is held back that it should be shown.
    pub fn is_full(&self) -> bool {
        let Self::Screen(display) = self else {
            return false;
        };
        display
            .held
            .as_ref()
            .is_some_and(|held| held.size() > MOST_HELD)
    }

    /// Returns whether the events are not shown to the user.
    pub fn is_silent(&self) -> bool {
        let Self::Screen(display) = self else {
            return true;
        };
        display.to.is_none()
    }

    /// Stores what a wait is about, for the line about its end.
    pub fn learn_wait(&mut self, wait: &WaitRow) {
        if let Self::Screen(display) = self {
            display.screen.waits.learn(&wait.id, &wait.title);
        }
    }

    /// Leaves out the lines about waits that a person is asked about at this terminal.
    pub fn ask_here(&mut self) {
        if let Self::Screen(display) = self {
            display.screen.waits.are_asked_here = true;
        }
    }

    /// Returns the name of an agent, if the screen shows names.
    pub fn name_of(&self, agent: &AgentId) -> Option<String> {
        let Self::Screen(display) = self else {
            return None;
        };
        display.screen.name_of(agent)
    }

    /// Suppresses the echo of a prompt that the user has just typed.
    pub fn hide_echo(&mut self, prompt: &InputId) {
        if let Self::Screen(display) = self {
            display.screen.hide_echo(prompt);
        }
    }

    pub fn learn_names(&mut self, info: &SessionInfo) {
        if let Self::Screen(display) = self {
            info.agents
                .iter()
                .for_each(|agent| display.screen.learn_name(&agent.id, &agent.name));
        }
    }

    /// Returns the sum of the tokens and the cost of all events that were received. For JSON lines,
    /// the sum is always zero.
    pub fn usage(&self) -> Usage {
        match self {
            Self::Screen(display) => display.screen.summary.usage(),
            Self::Jsonl => Usage::default(),
        }
    }
}
