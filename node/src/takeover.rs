//! How a session changes hands. A node that finds a session without a live host takes it over from
//! SQL, a node that drains moves it, and a node that leaves releases it. This module also closes
//! sessions.
//!
//! A sweep looks at intervals for work that no node looks after: leases of dead nodes, unread inputs
//! of agents without a host, and interrupted closes and reports.
//!
//! Each of three words has one meaning here. A node *claims* a lease with one SQL statement. It
//! *takes over* a session, which may begin a new incarnation of the team. It *starts* an agent, whose
//! actor then runs.
//!
//! One path takes a session over for every reason, such as a prompt to a closed session, a resume, a
//! rewind or a node's death. It begins at [`Takeover::take_over`] or [`Takeover::take_over_here`].

mod close;
mod incarnation;
mod leave;
mod session;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leave::DrainRequest;
use planck_cluster::{
    planted::{PlantedFault, is_planted},
    recovery::{self, SweepSchedule, SweepStep},
};
use planck_common::{
    NodeId, SessionId, Timestamp,
    command::SessionState,
    event::InputKind,
    reply::{Code, Refusal},
};
use planck_store::{SessionRecord, StoreError, Stray};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    actor::host::MissingAgents, handles::ServiceHandles, placement::Placement,
    team_registry::TeamRegistry,
};

pub use session::Purpose;

/// The service that takes sessions over, moves them to other nodes, and closes them.
pub struct Takeover {
    handles: ServiceHandles,
    teams: Arc<TeamRegistry>,
    placement: Arc<Placement>,
    settings: TakeoverSettings,
    locks: SessionLocks,
    maintenance: Maintenance,
    /// The first request to drain this node.
    drain_requested: watch::Sender<Option<DrainRequest>>,
}

/// The settings of takeover on a node.
#[derive(Debug, Clone)]
pub struct TakeoverSettings {
    /// The time between two sweeps, which varies by up to a fifth.
    pub sweep_every: Duration,
    /// The time without writes after which closed sessions are removed, or `None` to keep them.
    pub retention: Option<Duration>,
    /// How long a drain may take if its request names no time.
    pub drain_timeout: Duration,
}

/// What a takeover does about a closed session.
#[derive(Debug, Clone, Copy)]
pub enum IfClosed<'a> {
    /// Opens the session.
    Open,
    /// Leaves the session closed and does nothing.
    Leave,
    /// Opens the session if one of these agents has an unread prompt.
    OpenIfPrompted(&'a [Stray]),
}

impl Takeover {
    pub fn new(
        handles: ServiceHandles,
        teams: Arc<TeamRegistry>,
        placement: Arc<Placement>,
        settings: TakeoverSettings,
    ) -> Self {
        Self {
            handles,
            teams,
            placement,
            settings,
            locks: SessionLocks::default(),
            maintenance: Maintenance::default(),
            drain_requested: watch::channel(None).0,
        }
    }

    /// Locks a session on this node. A caller holds the guard while it starts, takes over, rewinds
    /// or closes the session.
    pub async fn lock(&self, session: &SessionId) -> Result<SessionGuard, Refusal> {
        self.locks.lock(session).await
    }

    /// Sweeps at the times of [`SweepSchedule`] and whenever a sweep is requested, until `stop` is
    /// cancelled. Also parks agents and removes expired sessions at these times.
    pub async fn keep_sweeping(self: Arc<Self>, stop: CancellationToken) {
        let mut schedule = SweepSchedule::new(self.settings.sweep_every);
        while stop
            .run_until_cancelled(
                self.handles
                    .view
                    .until_sweep(schedule.pause(fastrand::f64())),
            )
            .await
            .is_some()
        {
            let is_full = schedule.begin();
            if is_full {
                self.handles.host.may_miss_agents();
            }
            if let Err(refusal) = self.sweep(is_full).await {
                self.handles.host.may_miss_agents();
                self.report(&refusal, "cannot sweep");
            }
            if let Some(age) = self.settings.retention
                && let Err(error) = self.remove_expired(age).await
            {
                tracing::warn!(%error, "cannot remove old sessions");
            }
        }
    }

    async fn sweep(&self, is_full: bool) -> Result<(), Refusal> {
        if self.handles.view.draining().is_cancelled() {
            return Ok(());
        }
        let alive = self.handles.view.liveness().alive();
        let has_somebody_left = self.maintenance.has_somebody_left(&alive);
        if !is_planted(PlantedFault::ExpiryUnswept) {
            self.handles.store.expire_waits().await?;
        }
        let mut strays = self.handles.store.sweep(&alive).await?;
        if !is_planted(PlantedFault::UnreadUnswept) {
            self.wake_own(&strays).await;
        }
        strays.retain(|stray| recovery::has_no_host(stray.node.as_ref(), &alive));
        if is_planted(PlantedFault::SweepBlind) {
            strays.clear();
        }
        let held = match self.handles.host.take_missing_agents() {
            MissingAgents::InAnySession => {
                self.handles.store.held_by(self.handles.view.id()).await?
            }
            MissingAgents::In(sessions) => {
                let sessions: Vec<SessionId> = sessions.into_iter().collect();
                self.handles
                    .store
                    .held_in(self.handles.view.id(), &sessions)
                    .await?
            }
        };
        let missing = held
            .into_iter()
            .filter(|held| !self.handles.host.has(&held.agent));
        let mut sessions: BTreeMap<SessionId, Vec<Stray>> = BTreeMap::new();
        for stray in strays.into_iter().chain(missing) {
            sessions
                .entry(stray.session.clone())
                .or_default()
                .push(stray);
        }
        for (id, strays) in sessions {
            let looked_after = self.look_after(&id, &strays).await;
            if self.handles.host.is_closed() {
                return Ok(());
            }
            if let Err(refusal) = looked_after {
                self.handles.host.may_miss_agents_of(&id);
                self.report(&refusal, &format!("cannot take session {id} over"));
            }
        }
        self.finish_closings().await;
        self.sweep_exits(has_somebody_left || is_full).await;
        Ok(())
    }

