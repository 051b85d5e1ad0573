//! What this node began and could not finish. The sweep goes on with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use planck_common::{NodeId, SessionId, reply::Refusal};

use super::session_locks::{SessionGuard, SessionLocks};

/// The unfinished work of this node.
#[derive(Debug, Default)]
pub(super) struct Maintenance {
    open: Mutex<Open>,
    exit_reports: SessionLocks,
}

#[derive(Debug, Default)]
struct Open {
    /// Sessions that are recorded as closed and whose agents have not all ended, with the reason of
    /// the close.
    closings: BTreeMap<SessionId, String>,
    /// Sessions whose lead may not have been told of a worker's end.
    exits: BTreeSet<SessionId>,
    /// The nodes that were alive at the last sweep.
    alive: BTreeSet<NodeId>,
}

impl Maintenance {
    /// A close begins.
    pub(super) fn closing(&self, session: &SessionId, reason: &str) {
        self.open()
            .closings
            .insert(session.clone(), reason.to_owned());
    }

    /// A close is complete.
    pub(super) fn closed(&self, session: &SessionId) {
        self.open().closings.remove(session);
    }

    /// The closes that are not complete, with their reasons.
    pub(super) fn closings(&self) -> BTreeMap<SessionId, String> {
        self.open().closings.clone()
    }

    /// Has the next sweep look for workers of the session whose end its lead was not told of.
    pub(super) fn look_for_exits(&self, session: &SessionId) {
        self.open().exits.insert(session.clone());
    }

    pub(super) fn take_exits(&self) -> BTreeSet<SessionId> {
        std::mem::take(&mut self.open().exits)
    }

    /// Locks the reports of workers' ends to a lead, so that the lead is told of each end once.
    pub(super) async fn lock_exit_reports(
        &self,
        session: &SessionId,
    ) -> Result<SessionGuard, Refusal> {
        self.exit_reports.lock(session).await
    }

    /// Whether a node that was alive when this was asked last is not alive any more.
    pub(super) fn has_somebody_left(&self, alive: &[NodeId]) -> bool {
        let now: BTreeSet<NodeId> = alive.iter().cloned().collect();
        let before = std::mem::replace(&mut self.open().alive, now.clone());
        !before.is_subset(&now)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
