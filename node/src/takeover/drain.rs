//! Drains the node. Until the time is up, each agent moves to another node at a point where no work
//! is lost or repeated, which is between two requests or while the agent only waits.

use std::time::Duration;

use futures_util::future;
use planck_common::{
    AgentId,
    decision::{DecisionData, DecisionKind},
};
use tokio::time::{Instant, sleep};

use super::Takeover;
use crate::{actor::AT_ONCE, placement::claim_request};
use planck_store::AgentRecord;

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
            self.decisions.publish(DecisionKind::Drain, data);
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
    /// the leases of the rest, and a node that finds this one gone takes them up.
    pub async fn drain(&self, patience: Duration) {
        self.view.draining().cancel();
        let until = Instant::now() + patience;
        let (mut unread, mut staying) = (self.host.agents(None), Vec::new());
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
            match self.lookup.agent(&agent).await {
                Ok(record) => read.push(record),
                Err(refusal) if refusal.retryable => unread.push(agent),
                Err(refusal) => tracing::debug!(%agent, %refusal, "the agent is gone"),
            }
        }
        unread
    }

    async fn move_away(&self, agent: &AgentRecord, mode: DrainMode) -> Move {
        let Some(hosting) = self.host.hosting(&agent.id) else {
            return Move::Done;
        };
        let workspace = &hosting.session.workspace;
        let Some(node) = self.placement.other_node_for(workspace, &agent.spec) else {
            return Move::Impossible;
        };
        let is_idle = self.is_idle(&agent.id).await;
        match mode {
            DrainMode::WhenIdle => {
                if !self.host.leave(&agent.id).await.unwrap_or(false) {
                    return Move::NotYet;
                }
            }
            DrainMode::Now => self.host.drop_agents(std::slice::from_ref(&agent.id)).await,
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
                self.decisions.publish(DecisionKind::Drain, data);
                Move::Done
            }
            // The agent continues here. If the other node has it in spite of the refusal, the store
            // refuses writes of this node. An idle agent is not tried again, because its lease is
            // released when this node leaves. Otherwise a drain would wait in vain while NATS is
            // unreachable.
            Err(refusal) => {
                tracing::debug!(agent = %agent.id, %node, %refusal, "the agent cannot move");
                self.host.start(hosting);
                if is_idle {
                    Move::Impossible
                } else {
                    Move::NotYet
                }
            }
        }
    }
}