    /// Takes a session over or continues an interrupted close, if this node is the one to do that.
    async fn look_after(&self, id: &SessionId, strays: &[Stray]) -> Result<(), Refusal> {
        let session = self.handles.store.session(id).await?;
        let Some(session) = session.filter(|session| self.placement.sees(session)) else {
            return Ok(());
        };
        let has_lease = strays.iter().any(|stray| stray.node.is_some());
        if has_lease {
            self.release_stopped(&session, strays).await?;
        }
        let is_open = session.state == SessionState::Open;
        let is_prompted = !is_open && self.is_prompted(strays).await?;
        match recovery::sweep_step(is_open, is_prompted, has_lease) {
            SweepStep::TakeUp if self.is_for_another_node(&session).await? => Ok(()),
            SweepStep::TakeUp => {
                let if_closed = IfClosed::OpenIfPrompted(strays);
                self.take_over(id, "the process that ran it has ended", if_closed)
                    .await
            }
            SweepStep::FinishClose if self.placement.session_host(&session).await?.is_none() => {
                self.finish_close(id).await
            }
            SweepStep::FinishClose | SweepStep::Leave => Ok(()),
        }
    }

    /// Returns whether the session's orchestrator has no live host, and fits another node but not
    /// this one.
    async fn is_for_another_node(&self, session: &SessionRecord) -> Result<bool, Refusal> {
        let has_host = match &session.owner {
            Some(owner) => self.handles.view.is_alive(owner).await,
            None => false,
        };
        if has_host || self.handles.view.is_alone() {
            return Ok(false);
        }
        Ok(self.placement.better_node(session).await?.is_some())
    }

    /// Starts every agent of the session that no live node holds, on this node or another one. A
    /// repeated call is harmless, also while another node does the same. A session that is not to
    /// continue after its node's death is closed first.
    ///
    /// The state of the session is read under its lock, because the session may have been closed
    /// after the caller read it.
    pub async fn take_over(
        &self,
        session: &SessionId,
        reason: &str,
        if_closed: IfClosed<'_>,
    ) -> Result<(), Refusal> {
        let guard = self.lock(session).await?;
        let mut session = self.handles.lookup.session(session).await?;
        if session.state == SessionState::Open && self.is_lost(&session).await {
            self.close_lost(&session, &guard).await?;
            session = self.handles.lookup.session(&session.id).await?;
        }
        let is_closed = session.state == SessionState::Closed;
        let may_open = match if_closed {
            IfClosed::Open => true,
            IfClosed::Leave => false,
            IfClosed::OpenIfPrompted(strays) => is_closed && self.is_prompted(strays).await?,
        };
        if is_closed && !may_open {
            return Ok(());
        }
        let purpose = Purpose::Work { reason, may_open };
        self.take_over_locked(&session, purpose, &guard).await
    }

