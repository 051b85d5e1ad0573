//! The slot of an agent in the host. The stage of the slot says how much of the agent is in memory.

use std::sync::{Arc, atomic::AtomicBool};

use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::actor::Hosting;
use crate::actor::{mail::Mail, run::Actor};

pub(super) struct HostSlot {
    pub(super) hosting: Hosting,
    pub(super) stage: SlotStage,
}

pub(super) enum SlotStage {
    Live(LiveActor),
    Resting { actor: Box<Actor>, until: Instant },
    Parked,
}

/// A handle to an agent's task.
#[derive(Clone)]
pub(super) struct LiveActor {
    /// Distinguishes the successive tasks of an agent.
    pub(super) number: u64,
    pub(super) mail: mpsc::Sender<Box<Mail>>,
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
        if !matches!(self.stage, SlotStage::Resting { until, .. } if until <= now) {
            return None;
        }
        let actor = self.stage.take_rested()?;
        self.hosting.opening.had = actor.had();
        Some(actor)
    }
}

impl SlotStage {
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
