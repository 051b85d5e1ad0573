//! Builds the services of a node, runs them, and shuts them down. Passes notifications from the
//! agents to the services, and shows probes and metrics the state of the node.

pub(crate) mod assemble;
mod cluster_handle;
pub mod mcp;

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use cluster_handle::ClusterHandle;
use futures_util::FutureExt as _;
use mcp::McpServers;
use planck_common::{AgentId, InputId, NodeId, SessionId};
use planck_telemetry::vitals::{Gauges, Vitals};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::{
    actor::{ActorIdentity, Hosting, PeerNotifier},
    bus::ServiceGuard,
    gateway,
    services::Services,
};

pub use assemble::{
    AssemblyError, Inventory, ModelTrial, StoreTrial, default_model, look, nats_options, open,
    open_attended, open_on, prefix, sandbox, sqlite_options, take_answers, try_models, try_store,
};
pub use cluster_handle::{Joining, Reapers};

pub(crate) use assemble::{Additions, open_embedded};

/// How long a node that leaves waits for its tasks to end.
const LEAVE: Duration = Duration::from_secs(10);

/// The pause before a loop of the node that panicked begins again.
const RESTART: Duration = Duration::from_secs(1);

/// A node that is built but not running yet.
pub struct Node {
    services: Arc<Services>,
    cluster: ClusterHandle,
    mcp: McpServers,
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
            .handles
            .bus
            .serve(self.id(), gateway::answer(Arc::clone(services)))
            .await?;
        let (takeover, stop) = (Arc::clone(&services.takeover), self.stop.clone());
        let sweeping = move || Arc::clone(&takeover).keep_sweeping(stop.clone());
        self.services
            .handles
            .tasks
            .spawn(restarted("the sweeps", sweeping));
        if services.handles.view.is_alone() {
            services.sidecars.are_none();
        } else {
            let node = Arc::clone(&self);
            let looking = move || Arc::clone(&node).keep_looking_for_sidecars();
            self.services
                .handles
                .tasks
                .spawn(restarted("the search for sidecars", looking));
        }
        self.keep_mcp_servers();
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
        let sidecars = &self.services.sidecars;
        self.stop
            .run_until_cancelled(sidecars.keep_looking(self.tools_changed()))
            .await;
    }

    fn keep_mcp_servers(&self) {
        let changed = self.tools_changed();
        for task in self.mcp.keep_in_use(&self.services, changed, &self.stop) {
            self.services.handles.tasks.spawn(task);
        }
    }

    /// Returns what tells the agents of this node that the tools of sidecars have changed.
    fn tools_changed(&self) -> impl Fn() + Send + Sync + Clone + use<> {
        let handles = &self.services.handles;
        let (host, tasks) = (handles.host.clone(), handles.tasks.clone());
        move || {
            let host = host.clone();
            tasks.spawn(async move { host.tools_changed().await });
        }
    }

    pub fn id(&self) -> &NodeId {
        self.services.handles.view.id()
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
        services.handles.host.close();
        let until = Instant::now() + LEAVE;
        let stopped = timeout_at(until, async {
            services.takeover.release_idle().await;
            services.handles.host.shut_down().await;
        });
        let is_stopped = stopped.await.is_ok();
        // A node that claims a team asks each living node to stop the team's members, and delays
        // tools if there is no answer. So this node answers until it has left.
        node.cluster.leave().await;
        let ended = timeout_at(until, async {
            service.stop().await;
            services.handles.tasks.close();
            services.handles.tasks.wait().await;
        });
        if ended.await.is_err() || !is_stopped {
            tracing::warn!("some work did not end in time; it ends with the process");
        }
        let _ = services.handles.bus.flush(Duration::from_secs(1)).await;
        services.handles.store.close().await;
    }
}

struct NodeNotifier(Weak<Services>);

impl PeerNotifier for NodeNotifier {
    fn settled(&self, identity: &ActorIdentity, inputs: Vec<(InputId, Option<AgentId>)>) {
        let Some(services) = self.0.upgrade() else {
            return;
        };
        services.sessions.some_work_ended(&identity.session.id);
        for (input, asker) in inputs {
            services.sessions.waiters().settle(&input);
            if let Some(asker) = asker.filter(|asker| !services.handles.host.has(asker)) {
                let (session, sessions) =
                    (identity.session.id.clone(), Arc::clone(&services.sessions));
                services
                    .handles
                    .tasks
                    .spawn(async move { sessions.tell_answered(&session, &asker, input).await });
            }
        }
    }

    fn wake(&self, identity: &ActorIdentity, agents: Vec<AgentId>) {
        let Some(services) = self.0.upgrade() else {
            return;
        };
        let (session, sessions) = (identity.session.id.clone(), Arc::clone(&services.sessions));
        services.handles.tasks.spawn(async move {
            for agent in agents {
                sessions.wake(&session, &agent).await;
            }
        });
    }

    fn started(&self, hosting: &Hosting) {
        if let Some(services) = self.0.upgrade() {
            services.teams.agent_started(hosting);
        }
    }

    fn gave_up(&self, session: &SessionId) {
        if let Some(services) = self.0.upgrade() {
            services.takeover.look_for_exits(session);
        }
    }

    fn gone(&self, hosting: &Hosting) {
        if let Some(services) = self.0.upgrade() {
            services.teams.agent_gone(hosting);
        }
    }
}

#[async_trait]
impl Vitals for Node {
    fn gauges(&self) -> Gauges {
        let here = self.services.handles.host.counts();
        Gauges {
            sessions: [here.active, here.sessions.saturating_sub(here.active)].map(count),
            agents: [
                here.running,
                here.live.saturating_sub(here.running),
                here.parked,
            ]
            .map(count),
            inbox: count(here.queued),
            heartbeat_age: self.services.handles.view.heartbeat_age(),
        }
    }

    async fn unready(&self, patience: Duration) -> Vec<String> {
        let mut causes = Vec::new();
        if !self.services.handles.bus.is_connected() {
            causes.push("NATS is away".to_owned());
        }
        if self.services.handles.view.is_suspended() {
            causes.push(
                "the node is suspended: its heartbeats do not come back, or it cannot write to the registry"
                    .into(),
            );
        }
        if self.services.handles.view.draining().is_cancelled() || self.stop.is_cancelled() {
            causes.push("the node is draining".into());
        }
        match timeout(patience, self.services.handles.store.id()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, "the store is not ready");
                causes.push("the session store is away".into());
            }
            Err(_) => causes.push(format!(
                "the session store does not answer within {} ms",
                patience.as_millis()
            )),
        }
        causes
    }

    async fn turns(&self, within: Duration) -> bool {
        self.services.handles.host.turns(within).await
    }
}

fn count(of: usize) -> u64 {
    u64::try_from(of).unwrap_or(u64::MAX)
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
