//! The agent loop as a pure function: [`Agent::step`] takes an input and returns effects. The crate
//! depends only on crates of plain data, and uses no function that waits, reads a clock or does
//! I/O. Time and random numbers are arguments.
//!
//! The crate also defines the types that the loop shares with the runtime: chunks and failures of
//! models ([`model`]), outcomes of tool calls ([`outcome`]) and rows of the log ([`LogRow`]).

#![forbid(unsafe_code)]

mod answer;
mod budget;
mod commands;
pub mod compact;
mod compaction;
mod draft;
pub mod effect;
mod guard;
pub mod inbox;
pub mod input;
pub mod model;
pub mod outcome;
mod output;
pub mod permission;
mod phase;
mod request;
mod restore;
mod round;
mod saves;
pub mod search;
pub mod setup;
mod speech;
pub mod storable;
mod transcript;
mod turn;
mod waiting;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use planck_common::{
    AgentId, CallId, InputId, Seq, SessionId, Timestamp,
    command::{AgentState, Running},
    envelope::EventPlace,
    event::{Event, OutputDue},
    spec::{AgentSpec, SessionLimits},
    usage::Usage,
};

use self::{
    compact::Line,
    inbox::InputQueue,
    model::{ModelCard, ToolSpec},
    phase::{Phase, Stopping, TurnActivity},
    round::Round,
    saves::PendingSave,
    setup::AgentConfig,
    transcript::Transcript,
};

pub use self::{
    effect::{Effect, Entry, Mark, Save},
    inbox::{InputOutcome, NewInput, StoredInput},
    input::{Command, Input},
    output::SUBMIT_OUTPUT,
    restore::Unreadable,
    setup::{ArgumentCheck, LogRow, Memory, OpenTurn, Settings, Setup, Unstorable},
};

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
    saves: VecDeque<PendingSave>,
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
    /// Whether the agent was loaded only to end, so that it opens no turn for the waiting inputs.
    is_lost: bool,
    /// The number of messages added before the last compaction without effect.
    futile: Option<u64>,
    /// The shape that a turn left to a later one.
    output: Option<OutputDue>,
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

// Access to an agent's state for the code that runs the agent.

impl Agent {
    pub fn spec(&self) -> &AgentSpec {
        &self.config.spec
    }

    pub fn card(&self) -> &ModelCard {
        &self.config.card
    }

    /// Returns the tools that a request lists, sorted by name.
    pub fn tools(&self) -> &Arc<[ToolSpec]> {
        &self.config.tools
    }

    /// Returns the messages that the model sees, in order.
    pub fn context(&self) -> &[Line] {
        self.transcript.lines()
    }

    /// Returns a number that changes with every change to the messages, the system prompt or the
    /// listed tools, except when messages are appended.
    pub fn version(&self) -> u64 {
        self.transcript.version()
    }

    pub fn state(&self) -> AgentState {
        self.phase.state()
    }

    /// Returns whether the turn is ending and waits for cancelled tool calls to return.
    pub fn is_winding_down(&self) -> bool {
        matches!(&self.phase, Phase::Working(_, activity) if activity.is_winding_down())
    }

    /// Returns whether the agent has no turn, no pending save and no waiting input.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.saves.is_empty() && self.inbox.len() == 0
    }

    /// Returns the ids of the waits for answers from outside.
    pub fn waits(&self) -> Vec<CallId> {
        let Phase::Working(_, activity) = &self.phase else {
            return Vec::new();
        };
        let calls = activity.round().into_iter().flat_map(Round::waits);
        let limit = activity.limit_wait().map(|wait| wait.id.clone());
        calls
            .map(|(_, wait)| wait.id.clone())
            .chain(limit)
            .collect()
    }

    /// Returns whether the agent does nothing but wait for answers from outside, and would lose
    /// nothing if it were loaded again.
    pub fn is_waiting(&self) -> bool {
        let is_postponed = self.deferred.checkpoint.is_some();
        self.phase.state() == AgentState::Waiting && self.saves.is_empty() && !is_postponed
    }

    /// Returns the tokens and the cost that the agent has used in total.
    pub fn totals(&self) -> Usage {
        self.totals.agent
    }

    pub fn turn(&self) -> u32 {
        self.counters.turn
    }

    pub fn request(&self) -> u32 {
        self.counters.request
    }

    /// Returns the id of the agent's latest message.
    pub fn last_message(&self) -> Seq {
        self.transcript.last_id()
    }

    pub fn context_tokens(&self) -> u64 {
        self.transcript.tokens()
    }

    /// Returns the number of inputs that wait.
    pub fn queued(&self) -> usize {
        self.inbox.len()
    }

    /// Returns the running turn with the parts of its reply so far or its running calls, or `None`
    /// between turns.
    pub fn snapshot(&self, now: Timestamp) -> Option<Running> {
        let Phase::Working(_, activity) = &self.phase else {
            return None;
        };
        let (parts, tools) = match activity {
            TurnActivity::Streaming { draft, .. } => (draft.running(), Vec::new()),
            TurnActivity::UsingTools(round) | TurnActivity::WindingDown { round, .. } => {
                (Vec::new(), round.snapshot(now))
            }
            TurnActivity::Saving
            | TurnActivity::Retrying { .. }
            | TurnActivity::Compacting { .. }
            | TurnActivity::AtLimit(_) => (Vec::new(), Vec::new()),
        };
        Some(Running {
            turn: self.counters.turn,
            request: self.counters.request,
            parts,
            tools,
            waits: self.waits(),
        })
    }
}

#[cfg(test)]
mod tests;
