//! Builds the services of a node, runs them, and shuts them down.

pub(crate) mod assemble;
mod cluster_handle;
mod notifier;
mod vitals;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use planck_common::NodeId;
use tokio_util::sync::CancellationToken;

pub(crate) use assemble::{Additions, open_embedded};
pub use assemble::{
    AssemblyError, Inventory, ModelTrial, StoreTrial, default_model, look, nats, open,
    open_attended, open_on, prefix, sandbox, sqlite_options, take_answers, try_models, try_store,
};
pub use cluster_handle::Joining;

use self::{cluster_handle::ClusterHandle, notifier::NodeNotifier};
use crate::{bus::ServiceGuard, gateway, services::Services};

/// How long a node that leaves waits for its tasks to end.
const LEAVE: Duration = Duration::from_secs(10);

/// The pause before a loop of the node that panicked begins again.
const RESTART: Duration = Duration::from_secs(1);

/// A node that is built but not running yet.
pub struct Node {
    services: Arc<Services>,
    cluster: ClusterHandle,
    tools_have_network: bool,
    stop: CancellationToken,
}

/// A running node, which answers commands and takes over agents without a living host.
pub struct RunningNode {
    node: Arc<Node>,
    service: Box<dyn ServiceGuard>,
}

impl Node {
    /// Joins the cluster if there is one, and starts to answer commands, to sweep, and to look for
    /// sidecars.
    pub async fn run(self: Arc<Self>) -> Result<RunningNode, AssemblyError> {
        self.join().await?;
        let services = &self.services;
        let service = services
            .base
            .bus
            .serve(self.id(), gateway::answer(Arc::clone(services)))
            .await?;
        let (takeover, stop) = (Arc::clone(&services.takeover), self.stop.clone());
        let sweeping = move || Arc::clone(&takeover).keep_sweeping(stop.clone());
        self.services
            .base
            .tasks
            .spawn(restarted("the sweeps", sweeping));
        if services.base.view.is_alone() {
            services.sidecars.are_none();
        } else {
            let node = Arc::clone(&self);
            let looking = move || Arc::clone(&node).keep_looking_for_sidecars();
            self.services
                .base
                .tasks
                .spawn(restarted("the search for sidecars", looking));
        }
        let vitals = Arc::downgrade(&self);
        planck_telemetry::vitals::register(vitals);
        let info = services.placement.local().info();
        tracing::info!(node = %info.id, name = info.name, "the node is in service");
        Ok(RunningNode {
            node: self,
            service,
        })
    }

    async fn keep_looking_for_sidecars(self: Arc<Self>) {
        let changed = || {
            let host = self.services.base.host.clone();
            self.services
                .base
                .tasks
                .spawn(async move { host.tools_changed().await });
        };
        self.stop
            .run_until_cancelled(self.services.sidecars.keep_looking(changed))
            .await;
    }

    pub fn id(&self) -> &NodeId {
        self.services.base.view.id()
    }

    pub fn services(&self) -> &Services {
        &self.services
    }

    /// Returns whether the processes of tools have the network on this node.
    pub fn tools_have_network(&self) -> bool {
        self.tools_have_network
    }
}

/// Runs a loop of the node until it returns. If the loop panics, begins it again, because nothing
/// else does its work.
async fn restarted<F: Future<Output = ()>>(name: &str, mut begin: impl FnMut() -> F) {
    while AssertUnwindSafe(begin()).catch_unwind().await.is_err() {
        tracing::error!("{name} failed by a bug (a panic); they begin again");
        tokio::time::sleep(RESTART).await;
    }
}

impl RunningNode {
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Waits until this node must end immediately, because it is no longer in its cluster. Returns
    /// the reason after the node has dropped its agents.
    pub async fn must_end(&self) -> String {
        self.node.cluster.must_end().await
    }

    /// Waits until this node is asked to drain, and returns how long the drain may take.
    pub async fn must_drain(&self) -> Duration {
        self.node.services.takeover.drain_requested().await
    }

    /// Leaves the cluster. The node accepts no new work, and moves agents to other nodes for at
    /// most `patience`. Then, for at most 10 s, the node releases its remaining idle agents, so
    /// that other nodes can take them over, and waits for its tasks to end.
    pub async fn shut_down(self, patience: Duration) {
        let Self { node, service } = self;
        service.leave_queue().await;
        node.cluster.announce_leave();
        let services = &node.services;
        services.sessions.stop_waiting();
        services.takeover.drain(patience).await;
        node.stop.cancel();
        services.base.host.close();
        let ended = async {
            services.takeover.release_idle().await;
            services.base.host.shut_down().await;
            service.stop().await;
            services.base.tasks.close();
            services.base.tasks.wait().await;
        };
        if tokio::time::timeout(LEAVE, ended).await.is_err() {
            tracing::warn!("some work did not end in time; it ends with the process");
        }
        node.cluster.leave().await;
        let _ = services.base.bus.flush(Duration::from_secs(1)).await;
        services.base.store.close().await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn loop_that_panics_begins_again() {
        let begun = Cell::new(0);
        let begin = || {
            begun.set(begun.get() + 1);
            let number = begun.get();
            async move { assert!(number > 2, "a bug") }
        };
        restarted("the loop", begin).await;
        assert_eq!(begun.get(), 3);
    }
}
