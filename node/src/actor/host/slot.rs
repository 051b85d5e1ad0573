//! The slot of an agent in the host. The state of the slot says how much of the agent is in memory,
//! and changes when the agent's task ends.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use planck_common::command::AgentState;
use planck_toolbox::Toolbox;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{ActorMessage, AnswerSender, Host};
use crate::{
    actor::{Hosting, run::Actor},
    agent::Unstorable,
};

pub(super) struct HostSlot {
    pub(super) hosting: Hosting,
    pub(super) state: SlotState,
}

pub(super) enum SlotState {
    Live(LiveActor),
    Resting { actor: Box<Actor>, until: Instant },
    Parked,
}

/// A handle to an agent's task.
#[derive(Clone)]
pub(super) struct LiveActor {
    /// Distinguishes the successive tasks of an agent.
    pub(super) number: u64,
    pub(super) mailbox: mpsc::Sender<Box<ActorMessage>>,
    /// Whether the mailbox contains a request to check the inbox.
    pub(super) look_is_due: Arc<AtomicBool>,
    /// Cancelled to end the actor and its work without writing anything.
    pub(super) dropped: CancellationToken,
    /// Cancelled when the task and all of its work have ended.
    pub(super) gone: CancellationToken,
}

impl HostSlot {
    /// Parks the agent if it has rested long enough, and returns its actor.
    pub(super) fn park(&mut self, now: Instant) -> Option<Box<Actor>> {
        if !matches!(self.state, SlotState::Resting { until, .. } if until <= now) {
            return None;
        }
        let actor = self.state.take_rested()?;
        self.hosting.opening.had = actor.had();
        Some(actor)
    }
}

impl SlotState {
    pub(super) fn live(&self) -> Option<&LiveActor> {
        match self {
            Self::Live(live) => Some(live),
            Self::Resting { .. } | Self::Parked => None,
        }
    }

    /// Returns whether the toolbox in memory may differ from the tools that are available now.
    pub(super) fn may_have_other_tools(&self) -> bool {
        match self {
            Self::Live(_) => true,
            Self::Resting { actor, .. } => actor.had().is_some(),
            Self::Parked => false,
        }
    }

    /// Takes the resting actor, if there is one, and leaves the slot parked.
    pub(super) fn take_rested(&mut self) -> Option<Box<Actor>> {
        match std::mem::replace(self, Self::Parked) {
            Self::Resting { actor, .. } => Some(actor),
            Self::Live(_) | Self::Parked => None,
        }
    }
}

/// How an actor's task ended. `unread` has the messages that the actor did not read.
pub(in crate::actor) enum TaskEnd {
    /// The agent is idle and needs no task.
    Resting {
        unread: Vec<ActorMessage>,
        actor: Box<Actor>,
    },
    /// The agent was idle for a long time and is unloaded. `had` contains the agent's tools if they
    /// may change before the agent is loaded again.
    Parked {
        unread: Vec<ActorMessage>,
        had: Option<Arc<Toolbox>>,
    },
    /// The store refused the agent's data. The agent is loaded again to end its turn as failed.
    Refused {
        unread: Vec<ActorMessage>,
        unstorable: Unstorable,
    },
    /// The agent was stopped or dropped, another node holds its lease, or it cannot continue on
    /// this node. The callers are notified after the agent's slot is free, so that their next
    /// request finds it free.
    Gone(StopAck),
}

/// The callers that wait for the stop of an agent, and the state that they receive.
pub(in crate::actor) struct StopAck {
    pub(in crate::actor) done: Vec<AnswerSender<AgentState>>,
    pub(in crate::actor) state: AgentState,
}

impl StopAck {
    pub(in crate::actor) fn to_nobody() -> Self {
        Self {
            done: Vec::new(),
            state: AgentState::Stopped,
        }
    }

    pub(super) fn send(self) {
        for done in self.done {
            let _ = done.send(self.state);
        }
    }
}

/// The numbers of agents, sessions and inputs on this node.
#[derive(Debug, Clone, Copy, Default)]
pub struct AgentCounts {
    pub sessions: usize,
    /// Sessions with an open turn.
    pub active: usize,
    /// Agents with an open turn.
    pub running: usize,
    /// Agents with a task.
    pub live: usize,
    pub resting: usize,
    pub parked: usize,
    /// Inputs that wait for agents in memory.
    pub queued: usize,
}

impl Host {
    /// Counts the agents on this node by state, their sessions, and their queued inputs.
    pub fn counts(&self) -> AgentCounts {
        let activity = &self.0.context.activity;
        let mut counts = AgentCounts {
            running: activity.running(),
            queued: activity.queued(),
            active: activity.sessions(),
            ..AgentCounts::default()
        };
        let slots = self.slots();
        let mut sessions = HashSet::new();
        for slot in slots.values() {
            sessions.insert(&slot.hosting.session.id);
            match slot.state {
                SlotState::Live(_) => counts.live += 1,
                SlotState::Resting { .. } => counts.resting += 1,
                SlotState::Parked => counts.parked += 1,
            }
        }
        counts.sessions = sessions.len();
        counts
    }

    /// Returns whether every thread that runs agents completes an empty task within this time.
    pub async fn turns(&self, within: Duration) -> bool {
        self.0.runtimes.turn(within).await
    }
}
