//! The reading of all turns of an agent that belong to the work of a prompt.

use std::collections::{HashMap, HashSet};

use planck_common::{
    AgentId, CallId, InputId, SessionId,
    command::{Outcome, WorkOutcome},
    envelope::Envelope,
    event::Event,
    message::{Message, MessageRole, Part},
    usage::Usage,
};

use super::{REWOUND, STOPPED, TurnPhase, TurnReader};
use crate::turn::{TurnEvent, Until, workers::tells_of_worker};

/// The reading of all turns that belong to the work of a prompt.
#[derive(Debug, Default)]
pub(super) struct WorkTurns {
    pub(super) trace: Trace,
    pub(super) prompt: Option<InputId>,
    /// The number of the latest turn.
    pub(super) turn: u32,
    /// The end of the latest turn, which is that of the work if no turn follows.
    pub(super) end: Option<TurnEvent>,
    /// The sum over the turns.
    pub(super) usage: Usage,
}

impl TurnReader {
    /// Chooses until when the reader reads.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.work = match until {
            Until::Turn => None,
            Until::Work => Some(WorkTurns {
                prompt: self.choice.input().cloned(),
                ..WorkTurns::default()
            }),
        };
        self
    }

    /// Returns the prompt whose outcome says whether another turn follows, after a turn that may not
    /// be the last one.
    pub fn awaited(&self) -> Option<&InputId> {
        match self.phase {
            TurnPhase::Between { .. } => self.work.as_ref()?.prompt.as_ref(),
            TurnPhase::Before | TurnPhase::Running { .. } | TurnPhase::Over => None,
        }
    }

    /// Returns whether the reader has read all of the work that is over with this outcome.
    pub fn has_all(&self, outcome: &Outcome) -> bool {
        let Some(work) = self.work.as_ref().filter(|_| self.awaited().is_some()) else {
            return false;
        };
        let latest = outcome.turns.last().copied().unwrap_or_default();
        self.last >= outcome.head || (work.turn >= latest && !work.trace.is_running())
    }

    /// Takes that the work is over, after [`Self::awaited`]. Without an outcome, the latest turn is
    /// the last one.
    pub fn over(&mut self, outcome: Option<&Outcome>) -> Vec<TurnEvent> {
        let mut out = Vec::new();
        let TurnPhase::Between { .. } = self.phase else {
            return out;
        };
        match outcome.and_then(|outcome| outcome.outcome) {
            Some(WorkOutcome::Rewound) => self.fail(REWOUND, "the session was rewound", &mut out),
            Some(WorkOutcome::Stopped) => {
                let reason = "the session was closed before the work was over";
                self.fail(STOPPED, reason, &mut out);
            }
            Some(
                WorkOutcome::Completed
                | WorkOutcome::Aborted
                | WorkOutcome::Truncated
                | WorkOutcome::Refused
                | WorkOutcome::Limit
                | WorkOutcome::Error
                | WorkOutcome::Busy
                | WorkOutcome::Other,
            )
            | None => {
                self.phase = TurnPhase::Over;
                out.extend(self.work.as_mut().and_then(|work| work.end.take()));
            }
        }
        out
    }

    /// Takes an event after a turn of the work that may not be the last one.
    pub(super) fn between(&mut self, envelope: &Envelope, event: Event, out: &mut Vec<TurnEvent>) {
        if let Event::Rewound(_) = event {
            return self.fail(REWOUND, "the session was rewound", out);
        }
        let (agent, turn) = (&envelope.agent_id, envelope.turn);
        let Some(work) = &self.work else { return };
        let (is_of_work, latest) = (work.trace.has(agent, turn), work.turn);
        if tells_of_worker(&event) || *agent != self.agent {
            let update = self.workers.take(agent, &event);
            // An agent may work on another prompt at the same time. The answer to that one shows it.
            let is_end = matches!(event, Event::AgentStopped(_) | Event::SessionClosed(_));
            let is_shown = is_of_work && !is_end && !tells_of_worker(&event);
            out.extend(update.filter(|_| is_shown));
            return;
        }
        if self.steps.early(envelope, &event) {
            return;
        }
        if let Event::AgentStopped(stopped) | Event::SessionClosed(stopped) = &event {
            let reason = format!(
                "the agent stopped before the work was over: {}",
                stopped.reason
            );
            self.fail(STOPPED, &reason, out);
        } else if is_of_work && turn != latest {
            let has_shape = matches!(&event, Event::TurnStart(start) if start.output.is_some());
            self.begin((turn, has_shape), envelope, out);
        }
    }

    /// Ends the turn. If the work may go on, its end is not known yet. Without calls, and without
    /// other agents, nothing can follow.
    pub(super) fn end(&mut self, end: TurnEvent, out: &mut Vec<TurnEvent>) {
        self.steps.end(out);
        let is_alone = !self.workers.has_others(&self.agent);
        let may_go_on = |work: &&mut WorkTurns| work.prompt.is_some() && work.trace.has_sent();
        let work = self.work.as_mut().filter(|_| !is_alone);
        match (work.filter(may_go_on), self.phase) {
            (Some(work), TurnPhase::Running { first, .. }) => {
                work.end = Some(end);
                self.steps.forget();
                self.phase = TurnPhase::Between { first };
            }
            _ => {
                self.phase = TurnPhase::Over;
                out.push(end);
            }
        }
    }
}

// Follows which turns belong to the work that a prompt caused: the turn that took the prompt, and
// every turn that took an input which a turn of the work has sent. The ids of these inputs are made
// from the ids of the calls that sent them, so the log says it.

