//! Access to an agent's state for the code that runs the agent.

use std::sync::Arc;

use planck_common::{
    CallId, Seq, Timestamp,
    command::{AgentState, Running},
    spec::AgentSpec,
    usage::Usage,
};

use super::{
    Agent,
    phase::{Phase, TurnActivity},
    round::Round,
};
use crate::{
    compact::Line,
    model::{ModelCard, ToolSpec},
};

impl Agent {
    pub fn spec(&self) -> &AgentSpec {
        &self.config.spec
    }

    pub fn card(&self) -> &ModelCard {
        &self.config.card
    }

    /// Returns the tools, sorted by name.
    pub fn tools(&self) -> &Arc<[ToolSpec]> {
        &self.config.tools
    }

    /// Returns the messages that the model sees, in order.
    pub fn context(&self) -> &[Line] {
        self.transcript.lines()
    }

    /// Returns a number that changes with every change to the messages, the system prompt or the
    /// tools, except when messages are appended.
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
