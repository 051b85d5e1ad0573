//! A node's view of its cluster: which nodes it knows, which of them are alive, and whether it may
//! begin work itself. All services read the view, which sends no requests to other nodes.

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use planck_common::{NodeId, command::NodeInfo};
use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{census::Census, liveness::Liveness, moment::Moment, permit::Permit};
use planck_store::SessionStore;

/// A node's view of its cluster. Without a cluster, the view contains only the node itself.
pub struct ClusterView {
    node: NodeId,
    /// Whether this node works without NATS, and so cannot reach any other process.
    is_alone: bool,
    census: Option<Arc<Census>>,
    liveness: Arc<Liveness>,
    permit: Permit,
    tool_grace: Duration,
    sweep: Notify,
}

impl ClusterView {
    /// Returns the view of a node in a cluster. After the last heartbeat of a dead node, other
    /// nodes start no tool of its sessions for `tool_grace`.
    pub fn of_member(node: NodeId, store: Arc<dyn SessionStore>, tool_grace: Duration) -> Self {
        let census = Some(Arc::<Census>::default());
        Self::new(node, store, census, Permit::withheld(), tool_grace, false)
    }

    /// Returns the view of a node without a cluster. Unless `is_alone` is set, the node has a bus
    /// to other processes.
    pub fn of_single(node: NodeId, store: Arc<dyn SessionStore>, is_alone: bool) -> Self {
        Self::new(
            node,
            store,
            None,
            Permit::always(),
            Duration::ZERO,
            is_alone,
        )
    }

    fn new(
        node: NodeId,
        store: Arc<dyn SessionStore>,
        census: Option<Arc<Census>>,
        permit: Permit,
        tool_grace: Duration,
        is_alone: bool,
    ) -> Self {
        Self {
            liveness: Arc::new(Liveness::new(node.clone(), store, census.clone())),
            node,
            is_alone,
            census,
            permit,
            tool_grace,
            sweep: Notify::new(),
        }
    }

    /// Returns the id of this node.
    pub fn id(&self) -> &NodeId {
        &self.node
    }

    /// Returns whether this node works without NATS, and so cannot reach any other process.
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Returns the nodes that the membership thread knows, or `None` without a cluster.
    pub fn census(&self) -> Option<&Arc<Census>> {
        self.census.as_ref()
    }

    /// Returns the source of which nodes are alive, for callers that need nothing else of the view.
    pub fn liveness(&self) -> &Arc<Liveness> {
        &self.liveness
    }

    /// Returns the permit without which nothing new may begin on this node.
    pub fn permit(&self) -> &Permit {
        &self.permit
    }

    /// Returns a token that is cancelled when this node begins to hand its agents over.
    pub fn draining(&self) -> &CancellationToken {
        self.permit.draining()
    }

    /// Returns whether this node may not begin new work, because it does not reach its cluster, has
    /// not joined it yet or was declared dead.
    pub fn is_suspended(&self) -> bool {
        !self.permit.is_given()
    }

    /// Returns whether a node is alive. A node counts as alive if the store cannot be read, and in
    /// a cluster also if nothing is known about it.
    pub async fn is_alive(&self, node: &NodeId) -> bool {
        self.liveness.is_alive(node).await
    }

    /// Returns whether the registry says that a node left or died.
    pub fn is_gone(&self, node: &NodeId) -> bool {
        self.census
            .as_ref()
            .is_some_and(|census| census.is_gone(node) == Some(true))
    }

    /// Returns the time since this node last received its own heartbeat. Returns zero before the
    /// first one, and without a cluster.
    pub fn heartbeat_age(&self) -> Duration {
        let age = self
            .census
            .as_ref()
            .and_then(|census| census.silence(&self.node));
        age.unwrap_or_default()
    }

    /// Returns from when tools may start in place of those of a dead node, or `None` if the census
    /// does not know of the node's death.
    pub fn tools_from(&self, dead: &NodeId) -> Option<Moment> {
        let quiet_since = self.census.as_ref()?.quiet_since(dead)?;
        Some(quiet_since + self.tool_grace)
    }

    /// Returns how long tools may still run on a node that no longer answers.
    pub fn tool_grace(&self) -> Duration {
        self.tool_grace
    }

    /// Returns the other nodes as candidates for placement.
    pub fn other_candidates(&self) -> Vec<NodeInfo> {
        self.others(Census::candidates)
    }

    /// Returns the entries of the other nodes in the list of nodes.
    pub fn other_nodes(&self) -> Vec<NodeInfo> {
        self.others(Census::nodes)
    }

    /// Adds one to the number of agents on another node, because this node asks that node to host
    /// an agent. The load that the node tells next replaces this count.
    pub fn placed(&self, node: &NodeId) {
        if let Some(census) = &self.census {
            census.placed(node);
        }
    }

    /// Returns the other nodes whose load must be asked for, because this node does not watch them
    /// and they told none a moment ago.
    pub fn of_unknown_load(&self) -> Vec<NodeId> {
        let census = self.census.as_deref();
        let mut nodes = census.map(Census::of_unknown_load).unwrap_or_default();
        nodes.retain(|node| *node != self.node);
        nodes
    }

    /// Stores what a node answered when it was asked for its load.
    pub fn answered(&self, info: &NodeInfo) {
        if let Some(census) = &self.census {
            census.answered(info);
        }
    }

    /// Requests a sweep, because an agent may need a host after a change of the cluster.
    pub fn request_sweep(&self) {
        self.sweep.notify_one();
    }

    /// Waits until a sweep is requested or the permit returns, but at most for `pause`. Inputs that
    /// arrived while this node had no permit are still unread, and the sweep finds them.
    pub async fn until_sweep(&self, pause: Duration) {
        tokio::select! {
            biased;
            () = self.sweep.notified() => {}
            () = self.permit.returned() => {}
            () = sleep(pause) => {}
        }
    }

    fn others(&self, list: impl Fn(&Census) -> Vec<NodeInfo>) -> Vec<NodeInfo> {
        let mut nodes = self.census.as_deref().map(list).unwrap_or_default();
        nodes.retain(|node| node.id != self.node);
        nodes
    }
}
