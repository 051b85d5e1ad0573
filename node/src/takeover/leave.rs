//! Leaves the cluster. Releases the leases of idle agents, and of agents that were unloaded while
//! they wait for answers, so that any node may take them at once. This node keeps the lease of an
//! agent at work, and a node that finds this one gone continues the turn.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future;
use planck_common::{AgentId, SessionId, command::AgentState};
use tokio::time::timeout;

use super::Takeover;
use crate::actor::AT_ONCE;
use planck_cluster::recovery;
use planck_store::LeaseRelease;

/// How long the store may take to return this node's leases.
const PATIENCE: Duration = Duration::from_secs(2);

impl Takeover {
    /// Drops the idle agents on this node and releases their leases.
    pub async fn release_idle(&self) {
        for some in self.host.agents(None).chunks(AT_ONCE) {
            let dropped = future::join_all(some.iter().map(|agent| self.drop_if_idle(agent))).await;
            let mut by_session: BTreeMap<SessionId, Vec<LeaseRelease>> = BTreeMap::new();
            for (session, release) in dropped.into_iter().flatten() {
                by_session.entry(session).or_default().push(release);
            }
            let releases = by_session
                .iter()
                .map(|(session, releases)| self.release_leases(session, releases));
            future::join_all(releases).await;
        }
    }

    /// Drops the agents on this node whose leases this node no longer holds. Returns whether the
    /// store returned this node's leases in time.
    pub async fn drop_superseded(&self) -> bool {
        let here: Vec<(AgentId, i64)> = self
            .host
            .hostings()
            .into_iter()
            .map(|hosting| (hosting.agent, hosting.epoch))
            .collect();
        let Ok(held) = timeout(PATIENCE, self.store.held_by(self.view.id())).await else {
            return false;
        };
        let held: BTreeMap<AgentId, i64> = match held {
            Ok(held) => held
                .into_iter()
                .map(|held| (held.agent, held.epoch))
                .collect(),
            Err(error) => {
                tracing::debug!(%error, "cannot read this node's leases from the store");
                return false;
            }
        };
        for agent in recovery::superseded(&here, &held) {
            tracing::warn!(%agent, "dropped an agent whose lease another node took");
            self.host.drop_agent(&agent);
        }
        true
    }

    /// Drops all agents and refuses new ones. Writes nothing, because other nodes have taken up the
    /// work of this node, or will do so.
    pub fn drop_all(&self) {
        self.host.close();
        for agent in self.host.agents(None) {
            self.host.drop_agent(&agent);
        }
    }

    /// Drops an agent if it is idle. Returns its session and the release of its lease, or `None` if
    /// the agent was not dropped.
    async fn drop_if_idle(&self, agent: &AgentId) -> Option<(SessionId, LeaseRelease)> {
        let hosting = self.host.hosting(agent)?;
        if !self.is_idle(agent).await {
            return None;
        }
        self.host.drop_agent(agent);
        let release = LeaseRelease {
            agent: agent.clone(),
            epoch: hosting.epoch,
            stopped: false,
        };
        Some((hosting.session.id.clone(), release))
    }

    async fn release_leases(&self, session: &SessionId, releases: &[LeaseRelease]) {
        let results = self.store.release_all(session, releases).await;
        let results = results.unwrap_or_else(|error| vec![Err(error); releases.len()]);
        for (LeaseRelease { agent, .. }, result) in releases.iter().zip(results) {
            if let Err(error) = result {
                tracing::warn!(%agent, %error, "cannot release the lease; another node's sweep will find it");
            }
        }
    }

    /// Returns whether the agent does nothing that would be lost: it is idle, or has no task.
    pub(super) async fn is_idle(&self, agent: &AgentId) -> bool {
        if self.host.is_at_rest(agent) {
            return true;
        }
        let info = self.host.info(agent).await;
        info.is_ok_and(|info| info.state == AgentState::Idle && info.queued == 0)
    }
}
