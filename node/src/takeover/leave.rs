//! Drains this node and leaves the cluster. During a drain, each agent moves to another node at a
//! point where no work is lost or repeated, which is between two requests or while the agent only
//! waits. Then the node releases the leases of idle agents, and of agents that were unloaded while
//! they wait for answers, so that any node may claim them at once. It keeps the lease of an agent at
//! work, and a node that finds this one gone continues the turn.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future;
use planck_common::{
    AgentId, SessionId,
    command::AgentState,
    decision::{DecisionData, DecisionKind},
};
use tokio::time::{Instant, sleep, timeout};

use super::Takeover;
use crate::{actor::AT_ONCE, placement::claim_request};
use planck_cluster::recovery;
use planck_store::{AgentRecord, LeaseRelease};

/// How long the store may take to return this node's leases.
const PATIENCE: Duration = Duration::from_secs(2);

/// The time between two checks of which agents can move.
const LOOK: Duration = Duration::from_millis(50);

/// The reason of a drain, before what the request says.
const DRAINED: &str = "its node is drained";

/// Whether to wait for a point at which no work of an agent is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DrainMode {
    WhenIdle,
    Now,
}

/// The result of one attempt to move an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Move {
    Done,
    /// The agent fits no other node, or it is idle and another node refused it.
    Impossible,
    NotYet,
}

/// A request to drain this node.
#[derive(Debug)]
pub(super) struct DrainRequest {
    /// How long the drain may take.
    patience: Duration,
    reason: String,
}

