//! Looks, now and then, for what nobody looks after: leases of dead nodes, and unread inputs of
//! agents nobody holds.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use planck_common::{
    SessionId, Timestamp,
    command::SessionState,
    event::InputKind,
    reply::{Code, Refusal},
};
use tokio_util::sync::CancellationToken;

use super::claim::IfClosed;
use crate::{
    cluster::liveness::SILENCE,
    node::Node,
    store::{SessionRecord, StoreError, Stray},
};

/// What the second sweep waits longer than silence counts.
const SETTLED: Duration = Duration::from_millis(200);

/// In how many sweeps the leases of this node are looked through although nothing says that an
/// agent is missing: on SQLite that reads every session's file.
const LOOK_THROUGH: u32 = 60;

impl Node {
    /// Sweeps until told to stop: at once, again when silence first tells who is dead, so that a
    /// restarted node takes its interrupted work up whatever the store can judge, and then now and
    /// then, give or take a fifth; and whenever a peer is gone.
    pub(crate) async fn keep_sweeping(self: Arc<Self>, stop: CancellationToken) {
        let mut first = [Duration::ZERO, SILENCE + SETTLED].into_iter();
        let mut pause = || {
            first.next().unwrap_or_else(|| {
                self.settings()
                    .sweep_every
                    .mul_f64(0.8 + 0.4 * fastrand::f64())
            })
        };
        let mut sweeps = 0_u32;
        while stop
            .run_until_cancelled(self.until_sweep(pause()))
            .await
            .is_some()
        {
            self.host().park();
            let look_through = sweeps.is_multiple_of(LOOK_THROUGH);
            if look_through {
                self.host().may_miss_agents();
            }
            sweeps = sweeps.wrapping_add(1);
            if let Err(refusal) = self.sweep(look_through).await {
                self.host().may_miss_agents();
                self.complain(&refusal, "cannot sweep");
            }
            if let Some(age) = self.settings().retention
                && let Err(error) = self.prune(age).await
            {
                tracing::warn!(%error, "cannot remove old sessions");
            }
        }
    }

    async fn sweep(&self, look_through: bool) -> Result<(), Refusal> {
        if self.draining().is_cancelled() {
            return Ok(());
        }
        let alive = self.liveness().alive();
        let somebody_left = self.chores().somebody_left(&alive);
        let mut strays = self.store().sweep(&alive).await?;
        self.wake_own(&strays).await;
        strays.retain(|stray| stray.node.as_ref().is_none_or(|node| !alive.contains(node)));
        let held = if self.host().take_may_miss_agents() {
            self.store().held(self.id()).await?
        } else {
            Vec::new()
        };
        let lost = held
            .into_iter()
            .filter(|held| !self.host().has(&held.agent));
        let mut sessions: BTreeMap<SessionId, Vec<Stray>> = BTreeMap::new();
        for stray in strays.into_iter().chain(lost) {
            sessions
                .entry(stray.session.clone())
                .or_default()
                .push(stray);
        }
        for (id, strays) in sessions {
            let looked_after = self.look_after(&id, &strays).await;
            if self.host().is_closed() {
                return Ok(());
            }
            if let Err(refusal) = looked_after {
                self.host().may_miss_agents();
                self.complain(&refusal, &format!("cannot take session {id} up"));
            }
        }
        self.finish_closings().await;
        self.sweep_exits(somebody_left || look_through).await;
        Ok(())
    }

    /// Takes a session up, or goes on closing one whose closing was cut short. A closed one opens
    /// for a prompt only, not for what its agents said to each other while it was closed.
    async fn look_after(&self, id: &SessionId, strays: &[Stray]) -> Result<(), Refusal> {
        let Some(session) = self
            .store()
            .session(id)
            .await?
            .filter(|session| self.sees(session))
        else {
            return Ok(());
        };
        if session.state == SessionState::Open || self.is_prompted(strays).await? {
            if self.is_for_another(&session).await? {
                return Ok(());
            }
            let if_closed = IfClosed::OpenIfPrompted(strays);
            return self.take_up(id, "its node died or left", if_closed).await;
        }
        let is_held = strays.iter().any(|stray| stray.node.is_some());
        match is_held && self.host_of(&session).await?.is_none() {
            true => self.close(&session, "closed").await.map(drop),
            false => Ok(()),
        }
    }

    /// Whether its lead is to be taken up, and fits another node and not this one.
    async fn is_for_another(&self, session: &SessionRecord) -> Result<bool, Refusal> {
        let is_led = match &session.owner {
            Some(owner) => self.liveness().is_alive(owner).await,
            None => false,
        };
        Ok(!is_led && !self.settings().alone && self.better_home(session).await?.is_some())
    }

    /// Whether one of these agents, whom nobody holds, has an unread prompt.
    pub(super) async fn is_prompted(&self, strays: &[Stray]) -> Result<bool, StoreError> {
        for stray in strays.iter().filter(|stray| stray.node.is_none()) {
            let inputs = self
                .store()
                .open_inputs(&stray.session, &stray.agent)
                .await?;
            if inputs
                .iter()
                .any(|row| row.input.kind == InputKind::Prompt && row.turn.is_none())
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Warns, except where nothing is wrong: others do what a node that leaves, or is suspended,
    /// does not, and what another node changed meanwhile is looked at again by the next sweep.
    fn complain(&self, refusal: &Refusal, what: &str) {
        let leaves = self.host().is_closed() || self.draining().is_cancelled();
        if leaves || self.is_suspended() || refusal.code == Code::StaleEpoch {
            tracing::debug!(%refusal, "{what}");
        } else {
            tracing::warn!(%refusal, "{what}");
        }
    }

    async fn finish_closings(&self) {
        for (id, reason) in self.chores().closings() {
            let closed = async {
                match self.store().session(&id).await? {
                    Some(session)
                        if session.state == SessionState::Closed
                            && self.host_of(&session).await?.is_none() =>
                    {
                        self.close(&session, &reason).await.map(drop)
                    }
                    // It was never recorded as closed, or is somebody else's by now.
                    Some(_) | None => {
                        self.chores().closed(&id);
                        Ok(())
                    }
                }
            };
            let closed: Result<(), Refusal> = closed.await;
            if let Err(refusal) = closed {
                tracing::warn!(session = %id, %refusal, "cannot finish closing the session yet");
            }
        }
    }

    /// Removes closed sessions that were not written to for so long.
    async fn prune(&self, age: Duration) -> Result<(), StoreError> {
        let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        let before = Timestamp::from_millis(Timestamp::now().millis().saturating_sub(age));
        for session in self.store().expired(before).await? {
            let removed = self.store().delete(&session).await?;
            tracing::info!(%session, agents = removed.agents, events = removed.events, "removed an old session");
        }
        Ok(())
    }

    /// An agent here may have missed a wake-up.
    async fn wake_own(&self, strays: &[Stray]) {
        for stray in strays.iter().filter(|stray| self.host().has(&stray.agent)) {
            let _ = self.host().look(&stray.agent).await;
        }
    }
}
