//! Claims the lease of one agent.

use std::collections::BTreeSet;

use planck_common::{NodeId, SessionId};

use super::Takeover;
use planck_cluster::recovery::LeaseHolder;
use planck_store::{AgentRecord, HeldLease, LeaseClaim, StoreError};
use planck_telemetry::metrics;

impl Takeover {
    /// Claims a lease. Returns `None` if its epoch has changed, or if the orchestrator does not
    /// have the incarnation that `claim` names. If a stopped process of a dead node may block the
    /// store, kills that process and tries again. If the outcome is unknown, or the agent is not
    /// started afterwards, the next sweep finds the agent.
    pub(super) async fn claim(
        &self,
        session: &SessionId,
        agent: &AgentRecord,
        epoch: i64,
        claim: LeaseClaim,
    ) -> Result<Option<HeldLease>, StoreError> {
        let _guard = self.host.taking_leases(session);
        let by = self.view.id();
        let try_claim = || {
            self.store
                .claim(session, &agent.id, epoch, claim.clone(), by)
        };
        let claimed = try_claim().await;
        let is_blocked = matches!(claimed, Err(StoreError::Away(_)));
        let lease = if is_blocked && self.end_stopped_hosts(session).await {
            try_claim().await?
        } else {
            claimed?
        };
        if lease.is_some() && agent.node.as_ref().is_some_and(|node| node != by) {
            metrics::meters().taken_over();
        }
        Ok(lease)
    }

    /// Kills the stopped processes of a session's hosts that left or were declared dead. Such a
    /// process may hold the lock of the session's database, in which case every claim fails until
    /// the process ends. Returns whether a process was killed.
    async fn end_stopped_hosts(&self, session: &SessionId) -> bool {
        let Ok(agents) = self.store.agents(session).await else {
            return false;
        };
        let hosts: BTreeSet<NodeId> = agents.into_iter().filter_map(|agent| agent.node).collect();
        let mut has_ended = false;
        for node in hosts.iter().filter(|node| self.view.is_gone(node)) {
            match self.store.end_stopped_node(node).await {
                Ok(false) => {}
                Ok(true) => {
                    tracing::warn!(%session, %node, "killed the stopped process of a dead node: it may hold the lock of the session's database");
                    has_ended = true;
                }
                Err(error) => {
                    tracing::warn!(%session, %node, %error, "cannot end the stopped process of a dead node");
                }
            }
        }
        has_ended
    }

    /// Returns the holder of a lease, as this node sees it.
    pub(super) async fn holder(&self, node: Option<&NodeId>) -> LeaseHolder {
        let is_alive = match node {
            Some(node) if node != self.view.id() => self.view.is_alive(node).await,
            Some(_) | None => true,
        };
        LeaseHolder::of(node, self.view.id(), is_alive)
    }
}
