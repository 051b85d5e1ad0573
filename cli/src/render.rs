//! Renders a session for the user. This module converts follow events to text for the screen, and
//! writes nothing itself.

pub mod diff;
mod inputs;
mod line;
mod live_text;
mod markdown;
mod names;
mod preview;
mod prose;
mod running;
mod speech;
pub mod style;
mod summary;
mod terminal_lock;
mod tool;
mod waits;
mod wrap;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use planck_common::{AgentId, InputId, Timestamp, envelope::Envelope, event::Event};

use planck_client::{ClientError, FollowEvent, Retracted};
use planck_host::terminal::{Drawing, clean_line};

use inputs::InputLines;
use names::AgentNames;
use speech::SpeechRenderer;
pub use style::Style;
pub use summary::{Summary, consumed, rounded};
use terminal_lock::{OutputPiece, TerminalLock};
pub use waits::{WaitLines, ended};

/// The state of the screen, including which agent's text is open.
#[derive(Debug)]
pub struct Screen {
    style: Style,
    names: AgentNames,
    inputs: InputLines,
    speeches: HashMap<AgentId, SpeechRenderer>,
    /// The reasons why the requests of agents were tried again, until a turn ends.
    retried: HashMap<AgentId, String>,
    terminal: TerminalLock,
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
            inputs: InputLines::default(),
            speeches: HashMap::new(),
            retried: HashMap::new(),
            terminal: TerminalLock::new(style),
            waits: WaitLines::default(),
            summary: Summary::default(),
        }
    }

    /// Stores the name of an agent. The screen shows names only if it knows more than one agent.
    pub fn learn_name(&mut self, agent: &AgentId, name: &str) {
        self.names.learn(agent, name);
        self.terminal.many = self.names.count() > 1;
    }

    /// Returns the name of an agent, if the screen shows names.
    pub fn name_of(&self, agent: &AgentId) -> Option<String> {
        (self.names.count() > 1).then(|| self.names.of(agent))
    }

    /// Stores the name of the user who reads the screen.
    pub fn set_reader(&mut self, name: Option<String>) {
        self.inputs.reader = name;
    }

    /// Suppresses the echo of a prompt that the user has just typed.
    pub fn hide_echo(&mut self, prompt: &InputId) {
        self.inputs.own = Some(prompt.clone());
    }

    /// Returns what to write for a follow event.
    pub fn draw_event(&mut self, event: &FollowEvent) -> Drawing {
        match event {
            FollowEvent::Durable(event) if event.hidden_by.is_some() => Drawing::default(),
            FollowEvent::Durable(event) | FollowEvent::Live(event) => self.event(event),
            FollowEvent::Retracted(retracted) => self.notice(&retraction(retracted)),
            FollowEvent::Retrying(error) => self.notice(&format!("cannot follow for now: {error}")),
            FollowEvent::CaughtUp => Drawing::default(),
        }
    }

    /// Returns what to write when following the session failed.
    pub fn lost(&mut self, error: &ClientError) -> Drawing {
        self.terminal.close() + self.warning(&error.to_string()) + "\n"
    }

    /// Ends the open text. Returns what to write before any other output.
    pub fn end_text(&mut self) -> Drawing {
        self.terminal.close()
    }

    /// Returns the line about the tools that run, to be drawn below all other output and erased
    /// before further output. There is none while text is open.
    pub fn status(&self, now: Timestamp) -> Option<Drawing> {
        let is_shown = self.style.in_place && self.terminal.is_free();
        is_shown
            .then(|| self.terminal.running.line(now, self.terminal.many))
            .flatten()
    }

    fn notice(&mut self, text: &str) -> Drawing {
        let (line, mut out) = (self.warning(text), Drawing::default());
        self.terminal.notice(line, &mut out);
        out
    }

    fn warning(&self, text: &str) -> Drawing {
        self.style
            .paint(style::Paint::Warning, &style::one_line(text, usize::MAX))
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
            self.terminal.take(agent, &name, piece, &mut text);
        }
        text
    }

    fn pieces(&mut self, envelope: &Envelope, event: &Event) -> Vec<OutputPiece> {
        self.note(envelope, event);
        let speech = self.speeches.entry(envelope.agent_id.clone()).or_default();
        if let Event::ToolEnd(tool) = event
            && self.waits.was_asked(&tool.call_id)
        {
            speech.forget_change(&tool.call_id);
        }
        let mut pieces = speech.apply(envelope, event, &self.names, self.style);
        pieces.extend(self.inputs.line(event, self.style).map(OutputPiece::Line));
        pieces.extend(self.waits.line(event, self.style).map(OutputPiece::Line));
        let is_repeated = self.is_repeated(&envelope.agent_id, event);
        let line = line::of(event, is_repeated, self.style, &self.names);
        pieces.extend(line.map(OutputPiece::Line));
        if let Some(line) = self.summary.turn_line(envelope, event, self.style) {
            pieces.push(OutputPiece::Line(line));
        }
        pieces
    }

    /// Returns whether a request is tried again for the same reason as the last time.
    fn is_repeated(&mut self, agent: &AgentId, event: &Event) -> bool {
        if let Event::TurnEnd(_) | Event::Error(_) = event {
            self.retried.remove(agent);
        }
        let Event::Retry(retry) = event else {
            return false;
        };
        let last = self.retried.insert(agent.clone(), retry.reason.clone());
        last.as_ref() == Some(&retry.reason)
    }

    fn note(&mut self, envelope: &Envelope, event: &Event) {
        self.summary.note(envelope, event);
        if let Event::WorkerSpawned(worker) = event {
            self.learn_name(&worker.id, &worker.name);
        }
    }
}
