//! Looks, now and then, for what nobody looks after: leases of dead nodes, and unread inputs of agents nobody holds.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use planck_common::{SessionId, Timestamp, reply::Refusal};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::liveness::SILENCE,
    node::Node,
    store::{StoreError, Stray},
};

/// What the second sweep waits longer than silence counts.
const SETTLED: Duration = Duration::from_millis(200);

/// In how many sweeps the leases of this node are looked through although nothing says that an agent is missing: on SQLite
/// that reads every session's file.
const LOOK_THROUGH: u32 = 60;

impl Node {
    /// Sweeps until told to stop: at once, again when silence first tells who is dead, so that a restarted node takes its
    /// interrupted work up whatever the store can judge, and then now and then, give or take a fifth; and whenever a peer is gone.
    pub(crate) async fn keep_sweeping(self: Arc<Self>, stop: CancellationToken) {
        let mut first = [Duration::ZERO, SILENCE + SETTLED].into_iter();
        let mut pause = || first.next().unwrap_or_else(|| self.settings().sweep_every.mul_f64(0.8 + 0.4 * fastrand::f64()));
        let mut sweeps = 0_u32;
        while stop.run_until_cancelled(self.until_sweep(pause())).await.is_some() {
            if sweeps.is_multiple_of(LOOK_THROUGH) {
                self.host().may_miss_agents();
            }
            sweeps = sweeps.wrapping_add(1);
            if let Err(refusal) = self.sweep().await {
                self.host().may_miss_agents();
                tracing::warn!(%refusal, "cannot sweep");
            }
            if let Some(age) = self.settings().retention
                && let Err(error) = self.prune(age).await
            {
                tracing::warn!(%error, "cannot remove old sessions");
            }
        }
    }

    async fn sweep(&self) -> Result<(), Refusal> {
        let alive = self.liveness().alive();
        let strays = self.store().sweep(&alive).await?;
        self.wake_own(&strays).await;
        let held = if self.host().take_may_miss_agents() { self.store().held(self.id()).await? } else { Vec::new() };
        let lost = held.into_iter().filter(|held| !self.host().has(&held.agent));
        let sessions: BTreeSet<SessionId> = strays.into_iter().chain(lost).map(|stray| stray.session).collect();
        for id in sessions {
            let session = self.find_session(&id).await?;
            if let Err(refusal) = self.take_up(&session, "its node died or left").await {
                self.host().may_miss_agents();
                tracing::warn!(session = %id, %refusal, "cannot take the session up");
            }
        }
        Ok(())
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
