//! Work that this node began and could not finish. The sweep continues it.

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
    /// Sessions with ends of workers that may not have been reported to the orchestrator.
    exits: BTreeSet<SessionId>,
    /// The nodes that were alive at the last sweep.
    alive: BTreeSet<NodeId>,
}

impl Maintenance {
    /// Records that a close began.
    pub(super) fn closing(&self, session: &SessionId, reason: &str) {
        self.open()
            .closings
            .insert(session.clone(), reason.to_owned());
    }

    /// Records that a close is complete.
    pub(super) fn closed(&self, session: &SessionId) {
        self.open().closings.remove(session);
    }

    /// Returns the closes that are not complete, with their reasons.
    pub(super) fn closings(&self) -> BTreeMap<SessionId, String> {
        self.open().closings.clone()
    }

    /// Makes the next sweep check the session for unreported ends of workers.
    pub(super) fn look_for_exits(&self, session: &SessionId) {
        self.open().exits.insert(session.clone());
    }

    pub(super) fn take_exits(&self) -> BTreeSet<SessionId> {
        std::mem::take(&mut self.open().exits)
    }

    /// Locks the reports of workers' ends to an orchestrator, so that each end is reported once.
    pub(super) async fn lock_exit_reports(
        &self,
        session: &SessionId,
    ) -> Result<SessionGuard, Refusal> {
        self.exit_reports.lock(session).await
    }

    /// Returns whether a node that was alive at the previous call is not alive any more.
    pub(super) fn has_somebody_left(&self, alive: &[NodeId]) -> bool {
        let now: BTreeSet<NodeId> = alive.iter().cloned().collect();
        let before = std::mem::replace(&mut self.open().alive, now.clone());
        !before.is_subset(&now)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
