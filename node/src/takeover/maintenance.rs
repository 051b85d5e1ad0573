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
    /// The closes that began and are not complete.
    closings: BTreeMap<SessionId, UnfinishedClose>,
    /// The sessions in which ends of workers may not have been reported to the orchestrator.
    exits: BTreeSet<SessionId>,
    /// The nodes that were alive at the last sweep.
    alive: BTreeSet<NodeId>,
}

/// A close that began on this node.
#[derive(Debug, Clone)]
pub(super) struct UnfinishedClose {
    pub reason: String,
    /// Whether the session is closed because its node died. No client repeats such a close if it
    /// fails before the session is recorded as closed.
    pub is_lost: bool,
}

impl Maintenance {
    /// Records that a close began.
    pub(super) fn closing(&self, session: &SessionId, close: UnfinishedClose) {
        self.open().closings.insert(session.clone(), close);
    }

    /// Returns whether this node began to close the session and has not completed that.
    pub(super) fn is_closing(&self, session: &SessionId) -> bool {
        self.open().closings.contains_key(session)
    }

    /// Returns whether this node began to close the session because its node died.
    pub(super) fn is_closing_lost(&self, session: &SessionId) -> bool {
        let open = self.open();
        let close = open.closings.get(session);
        close.is_some_and(|close| close.is_lost)
    }

    /// Forgets a close that is complete, or that this node is not to continue.
    pub(super) fn closed(&self, session: &SessionId) {
        self.open().closings.remove(session);
    }

    /// Returns the closes that are not complete.
    pub(super) fn closings(&self) -> BTreeMap<SessionId, UnfinishedClose> {
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

    /// Records which nodes are alive. Returns whether a node that was alive at the previous call is
    /// not alive any more.
    pub(super) fn has_somebody_left(&self, alive: &[NodeId]) -> bool {
        let now: BTreeSet<NodeId> = alive.iter().cloned().collect();
        let before = std::mem::replace(&mut self.open().alive, now.clone());
        !before.is_subset(&now)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