    /// Returns whether one of these agents has an unread prompt while no node holds its lease.
    async fn is_prompted(&self, strays: &[Stray]) -> Result<bool, StoreError> {
        for stray in strays.iter().filter(|stray| stray.node.is_none()) {
            let inputs = self
                .handles
                .store
                .open_inputs(&stray.session, &stray.agent)
                .await?;
            if inputs
                .iter()
                .any(|row| row.input.kind == InputKind::Prompt && row.is_unread())
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Logs a warning, or only a debug message if the refusal is expected. A node that leaves or is
    /// suspended leaves this work to others, and the next sweep reads again what another node
    /// changed meanwhile.
    fn report(&self, refusal: &Refusal, what: &str) {
        let leaves = self.handles.host.is_closed() || self.handles.view.draining().is_cancelled();
        if leaves || self.handles.view.is_suspended() || refusal.code == Code::StaleEpoch {
            tracing::debug!(%refusal, "{what}");
        } else {
            tracing::warn!(%refusal, "{what}");
        }
    }

    async fn finish_closings(&self) {
        for (id, close) in self.maintenance.closings() {
            if let Err(refusal) = self.finish_closing(&id, &close).await {
                tracing::warn!(session = %id, %refusal, "cannot finish closing the session yet");
            }
        }
    }

    async fn finish_closing(&self, id: &SessionId, close: &UnfinishedClose) -> Result<(), Refusal> {
        let guard = self.lock(id).await?;
        // The close may have been completed meanwhile, and a prompt may have opened the session again.
        if !self.maintenance.is_closing(id) {
            return Ok(());
        }
        if let Some(session) = self.handles.store.session(id).await? {
            let is_closed = session.state == SessionState::Closed;
            if is_closed
                && self.placement.session_host(&session).await?.is_none()
                && !self.held(&session).await?.is_empty()
            {
                let reason = &close.reason;
                let ended = self.close_locked(&session, reason, Purpose::End, &guard);
                return ended.await;
            }
            // The lease was taken for the close, and the state was not written.
            if !is_closed && self.is_lost(&session).await {
                drop(guard);
                return self.take_over(id, &close.reason, IfClosed::Leave).await;
            }
        }
        // The client that asked for the close was told that it failed, or the session is on another
        // node now.
        self.maintenance.closed(id);
        Ok(())
    }

    /// Removes the closed sessions that were last written before `age`. A session that cannot be
    /// removed does not keep the others from being removed, unless the store is unreachable.
    async fn remove_expired(&self, age: Duration) -> Result<(), StoreError> {
        let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        let before = Timestamp::from_millis(Timestamp::now().millis().saturating_sub(age));
        for session in self.handles.store.expired(before).await? {
            match self.handles.store.delete(&session).await {
                Ok(removed) => {
                    tracing::info!(%session, agents = removed.agents, events = removed.events, "removed an old session")
                }
                Err(error @ StoreError::Away(_)) => return Err(error),
                Err(error) => tracing::warn!(%session, %error, "cannot remove an old session"),
            }
        }
        Ok(())
    }

    /// Makes those of the agents that run on this node check their inboxes, because they may have
    /// missed a wake-up.
    async fn wake_own(&self, strays: &[Stray]) {
        for stray in strays
            .iter()
            .filter(|stray| self.handles.host.has(&stray.agent))
        {
            let _ = self.handles.host.look(&stray.agent).await;
        }
    }
}

/// The unfinished work of this node.
#[derive(Debug, Default)]
struct Maintenance {
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
struct UnfinishedClose {
    pub reason: String,
    /// Whether the session is closed because its node died. No client repeats such a close if it
    /// fails before the session is recorded as closed.
    pub is_lost: bool,
}

impl Maintenance {
    /// Records that a close began.
    fn closing(&self, session: &SessionId, close: UnfinishedClose) {
        self.open().closings.insert(session.clone(), close);
    }

    /// Returns whether this node began to close the session and has not completed that.
    fn is_closing(&self, session: &SessionId) -> bool {
        self.open().closings.contains_key(session)
    }

    /// Returns whether this node began to close the session because its node died.
    fn is_closing_lost(&self, session: &SessionId) -> bool {
        let open = self.open();
        let close = open.closings.get(session);
        close.is_some_and(|close| close.is_lost)
    }

    /// Forgets a close that is complete, or that this node is not to continue.
    fn closed(&self, session: &SessionId) {
        self.open().closings.remove(session);
    }

    /// Returns the closes that are not complete.
    fn closings(&self) -> BTreeMap<SessionId, UnfinishedClose> {
        self.open().closings.clone()
    }

    /// Makes the next sweep check the session for unreported ends of workers.
    fn look_for_exits(&self, session: &SessionId) {
        self.open().exits.insert(session.clone());
    }

    fn take_exits(&self) -> BTreeSet<SessionId> {
        std::mem::take(&mut self.open().exits)
    }

    /// Locks the reports of workers' ends to an orchestrator, so that each end is reported once.
    async fn lock_exit_reports(&self, session: &SessionId) -> Result<SessionGuard, Refusal> {
        self.exit_reports.lock(session).await
    }

    /// Records which nodes are alive. Returns whether a node that was alive at the previous call is
    /// not alive any more.
    fn has_somebody_left(&self, alive: &[NodeId]) -> bool {
        let now: BTreeSet<NodeId> = alive.iter().cloned().collect();
        let before = std::mem::replace(&mut self.open().alive, now.clone());
        !before.is_subset(&now)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long to wait for a lock. A close may hold it while processes end.
const PATIENCE: Duration = Duration::from_secs(8);

/// The locks of the sessions in use on this node.
#[derive(Debug, Default)]
struct SessionLocks(Mutex<HashMap<SessionId, Arc<Semaphore>>>);

/// Holds a session's lock until it is dropped.
pub type SessionGuard = OwnedSemaphorePermit;

impl SessionLocks {
    /// Waits for the session's lock. Refuses if another operation holds it for too long.
    async fn lock(&self, session: &SessionId) -> Result<SessionGuard, Refusal> {
        match timeout(PATIENCE, self.of(session).acquire_owned()).await {
            Ok(Ok(guard)) => Ok(guard),
            Ok(Err(_)) | Err(_) => Err(Refusal::unavailable(format!(
                "session {session} is being taken over or closed; ask again"
            ))),
        }
    }

    fn of(&self, session: &SessionId) -> Arc<Semaphore> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(
            locks
                .entry(session.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(1))),
        )
    }
}

#[cfg(test)]
mod tests;
