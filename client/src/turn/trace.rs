//! Follows which turns belong to the work that a prompt caused: the turn that took the prompt, and
//! every turn that took an input which a turn of the work has sent. The ids of these inputs are made
//! from the ids of the calls that sent them, so the log says it.

use std::collections::{HashMap, HashSet};

use planck_common::{
    AgentId, CallId, InputId, SessionId,
    envelope::Envelope,
    event::Event,
    message::{Message, MessageRole, Part},
};

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
