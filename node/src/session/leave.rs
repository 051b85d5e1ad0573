//! Leaving: leases of idle agents are given up, so that any node may take them at once. An agent
//! with an open turn keeps its lease in this node's name; whoever finds the node gone goes on with
//! the turn.

use futures_util::future;
use planck_common::{AgentId, command::AgentState, reply::Refusal};

use super::close::AT_ONCE;
use crate::node::Node;

impl Node {
    /// Whether this node still takes anybody in.
    pub(crate) fn stays(&self) -> Result<(), Refusal> {
        if self.host().is_closed() {
            return Err(Refusal::unavailable(format!(
                "node {} is leaving",
                self.id()
            )));
        }
        if self.draining().is_cancelled() {
            return Err(Refusal::unavailable(format!(
                "node {} is draining",
                self.id()
            )));
        }
        if self.is_suspended() {
            return Err(Refusal::unavailable(format!(
                "node {} is suspended: it does not reach its cluster",
                self.id()
            )));
        }
        Ok(())
    }

    pub(crate) async fn release_idle(&self) {
        for some in self.host().agents(None).chunks(AT_ONCE) {
            future::join_all(some.iter().map(|agent| self.release_if_idle(agent))).await;
        }
    }

    async fn release_if_idle(&self, agent: &AgentId) {
        let Some(hosting) = self.host().hosting(agent) else {
            return;
        };
        if !self.is_quiet(agent).await {
            return;
        }
        self.host().drop_agent(agent);
        if let Err(error) = self
            .store()
            .release(&hosting.session.id, agent, hosting.epoch, false)
            .await
        {
            tracing::warn!(%agent, %error, "cannot release the lease; another node's sweep will find it");
        }
    }

    async fn is_quiet(&self, agent: &AgentId) -> bool {
        if self.host().is_at_rest(agent) {
            return true;
        }
        let info = self.host().info(agent).await;
        info.is_ok_and(|info| info.state == AgentState::Idle && info.queued == 0)
    }
}