impl Takeover {
    /// Requests that this node drains and leaves. The first request holds, so that a repetition
    /// changes nothing.
    pub fn request_drain(&self, patience: Option<Duration>, reason: Option<String>) {
        let patience = patience.unwrap_or(self.settings.drain_timeout);
        let reason = reason.map_or_else(|| DRAINED.into(), |why| format!("{DRAINED}: {why}"));
        let is_first = self.drain_requested.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert_with(|| DrainRequest {
                patience,
                reason: reason.clone(),
            });
            is_first
        });
        if is_first {
            tracing::info!(reason, "a client asked this node to drain");
            let data = DecisionData::because(reason);
            self.handles.decisions.publish(DecisionKind::Drain, data);
        }
    }

    /// Waits until a drain is requested, and returns the time that the drain may take.
    pub async fn drain_requested(&self) -> Duration {
        let mut requested = self.drain_requested.subscribe();
        let request = requested.wait_for(Option::is_some).await;
        match request.map(|request| request.as_ref().map(|request| request.patience)) {
            Ok(Some(patience)) => patience,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Returns why agents leave this node.
    fn why_drained(&self) -> String {
        let requested = self.drain_requested.borrow();
        let reason = requested.as_ref().map(|request| request.reason.clone());
        reason.unwrap_or_else(|| DRAINED.into())
    }

    /// Marks this node as draining, and moves its agents to other nodes. Returns when each agent
    /// has moved or cannot move, or after a last attempt once `patience` is over. This node keeps
    /// the leases of the rest, and a node that finds this one gone takes them over.
    pub async fn drain(&self, patience: Duration) {
        self.handles.view.draining().cancel();
        let until = Instant::now() + patience;
        let (mut unread, mut staying) = (self.handles.host.agents(None), Vec::new());
        loop {
            let mode = if Instant::now() < until {
                DrainMode::WhenIdle
            } else {
                DrainMode::Now
            };
            unread = self.read_records(unread, &mut staying).await;
            let mut left = Vec::new();
            for some in staying.chunks(AT_ONCE) {
                let moves = some.iter().map(|agent| self.move_away(agent, mode));
                let moved = future::join_all(moves).await;
                left.extend(
                    some.iter()
                        .zip(moved)
                        .filter(|(_, moved)| *moved == Move::NotYet)
                        .map(|(agent, _)| agent.clone()),
                );
            }
            if (left.is_empty() && unread.is_empty()) || mode == DrainMode::Now {
                return;
            }
            staying = left;
            sleep(LOOK).await;
        }
    }

    /// Reads the records of agents that are to move. Returns the agents whose records cannot be
    /// read now.
    async fn read_records(
        &self,
        agents: Vec<AgentId>,
        read: &mut Vec<AgentRecord>,
    ) -> Vec<AgentId> {
        let mut unread = Vec::new();
        for agent in agents {
            match self.handles.lookup.agent(&agent).await {
                Ok(record) => read.push(record),
                Err(refusal) if refusal.retryable => unread.push(agent),
                Err(refusal) => tracing::debug!(%agent, %refusal, "the agent is gone"),
            }
        }
        unread
    }

    async fn move_away(&self, agent: &AgentRecord, mode: DrainMode) -> Move {
        let Some(hosting) = self.handles.host.hosting(&agent.id) else {
            return Move::Done;
        };
        let workspace = &hosting.session.workspace;
        let Some(node) = self.placement.other_node_for(workspace, &agent.spec).await else {
            return Move::Impossible;
        };
        let is_idle = self.is_idle(&agent.id).await;
        match mode {
            DrainMode::WhenIdle => {
                if !self.handles.host.leave(&agent.id).await.unwrap_or(false) {
                    return Move::NotYet;
                }
            }
            DrainMode::Now => {
                self.handles
                    .host
                    .drop_agents(std::slice::from_ref(&agent.id))
                    .await
            }
        }
        let held = AgentRecord {
            epoch: hosting.epoch,
            ..agent.clone()
        };
        let request = claim_request(&hosting.session, &held, None);
        match self.placement.host_on(&node, &request).await {
            Ok(hosted) => {
                let data = DecisionData {
                    node: Some(hosted.node_id),
                    agent: Some(agent.id.clone()),
                    session: Some(agent.session.clone()),
                    ..DecisionData::because(self.why_drained())
                };
                self.handles.decisions.publish(DecisionKind::Drain, data);
                Move::Done
            }
            // The agent continues here. If the other node has it in spite of the refusal, the store
            // refuses writes of this node. An idle agent is not tried again, because its lease is
            // released when this node leaves. Otherwise a drain would wait in vain while NATS is
            // unreachable.
            Err(refusal) => {
                tracing::debug!(agent = %agent.id, %node, %refusal, "the agent cannot move");
                self.handles.host.start(hosting);
                if is_idle {
                    Move::Impossible
                } else {
                    Move::NotYet
                }
            }
        }
    }

    /// Drops the idle agents on this node and releases their leases.
    pub async fn release_idle(&self) {
        for some in self.handles.host.agents(None).chunks(AT_ONCE) {
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
            .handles
            .host
            .hostings()
            .into_iter()
            .map(|hosting| (hosting.agent, hosting.epoch))
            .collect();
        let Ok(held) = timeout(PATIENCE, self.handles.store.held_by(self.handles.view.id())).await
        else {
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
            self.handles.host.drop_agent(&agent);
        }
        true
    }

    /// Drops all agents and refuses new ones. Writes nothing, because other nodes have taken over the
    /// work of this node, or will do so.
    pub fn drop_all(&self) {
        self.handles.host.close();
        for agent in self.handles.host.agents(None) {
            self.handles.host.drop_agent(&agent);
        }
    }

    /// Drops an agent if it is idle. Returns its session and the release of its lease, or `None` if
    /// the agent was not dropped.
    async fn drop_if_idle(&self, agent: &AgentId) -> Option<(SessionId, LeaseRelease)> {
        let hosting = self.handles.host.hosting(agent)?;
        if !self.is_idle(agent).await {
            return None;
        }
        self.handles.host.drop_agent(agent);
        let release = LeaseRelease {
            agent: agent.clone(),
            epoch: hosting.epoch,
            stopped: false,
        };
        Some((hosting.session.id.clone(), release))
    }

    async fn release_leases(&self, session: &SessionId, releases: &[LeaseRelease]) {
        let results = self.handles.store.release_all(session, releases).await;
        let results = results.unwrap_or_else(|error| vec![Err(error); releases.len()]);
        for (LeaseRelease { agent, .. }, result) in releases.iter().zip(results) {
            if let Err(error) = result {
                tracing::warn!(%agent, %error, "cannot release the lease; another node's sweep will find it");
            }
        }
    }

    /// Returns whether the agent does nothing that would be lost: it is idle, or has no task.
    pub(super) async fn is_idle(&self, agent: &AgentId) -> bool {
        if self.handles.host.is_parked(agent) {
            return true;
        }
        let info = self.handles.host.info(agent).await;
        info.is_ok_and(|info| info.state == AgentState::Idle && info.queued == 0)
    }
}
