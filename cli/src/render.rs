//! Renders a session for the user. This module converts follow events to text for the screen, and
//! writes nothing itself.

mod floor;
mod line;
mod markdown;
mod names;
mod received;
mod speech;
pub mod style;
mod summary;
mod tool;
mod waits;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use planck_common::{AgentId, InputId, envelope::Envelope, event::Event};

use planck_client::{ClientError, FollowEvent, Retracted};
use planck_host::terminal::{Drawing, clean_line};

use floor::{Floor, OutputPiece};
use names::AgentNames;
use received::ReceivedMessages;
use speech::SpeechRenderer;
pub use style::Style;
pub use summary::{Summary, consumed};
pub use waits::{WaitLines, ended};

/// The state of the screen, including which agent's text is open.
#[derive(Debug)]
pub struct Screen {
    style: Style,
    names: AgentNames,
    received: ReceivedMessages,
    speeches: HashMap<AgentId, SpeechRenderer>,
    floor: Floor,
    pub waits: WaitLines,
    pub summary: Summary,
}

/// Returns the notice about an event that was shown but turned out not to be in the log.
pub fn retraction(retracted: &Retracted) -> String {
    let Retracted {
        seq,
        kind,
        agent_id,
    } = retracted;
    let (kind, agent) = (style::one_line(kind, 24), style::one_line(agent_id, 36));
    format!(
        "warning: disregard {kind} #{seq} of {agent} above: it is not in the log, and was not published by its node"
    )
}

impl Screen {
    pub fn new(style: Style) -> Self {
        Self {
            style,
            names: AgentNames::default(),
            received: ReceivedMessages::default(),
            speeches: HashMap::new(),
            floor: Floor::new(style),
            waits: WaitLines::default(),
            summary: Summary::default(),
        }
    }

    /// Stores the name of an agent. The screen shows names only if it knows more than one agent.
    pub fn learn_name(&mut self, agent: &AgentId, name: &str) {
        self.names.learn(agent, name);
        self.floor.many = self.names.count() > 1;
    }

    /// Returns the name of an agent, if the screen shows names.
    pub fn name_of(&self, agent: &AgentId) -> Option<String> {
        (self.names.count() > 1).then(|| self.names.of(agent))
    }

    /// Stores the name of the user who reads the screen.
    pub fn set_reader(&mut self, name: Option<String>) {
        self.received.reader = name;
    }

    /// Suppresses the echo of a prompt that the user has just typed.
    pub fn hide_echo(&mut self, prompt: &InputId) {
        self.received.own = Some(prompt.clone());
    }

    /// Returns what to write for a follow event.
    pub fn draw_event(&mut self, event: &FollowEvent) -> Drawing {
        match event {
            FollowEvent::Durable(event) if event.hidden_by.is_some() => Drawing::default(),
            FollowEvent::Durable(event) | FollowEvent::Live(event) => self.event(event),
            FollowEvent::Retracted(retracted) => self.aside(&retraction(retracted)),
            FollowEvent::Retrying(error) => self.aside(&format!("cannot follow for now: {error}")),
            FollowEvent::CaughtUp => Drawing::default(),
        }
    }

    /// Returns what to write when following the session failed.
    pub fn lost(&mut self, error: &ClientError) -> Drawing {
        self.aside(&error.to_string())
    }

    /// Ends the open text. Returns what to write before any other output.
    pub fn rest(&mut self) -> Drawing {
        self.floor.close()
    }

    fn aside(&mut self, text: &str) -> Drawing {
        let line = self
            .style
            .paint(style::Paint::Warning, &style::one_line(text, usize::MAX));
        self.floor.close() + line + "\n"
    }

    fn event(&mut self, envelope: &Envelope) -> Drawing {
        let agent = &envelope.agent_id;
        let pieces = match envelope.event() {
            Some(Ok(event)) => self.pieces(envelope, &event),
            Some(Err(_)) | None => {
                vec![OutputPiece::Line(self.style.paint(
                    style::Paint::Dim,
                    &format!("  {}", clean_line(&envelope.kind)),
                ))]
            }
        };
        let name = self.names.of(agent);
        let mut text = Drawing::default();
        for piece in pieces {
            self.floor.take(agent, &name, piece, &mut text);
        }
        text
    }

    fn pieces(&mut self, envelope: &Envelope, event: &Event) -> Vec<OutputPiece> {
        self.note(envelope, event);
        let speech = self.speeches.entry(envelope.agent_id.clone()).or_default();
        let mut pieces = speech.apply(envelope, event, &self.names, self.style);
        pieces.extend(self.received.line(event, self.style).map(OutputPiece::Line));
        pieces.extend(self.waits.line(event, self.style).map(OutputPiece::Line));
        pieces.extend(line::of(event, self.style, &self.names).map(OutputPiece::Line));
        if let Some(line) = self.summary.turn_line(envelope, event, self.style) {
            pieces.push(OutputPiece::Line(line));
        }
        pieces
    }

    fn note(&mut self, envelope: &Envelope, event: &Event) {
        self.summary.note(envelope, event);
        if let Event::WorkerSpawned(worker) = event {
            self.learn_name(&worker.id, &worker.name);
        }
    }
}
