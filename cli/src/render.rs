//! Renders a session for the user. This module converts follow events to text for the screen, and
//! writes nothing itself.

pub mod diff;
mod line;
mod markdown;
mod prose;
mod speech;
pub mod style;
mod terminal_lock;
mod tool;

use std::collections::HashMap;

use line::{AgentNames, InputLines};
use planck_client::{ClientError, FollowEvent, Retracted};
use planck_common::{AgentId, InputId, Timestamp, envelope::Envelope, event::Event, usage::Usage};
use planck_host::terminal::{Drawing, clean_line};
use speech::SpeechRenderer;
use style::{Paint, count, duration};
use terminal_lock::{OutputPiece, TerminalLock};

pub use line::{WaitLines, wait_ended};
pub use style::Style;

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
        if let Event::TurnEnd(end) = event {
            let lines = line::output(end, self.style);
            pieces.extend(lines.into_iter().map(OutputPiece::Line));
        }
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

#[derive(Debug, Default)]
pub struct Summary {
    /// The time at which each agent's open turn started.
    began: HashMap<AgentId, Timestamp>,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
    usage: Usage,
    /// Whether a line with the duration and the cost is written at the end of each turn.
    pub each_turn: bool,
}

impl Summary {
    fn note(&mut self, envelope: &Envelope, event: &Event) {
        if let Event::TurnStart(_) = event {
            self.began.insert(envelope.agent_id.clone(), envelope.at);
            self.first.get_or_insert(envelope.at);
        }
        if let Event::UsageDelta(usage) = event {
            self.usage += usage.delta;
        }
        self.last = Some(envelope.at);
    }

    /// Returns the line with the duration and cost of the turn that the event ends. Returns `None`
    /// for other events, and if no line is written for each turn.
    fn turn_line(&mut self, envelope: &Envelope, event: &Event, style: Style) -> Option<Drawing> {
        let Event::TurnEnd(end) = event else {
            return None;
        };
        let began = self.began.remove(&envelope.agent_id).unwrap_or(envelope.at);
        if !self.each_turn {
            return None;
        }
        let took = duration(envelope.at.millis_since(began));
        Some(style.paint(Paint::Dim, &format!("  {took} · {}", consumed(&end.usage))))
    }

    /// Returns the sum of the tokens and the cost of all events that were received.
    pub fn usage(&self) -> Usage {
        self.usage
    }
}

/// Returns the usage with its cost rounded to a millionth of a cent. A sum of costs has further
/// digits, which are those of the arithmetic.
pub fn rounded(usage: Usage) -> Usage {
    const PARTS: f64 = 1e8;
    let cost_usd = (usage.cost_usd * PARTS).round() / PARTS;
    Usage { cost_usd, ..usage }
}

/// Formats tokens and cost as `1,204 tokens in (90 % cached) · 330 out · $0.0123`.
pub fn consumed(usage: &Usage) -> String {
    let prompt = usage.context_tokens();
    let cached = match usage.cache_read_tokens {
        0 => String::new(),
        read => format!(" ({} % cached)", read.saturating_mul(100) / prompt.max(1)),
    };
    let cost = if usage.cost_usd > 0.0 {
        format!(" · ${:.4}", usage.cost_usd)
    } else {
        String::new()
    };
    format!(
        "{} tokens in{cached} · {} out{cost}",
        count(prompt),
        count(usage.output_tokens)
    )
}

#[cfg(test)]
mod tests;
