//! What the shell may see of an agent.

use std::sync::Arc;

use planck_common::{
    Seq, Timestamp,
    command::{AgentState, Running},
    spec::AgentSpec,
    usage::Usage,
};

use super::{
    Agent,
    phase::{Activity, Phase},
};
use crate::{
    compact::Line,
    model::{ModelCard, ToolSpec},
};

impl Agent {
    pub fn spec(&self) -> &AgentSpec {
        &self.charter.spec
    }

    pub fn card(&self) -> &ModelCard {
        &self.charter.card
    }

    /// Sorted by name.
    pub fn tools(&self) -> &Arc<[ToolSpec]> {
        &self.charter.tools
    }

    /// Makes itself small until it is woken, if it is idle. After an error it keeps all its memory
    /// and can go on as before.
    pub fn rest(&mut self) -> Result<(), serde_json::Error> {
        if !self.is_idle() {
            return Ok(());
        }
        self.saves.shrink_to_fit();
        self.inbox.shrink();
        self.transcript.pack()
    }

    /// To be done before an agent that rests takes a step.
    pub fn wake(&mut self) -> Result<(), serde_json::Error> {
        self.transcript.unpack()
    }

    /// The messages the model sees, in order; none while it rests.
    pub fn view(&self) -> &[Line] {
        self.transcript.lines()
    }

    /// Changes whenever the view changed other than by messages at its end, or what stands before
    /// it did.
    pub fn version(&self) -> u64 {
        self.transcript.version()
    }

    pub fn state(&self) -> AgentState {
        self.phase.state()
    }

    /// Its turn is being ended, and waits for calls that were told to stop.
    pub fn is_winding_down(&self) -> bool {
        matches!(&self.phase, Phase::Working(_, activity) if activity.is_winding_down())
    }

    /// Nothing runs, nothing is being saved, nothing waits.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.saves.is_empty() && self.inbox.len() == 0
    }

    /// What it consumed in its life.
    pub fn totals(&self) -> Usage {
        self.totals.agent
    }

    pub fn turn(&self) -> u32 {
        self.counters.turn
    }

    pub fn request(&self) -> u32 {
        self.counters.request
    }

    /// The id of its latest message.
    pub fn last_message(&self) -> Seq {
        self.transcript.last_id()
    }

    pub fn context_tokens(&self) -> u64 {
        self.transcript.tokens()
    }

    /// How many inputs wait.
    pub fn queued(&self) -> usize {
        self.inbox.len()
    }

    /// What runs at this moment and is not yet in the log; `None` between turns.
    pub fn snapshot(&self, now: Timestamp) -> Option<Running> {
        let Phase::Working(_, activity) = &self.phase else {
            return None;
        };
        let (parts, tools) = match activity {
            Activity::Streaming { draft, .. } => (draft.running(), Vec::new()),
            Activity::UsingTools(round) | Activity::WindingDown { round, .. } => {
                (Vec::new(), round.snapshot(now))
            }
            Activity::Saving | Activity::Retrying { .. } | Activity::Compacting { .. } => {
                (Vec::new(), Vec::new())
            }
        };
        Some(Running {
            turn: self.counters.turn,
            request: self.counters.request,
            parts,
            tools,
        })
    }
}
