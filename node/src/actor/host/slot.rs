//! An agent's place in the host, and how much of it is in memory.

use std::sync::{Arc, atomic::AtomicBool};

use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::Hosting;
use crate::actor::{mail::Mail, run::Actor};

pub(super) struct Slot {
    pub(super) hosting: Hosting,
    pub(super) stage: Stage,
}

pub(super) enum Stage {
    Live(Live),
    Resting { actor: Box<Actor>, until: Instant },
    Parked,
}

/// An agent's task, from outside.
#[derive(Clone)]
pub(super) struct Live {
    /// Tells one life of an agent from the next.
    pub(super) number: u64,
    pub(super) mail: mpsc::Sender<Box<Mail>>,
    /// A look into the inbox is in the mail.
    pub(super) look_is_due: Arc<AtomicBool>,
    /// Ends the actor with its work, writing nothing.
    pub(super) dropped: CancellationToken,
    /// Its task has ended, and nothing of its work runs any more.
    pub(super) gone: CancellationToken,
}

impl Slot {
    /// Parks the agent if it has rested for long, and gives what it was.
    pub(super) fn park(&mut self, now: Instant) -> Option<Box<Actor>> {
        if !matches!(self.stage, Stage::Resting { until, .. } if until <= now) {
            return None;
        }
        let actor = self.stage.take_rested()?;
        self.hosting.opening.had = actor.had();
        Some(actor)
    }
}

impl Stage {
    pub(super) fn live(&self) -> Option<&Live> {
        match self {
            Self::Live(live) => Some(live),
            Self::Resting { .. } | Self::Parked => None,
        }
    }

    /// Whether what is in memory of it changes with the tools that are there.
    pub(super) fn may_have_other_tools(&self) -> bool {
        match self {
            Self::Live(_) => true,
            Self::Resting { actor, .. } => actor.had().is_some(),
            Self::Parked => false,
        }
    }

    /// Who rested here; the place is but a place then.
    pub(super) fn take_rested(&mut self) -> Option<Box<Actor>> {
        match std::mem::replace(self, Self::Parked) {
            Self::Resting { actor, .. } => Some(actor),
            Self::Live(_) | Self::Parked => None,
        }
    }
}
