//! The description with which an agent is started in a [`Host`](super::Host): its lease, and how
//! its work begins.

use std::sync::Arc;

use planck_common::{AgentId, event::Event};
use tokio::time::Instant;

use super::parts::SessionContext;
use crate::agent::{Memory, OpenTurn};
use planck_store::AgentRecord;
use planck_toolbox::Toolbox;

/// An agent whose lease this node holds.
#[derive(Clone)]
pub struct Hosting {
    pub session: Arc<SessionContext>,
    pub agent: AgentId,
    pub epoch: i64,
    pub opening: Opening,
    /// The time before which no tool may start, because tools that a dead node started may still
    /// run.
    pub tools_from: Option<Instant>,
}

/// How the next task of an agent begins. The values apply to that task only.
#[derive(Clone, Default)]
pub struct Opening {
    /// The events that the task writes to the agent's log first.
    pub events: Vec<Event>,
    pub open_turn: OpenTurn,
    /// The tools that the agent had when it was parked, if they may have changed since.
    pub had: Option<Arc<Toolbox>>,
    /// The agent's record and memory, if they are known and need not be read from the store.
    pub known: Option<Box<(AgentRecord, Memory)>>,
}

impl Opening {
    /// Returns an opening that writes this event to the agent's log and then continues the agent
    /// where it was.
    pub fn with(event: Event) -> Self {
        Self {
            events: vec![event],
            ..Self::default()
        }
    }
}
