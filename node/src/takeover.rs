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
mod maintenance;
mod session;
mod session_locks;
mod stop;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use planck_common::{
    SessionId, Timestamp,
    command::SessionState,
    event::InputKind,
    reply::{Code, Refusal},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use session::Purpose;
pub use session_locks::SessionGuard;

use self::{
    leave::DrainRequest,
    maintenance::{Maintenance, UnfinishedClose},
    session_locks::SessionLocks,
};
use crate::{
    actor::host::MissingAgents, base::Base, placement::Placement, team_registry::TeamRegistry,
};
use planck_cluster::{
    planted::{PlantedFault, is_planted},
    recovery::{self, SweepSchedule, SweepStep},
};
use planck_store::{SessionRecord, StoreError, Stray};

/// The service that takes sessions over, moves them to other nodes, and closes them.
pub struct Takeover {
    base: Base,
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
        base: Base,
        teams: Arc<TeamRegistry>,
        placement: Arc<Placement>,
        settings: TakeoverSettings,
    ) -> Self {
        Self {
            base,
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
            .run_until_cancelled(self.base.view.until_sweep(schedule.pause(fastrand::f64())))
            .await
            .is_some()
        {
            self.base.host.park();
            let is_full = schedule.begin();
            if is_full {
                self.base.host.may_miss_agents();
            }
            if let Err(refusal) = self.sweep(is_full).await {
                self.base.host.may_miss_agents();
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
        if self.base.view.draining().is_cancelled() {
            return Ok(());
        }
        let alive = self.base.view.liveness().alive();
        let has_somebody_left = self.maintenance.has_somebody_left(&alive);
        self.base.store.expire_waits().await?;
        let mut strays = self.base.store.sweep(&alive).await?;
        if !is_planted(PlantedFault::UnreadUnswept) {
            self.wake_own(&strays).await;
        }
        strays.retain(|stray| recovery::has_no_host(stray.node.as_ref(), &alive));
        if is_planted(PlantedFault::SweepBlind) {
            strays.clear();
        }
        let held = match self.base.host.take_missing_agents() {
            MissingAgents::InAnySession => self.base.store.held_by(self.base.view.id()).await?,
            MissingAgents::In(sessions) => {
                let sessions: Vec<SessionId> = sessions.into_iter().collect();
                self.base
                    .store
                    .held_in(self.base.view.id(), &sessions)
                    .await?
            }
        };
        let missing = held
            .into_iter()
            .filter(|held| !self.base.host.has(&held.agent));
        let mut sessions: BTreeMap<SessionId, Vec<Stray>> = BTreeMap::new();
        for stray in strays.into_iter().chain(missing) {
            sessions
                .entry(stray.session.clone())
                .or_default()
                .push(stray);
        }
        for (id, strays) in sessions {
            let looked_after = self.look_after(&id, &strays).await;
            if self.base.host.is_closed() {
                return Ok(());
            }
            if let Err(refusal) = looked_after {
                self.base.host.may_miss_agents_of(&id);
                self.report(&refusal, &format!("cannot take session {id} over"));
            }
        }
        self.finish_closings().await;
        self.sweep_exits(has_somebody_left || is_full).await;
        Ok(())
    }

    /// Takes a session over or continues an interrupted close, if this node is the one to do that.
    async fn look_after(&self, id: &SessionId, strays: &[Stray]) -> Result<(), Refusal> {
        let session = self.base.store.session(id).await?;
        let Some(session) = session.filter(|session| self.placement.sees(session)) else {
            return Ok(());
        };
        let is_open = session.state == SessionState::Open;
        let is_prompted = !is_open && self.is_prompted(strays).await?;
        let has_lease = strays.iter().any(|stray| stray.node.is_some());
        match recovery::sweep_step(is_open, is_prompted, has_lease) {
            SweepStep::TakeUp if self.is_for_another_node(&session).await? => Ok(()),
            SweepStep::TakeUp => {
                let if_closed = IfClosed::OpenIfPrompted(strays);
                self.take_over(id, "the process that ran it has ended", if_closed)
                    .await
            }
            SweepStep::FinishClose if self.placement.session_host(&session).await?.is_none() => {
                self.close(&session, "closed").await.map(drop)
            }
            SweepStep::FinishClose | SweepStep::Leave => Ok(()),
        }
    }

    /// Returns whether the session's orchestrator has no live host, and fits another node but not
    /// this one.
    async fn is_for_another_node(&self, session: &SessionRecord) -> Result<bool, Refusal> {
        let has_host = match &session.owner {
            Some(owner) => self.base.view.is_alive(owner).await,
            None => false,
        };
        if has_host || self.base.view.is_alone() {
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
        let mut session = self.base.lookup.session(session).await?;
        if session.state == SessionState::Open && self.is_lost(&session).await {
            self.close_lost(&session, &guard).await?;
            session = self.base.lookup.session(&session.id).await?;
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
                .base
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
        let leaves = self.base.host.is_closed() || self.base.view.draining().is_cancelled();
        if leaves || self.base.view.is_suspended() || refusal.code == Code::StaleEpoch {
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
        if let Some(session) = self.base.store.session(id).await? {
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
        for session in self.base.store.expired(before).await? {
            match self.base.store.delete(&session).await {
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
            .filter(|stray| self.base.host.has(&stray.agent))
        {
            let _ = self.base.host.look(&stray.agent).await;
        }
    }
}
