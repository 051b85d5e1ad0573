//! A node's membership in its cluster: joining, reacting to what the membership thread reports, and
//! leaving.

#[cfg(test)]
mod tests;

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::FutureExt as _;
use planck_common::{
    NodeId,
    command::NodeInfo,
    registry::{NodeRecord, NodeStanding, StoreRecord},
};
use tokio::sync::{mpsc, watch};

use super::{AssemblyError, Node, restarted};
use crate::config::Cluster;
use planck_cluster::{
    heartbeat::NodeLoad,
    registry::ClusterRegistry,
    thread::{self, ClusterFact, JoinError, JoinOptions, Joined, MemberLink},
};
use planck_toolbox::ReaperHeartbeat;

/// The parts for joining a cluster.
pub struct Joining {
    pub link: MemberLink,
    pub cluster: Cluster,
    pub registry: ClusterRegistry,
    /// The address of the store, without passwords.
    pub store_address: String,
    pub reapers: Arc<dyn Reapers>,
}

/// The reapers of a node's tools.
pub trait Reapers: Send + Sync {
    /// Tells the reapers that the node runs.
    fn beat(&self);

    /// Makes the reapers kill all tools.
    fn cut(&self);
}

impl Reapers for ReaperHeartbeat {
    fn beat(&self) {
        self.beat();
    }

    fn cut(&self) {
        self.cut();
    }
}

/// A handle to the membership thread. Without a cluster there is no such thread.
pub(super) struct ClusterHandle {
    joining: Option<Joining>,
    joined: Mutex<Option<Joined>>,
    /// The reason why this node must end, or `None` while there is none.
    ended: watch::Sender<Option<String>>,
}

impl ClusterHandle {
    pub(super) fn new(joining: Option<Joining>) -> Self {
        Self {
            joining,
            joined: Mutex::new(None),
            ended: watch::channel(None).0,
        }
    }

    /// Waits until this node must end, and returns the reason.
    pub(super) async fn must_end(&self) -> String {
        let mut ended = self.ended.subscribe();
        let why = ended.wait_for(Option::is_some).await.map(|why| why.clone());
        match why {
            Ok(Some(why)) => why,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Announces to the cluster that this node no longer accepts new work.
    pub(super) fn announce_leave(&self) {
        if let Some(joined) = self.joined().as_ref() {
            joined.drain();
        }
    }

    /// Announces to the cluster that this node has left.
    pub(super) async fn leave(&self) {
        let joined = self.joined().take();
        if let Some(joined) = joined {
            joined.leave().await;
        }
    }

    fn joined(&self) -> MutexGuard<'_, Option<Joined>> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    /// Joins the cluster, and starts to react to its events. Returns once this node may begin work,
    /// or at once if there is no cluster.
    pub(super) async fn join(self: &Arc<Self>) -> Result<(), AssemblyError> {
        let (Some(joining), Some(census)) =
            (&self.cluster.joining, self.services.handles.view.census())
        else {
            return Ok(());
        };
        let services = Arc::downgrade(&self.services);
        let [reapers, tools] = [Arc::clone(&joining.reapers), Arc::clone(&joining.reapers)];
        let options = JoinOptions {
            node: self.services.handles.view.id().clone(),
            record: self.record(joining),
            link: joining.link.clone(),
            times: joining.cluster.times(),
            store: StoreRecord {
                id: self.services.handles.store.id().await?,
                address: Some(joining.store_address.clone()),
            },
            census: Arc::clone(census),
            permit: self.services.handles.view.permit().clone(),
            beat_reapers: Box::new(move || reapers.beat()),
            kill_tools: Box::new(move || tools.cut()),
            load: Box::new(move || {
                let services = services.upgrade();
                services.map_or_else(NodeLoad::default, |services| {
                    services.placement.local().load()
                })
            }),
        };
        let (joined, facts) = thread::join(options).await.map_err(|error| match error {
            JoinError::Bus(error) => AssemblyError::Bus(error),
            error @ (JoinError::Registry(_)
            | JoinError::OtherTimes { .. }
            | JoinError::OtherStore { .. }
            | JoinError::TooLate
            | JoinError::Thread(_)) => AssemblyError::Join(error),
        })?;
        *self.cluster.joined() = Some(joined);
        let (node, stop) = (Arc::clone(self), self.stop.clone());
        self.services
            .handles
            .tasks
            .spawn(async move { stop.run_until_cancelled(node.react(facts)).await });
        let (teams, stop) = (Arc::clone(&self.services.teams), self.stop.clone());
        self.services.handles.tasks.spawn(async move {
            let watching = restarted("the checks of teams", || Arc::clone(&teams).keep_watching());
            stop.run_until_cancelled(watching).await
        });
        Ok(())
    }

    /// Returns the record that this node writes to the registry when it joins.
    fn record(&self, joining: &Joining) -> NodeRecord {
        let NodeInfo {
            name,
            version,
            labels,
            capacity,
            workspaces,
            providers,
            started_at,
            ..
        } = self.services.placement.local().info();
        NodeRecord {
            name,
            state: NodeStanding::Alive,
            version,
            labels,
            capacity,
            workspaces,
            providers,
            started_at,
            nonce: NodeId::mint().to_string(),
            times: joining.cluster.shown(),
            verdict: None,
        }
    }

    /// Applies the facts that the membership thread reports until this node must end. Then drops
    /// all agents and says why the node must end. After a panic nothing would apply the facts any
    /// more, so the node must end.
    async fn react(self: Arc<Self>, facts: mpsc::Receiver<ClusterFact>) {
        let why = or_panicked(self.apply(facts)).await;
        self.services.takeover.drop_all();
        self.cluster.ended.send_replace(Some(why));
    }

    /// Applies the facts to the services. Returns why this node must end. If the membership thread
    /// ends without a reason, for example because of a panic, the node must end too, because
    /// nothing renews its permit or sends its heartbeats any more.
    async fn apply(&self, mut facts: mpsc::Receiver<ClusterFact>) -> String {
        while let Some(fact) = facts.recv().await {
            match fact {
                ClusterFact::PeerDied(node) => {
                    self.services.teams.node_died(node);
                    self.services.handles.view.request_sweep();
                }
                ClusterFact::PeerLeft(_) => self.services.handles.view.request_sweep(),
                ClusterFact::CheckLeases { asked_at } => {
                    if self.services.takeover.drop_superseded().await
                        && let Some(joined) = self.cluster.joined().as_ref()
                    {
                        joined.leases_checked(asked_at);
                    }
                }
                ClusterFact::MustDie(why) => return why,
            }
        }
        "the membership thread ended".into()
    }
}

/// Returns why the node must end. A panic is a reason too.
async fn or_panicked(apply: impl Future<Output = String>) -> String {
    let why = AssertUnwindSafe(apply).catch_unwind().await;
    why.unwrap_or_else(|_| {
        tracing::error!("the node ends: it failed by a bug (a panic)");
        "a part of the node failed by a bug (a panic); its log has it".into()
    })
}
