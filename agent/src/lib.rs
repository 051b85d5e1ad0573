//! The agent loop as a pure function: [`Agent::step`] takes an input and returns effects. The crate
//! depends only on crates of plain data, and uses no function that waits, reads a clock or does
//! I/O. Time and random numbers are arguments.
//!
//! The crate also defines the types that the loop shares with the runtime: chunks and failures of
//! models ([`model`]), outcomes of tool calls ([`outcome`]) and rows of the log ([`LogRow`]).

#![forbid(unsafe_code)]

pub mod model;
pub mod nul;
pub mod outcome;

pub mod absent_tool;

pub mod compact;

pub mod effect;
pub mod inbox;
pub mod input;
pub mod permission;
pub mod setup;

mod phase;

mod digest;
mod draft;
mod guard;
mod round;
mod speech;
mod transcript;

mod saves;

mod admission;
mod answer;
mod budget;
mod calls;
mod commands;
mod compaction;
mod request;
mod restore;
mod state;
mod turn;
mod waiting;

use std::collections::{BTreeSet, VecDeque};

use planck_common::{
    AgentId, InputId, SessionId, Timestamp, envelope::EventPlace, event::Event,
    spec::SessionLimits, usage::Usage,
};

pub use effect::{Effect, Entry, Mark, Save};
pub use inbox::{InputOutcome, NewInput, StoredInput};
pub use input::{Command, Input};
pub use restore::Unreadable;
pub use setup::{ArgumentCheck, LogRow, Memory, OpenTurn, Settings, Setup, Unstorable};

use inbox::InputQueue;
use phase::{Phase, Stopping};
use saves::Pending;
use setup::AgentConfig;
use transcript::Transcript;

/// The number that matches a reply to its effect. The loop drops a reply with a ticket that it no
/// longer awaits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// One agent: its settings, its history and its current work.
#[derive(Debug)]
pub struct Agent {
    identity: AgentIdentity,
    config: AgentConfig,
    settings: Settings,
    limits: SessionLimits,
    phase: Phase,
    transcript: Transcript,
    inbox: InputQueue,
    saves: VecDeque<Pending>,
    totals: Totals,
    counters: Counters,
    deferred: Deferred,
}

#[derive(Debug)]
struct AgentIdentity {
    session: SessionId,
    agent: AgentId,
    epoch: i64,
}

/// The usage of the agent and of its whole session.
#[derive(Debug, Default)]
struct Totals {
    agent: Usage,
    session: Usage,
}

/// The latest ticket, turn and request numbers that were assigned.
#[derive(Debug, Default)]
struct Counters {
    ticket: u64,
    turn: u32,
    /// The number of the latest request within the latest turn.
    request: u32,
}

/// Work that is postponed until the turn ends, and records of what the agent must not repeat: a
/// compaction without effect, and warnings.
#[derive(Debug, Default)]
struct Deferred {
    /// How the agent ends, once its running calls have ended.
    stop: Option<Stopping>,
    /// The summary of a checkpoint command, from which the context starts again when the turn has
    /// ended.
    checkpoint: Option<String>,
    /// The number of messages added before the last compaction without effect.
    futile: Option<u64>,
    /// The deviations of the model's server that were already reported.
    deviations: BTreeSet<String>,
}

impl Agent {
    /// Returns an agent without a history.
    pub fn new(setup: Setup) -> Self {
        let Setup {
            session,
            agent,
            epoch,
            spec,
            card,
            tools,
            arguments,
            limits,
            settings,
            dir,
        } = setup;
        let config = AgentConfig::new(spec, card, (tools, arguments), dir);
        Self {
            identity: AgentIdentity {
                session,
                agent,
                epoch,
            },
            settings,
            limits,
            phase: Phase::Idle,
            transcript: Transcript::new(config.tokens()),
            config,
            inbox: InputQueue::default(),
            saves: VecDeque::new(),
            totals: Totals::default(),
            counters: Counters::default(),
            deferred: Deferred::default(),
        }
    }

    /// Takes one input, and returns the effects to perform. A stopped agent ignores every input.
    pub fn step(&mut self, input: Input, now: Timestamp) -> Vec<Effect> {
        let mut step = StepEffects::new(now);
        if !matches!(self.phase, Phase::Stopped) {
            self.take(input, &mut step);
        }
        step.effects
    }

    fn take(&mut self, input: Input, step: &mut StepEffects) {
        match input {
            Input::Delivered(input) => self.deliver(input, step),
            Input::Withdrawn(id) => self.inbox.remove(&[id]),
            Input::Command(command) => self.command(command, step),
            Input::Saved(saved) => self.saved(saved, step),
            Input::Gone { save, inputs } => self.gone(save, &inputs, step),
            Input::Chunks { ticket, chunks } => self.chunks_received(ticket, chunks, step),
            Input::Answered {
                ticket,
                chunks,
                result,
                jitter,
            } => {
                self.chunks_received(ticket, chunks, step);
                self.reply_ended(ticket, result, jitter, step);
            }
            Input::ToolProgress {
                ticket,
                message,
                percent,
            } => self.tool_progress(ticket, message, percent, step),
            Input::ToolDone {
                ticket,
                outcome,
                elapsed,
            } => self.tool_done(ticket, outcome, elapsed, step),
            Input::Decided { wait, answer } => self.decided(&wait, &answer, step),
            Input::TimerEnded(ticket) => self.timer_ended(ticket, step),
            Input::Compacted { ticket, result } => self.compacted(ticket, result, step),
        }
    }

    /// Returns the current turn and request, with the time `now`, for an event.
    fn place(&self, now: Timestamp) -> EventPlace {
        EventPlace {
            turn: self.counters.turn,
            request: self.counters.request,
            at: now,
        }
    }
}

impl Counters {
    fn ticket(&mut self) -> Ticket {
        self.ticket += 1;
        Ticket(self.ticket)
    }
}

/// The effects that one step has decided on so far, and the time of the step.
struct StepEffects {
    now: Timestamp,
    effects: Vec<Effect>,
}

impl StepEffects {
    fn new(now: Timestamp) -> Self {
        Self {
            now,
            effects: Vec::new(),
        }
    }

    fn act(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    fn publish(&mut self, place: EventPlace, event: Event) {
        self.act(Effect::Publish { event, place });
    }

    fn settled(&mut self, inputs: Vec<(InputId, Option<AgentId>)>) {
        if !inputs.is_empty() {
            self.act(Effect::Settled { inputs });
        }
    }
}

#[cfg(test)]
mod tests;