/// The maximum number of agents that are followed, and of inputs. Anyone who may publish can invent
/// both.
const AGENTS: usize = 1_024;
const INPUTS: usize = 1 << 18;
/// The maximum number of calls of a turn that is not known to belong to the work.
const CALLS: usize = 4_096;

/// The turns of the work, as far as the log was read.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// The inputs that the calls of the work's turns may have sent.
    sent: HashSet<InputId>,
    /// The latest turn of each agent.
    turns: HashMap<AgentId, AgentTurn>,
}

#[derive(Debug, Default)]
struct AgentTurn {
    number: u32,
    is_of_work: bool,
    is_open: bool,
    /// The calls of a turn that does not belong to the work, because the turn may join it.
    calls: Vec<CallId>,
}

impl Trace {
    /// Returns whether the work may have sent inputs to agents.
    pub(super) fn has_sent(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Returns whether the latest turn of an agent is this one and belongs to the work.
    pub(super) fn has(&self, agent: &AgentId, turn: u32) -> bool {
        let known = self.turns.get(agent);
        known.is_some_and(|known| known.number == turn && known.is_of_work)
    }

    /// Returns whether a turn of the work runs.
    pub(super) fn is_running(&self) -> bool {
        let mut turns = self.turns.values();
        turns.any(|turn| turn.is_of_work && turn.is_open)
    }

    /// Records the turn that took the prompt.
    pub(super) fn begin(&mut self, agent: &AgentId, turn: u32, session: &SessionId) {
        self.join(agent, turn, session);
    }

    /// Takes a durable event that no rewind hid.
    pub(super) fn take(&mut self, envelope: &Envelope, event: &Event) {
        let (agent, session) = (&envelope.agent_id, &envelope.session_id);
        match event {
            Event::TurnStart(start) => {
                let mut inputs = start.inputs.iter();
                let is_of_work = inputs.any(|input| self.sent.contains(&input.id));
                if let Some(turn) = self.turn(agent, envelope.turn) {
                    turn.is_open = true;
                }
                if is_of_work {
                    self.join(agent, envelope.turn, session);
                }
            }
            Event::Message(saved) => self.message(agent, envelope.turn, session, &saved.message),
            Event::TurnEnd(_) | Event::Error(_) | Event::AgentStopped(_) => {
                if let Some(turn) = self.turns.get_mut(agent) {
                    turn.is_open = false;
                }
            }
            Event::SessionClosed(_) => {
                self.turns
                    .values_mut()
                    .for_each(|turn| turn.is_open = false);
            }
            Event::TextDelta(_)
            | Event::ThinkingDelta(_)
            | Event::UsageDelta(_)
            | Event::ToolStart(_)
            | Event::ToolProgress(_)
            | Event::ToolEnd(_)
            | Event::WaitOpened(_)
            | Event::WaitClosed(_)
            | Event::Retry(_)
            | Event::MessageQueued(_)
            | Event::Compacting(_)
            | Event::Compacted(_)
            | Event::WorkerSpawned(_)
            | Event::WorkerExit(_)
            | Event::AgentStarted(_)
            | Event::SessionStarted(_)
            | Event::SessionResumed(_)
            | Event::Rewound(_)
            | Event::Checkpoint(_)
            | Event::ToolsChanged(_)
            | Event::ModelChanged(_)
            | Event::Warning(_) => {}
        }
    }

    fn message(&mut self, agent: &AgentId, turn: u32, session: &SessionId, message: &Message) {
        match message.role {
            MessageRole::Assistant => {
                let calls = message.content.iter().filter_map(|part| match part {
                    Part::ToolCall { call_id, .. } => Some(call_id.clone()),
                    Part::Text { .. }
                    | Part::Thinking { .. }
                    | Part::ToolResult { .. }
                    | Part::Image { .. }
                    | Part::File { .. } => None,
                });
                if let Some(known) = self.turn(agent, turn) {
                    let room = CALLS.saturating_sub(known.calls.len());
                    known.calls.extend(calls.take(room));
                }
                if self.has(agent, turn) {
                    self.join(agent, turn, session);
                }
            }
            MessageRole::User | MessageRole::Custom | MessageRole::ToolResult => {
                let mut inputs = message.metadata.inputs.iter();
                if inputs.any(|input| self.sent.contains(input)) {
                    self.join(agent, turn, session);
                }
            }
        }
    }

    /// Records that a turn belongs to the work, with everything that it has sent and that is not
    /// recorded yet.
    fn join(&mut self, agent: &AgentId, turn: u32, session: &SessionId) {
        let Some(turn) = self.turn(agent, turn) else {
            return;
        };
        turn.is_of_work = true;
        for call in std::mem::take(&mut turn.calls) {
            for sent in [call.as_input(), call.first_task(session)] {
                if self.sent.len() < INPUTS {
                    self.sent.insert(sent.unanswered());
                    self.sent.insert(sent);
                }
            }
        }
    }

    /// Returns the turn of an agent, which replaces its turn with another number.
    fn turn(&mut self, agent: &AgentId, number: u32) -> Option<&mut AgentTurn> {
        if !self.turns.contains_key(agent) && self.turns.len() >= AGENTS {
            return None;
        }
        let turn = self.turns.entry(agent.clone()).or_default();
        if turn.number != number {
            *turn = AgentTurn {
                number,
                is_open: true,
                ..AgentTurn::default()
            };
        }
        Some(turn)
    }
}
