//! What was begun and could not be finished: the sweep goes on with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use planck_common::{NodeId, SessionId, reply::Refusal};

use crate::actor::turnstile::{Alone, Turnstile};

#[derive(Debug, Default)]
pub struct Chores {
    open: Mutex<Open>,
    telling: Turnstile,
}

#[derive(Debug, Default)]
struct Open {
    /// Sessions recorded as closed whose agents have not all ended, with why they are closed.
    closings: BTreeMap<SessionId, String>,
    /// Sessions whose lead may not have been told of a worker's end.
    exits: BTreeSet<SessionId>,
    alive: BTreeSet<NodeId>,
}

impl Chores {
    pub fn closing(&self, session: &SessionId, reason: &str) {
        self.open()
            .closings
            .insert(session.clone(), reason.to_owned());
    }

    pub fn closed(&self, session: &SessionId) {
        self.open().closings.remove(session);
    }

    pub fn closings(&self) -> BTreeMap<SessionId, String> {
        self.open().closings.clone()
    }

    pub fn look_for_exits(&self, session: &SessionId) {
        self.open().exits.insert(session.clone());
    }

    pub fn take_exits(&self) -> BTreeSet<SessionId> {
        std::mem::take(&mut self.open().exits)
    }

    /// For whoever tells a lead who has left, so that nobody is told of twice.
    pub async fn tell_alone(&self, session: &SessionId) -> Result<Alone, Refusal> {
        self.telling.pass(session).await
    }

    /// Whether a node that was alive when this was asked last is not any more.
    pub fn somebody_left(&self, alive: &[NodeId]) -> bool {
        let now: BTreeSet<NodeId> = alive.iter().cloned().collect();
        let before = std::mem::replace(&mut self.open().alive, now.clone());
        !before.is_subset(&now)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
