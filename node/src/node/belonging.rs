//! A node's part in its cluster: it joins, heeds what the membership thread tells, and leaves.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use planck_common::{
    NodeId,
    command::{NodeInfo, NodeState},
    registry::{NodeRecord, NodeStanding, StoreRecord},
};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::timeout,
};

use super::{Node, teams::TeamWatch};
use crate::{
    bus::NatsOptions,
    cluster::{
        census::{Census, Known},
        heartbeat::Load,
        liveness::Liveness,
        placement::Candidate,
        registry::Registry,
        thread::{self, Fact, JoinError, Joined, Options},
    },
    config::Cluster as Times,
    permit::Permit,
    store::SessionStore,
    tools::Heart,
};

/// What a node needs to be in a cluster.
pub struct Joining {
    pub nats: NatsOptions,
    pub replicas: usize,
    pub times: Times,
    pub registry: Registry,
    /// Where the store is, without passwords.
    pub store_address: String,
    /// Tells the reapers that this node lives.
    pub heart: Heart,
}

/// A node's part in its cluster; of one that works alone, none.
pub(super) struct Belonging {
    joining: Option<Joining>,
    pub(super) census: Option<Arc<Census>>,
    pub(super) permit: Permit,
    pub(super) liveness: Arc<Liveness>,
    pub(super) teams: Option<TeamWatch>,
    joined: Mutex<Option<Joined>>,
    sweep_now: Notify,
    /// Why this node must end.
    ended: watch::Sender<Option<String>>,
    /// How long the drain that somebody asked for may take.
    drain: watch::Sender<Option<Duration>>,
}

impl Belonging {
    pub(super) fn new(
        joining: Option<Joining>,
        node: &NodeId,
        store: &Arc<dyn SessionStore>,
    ) -> Self {
        let census: Option<Arc<Census>> = joining.as_ref().map(|_| Arc::default());
        Self {
            liveness: Arc::new(Liveness::new(
                node.clone(),
                Arc::clone(store),
                census.clone(),
            )),
            census,
            permit: if joining.is_some() {
                Permit::withheld()
            } else {
                Permit::always()
            },
            teams: joining
                .as_ref()
                .map(|joining| TeamWatch::new(joining.registry.clone())),
            joining,
            joined: Mutex::new(None),
            sweep_now: Notify::new(),
            ended: watch::channel(None).0,
            drain: watch::channel(None).0,
        }
    }

    pub(super) fn sweep_now(&self) {
        self.sweep_now.notify_one();
    }

    /// How long after a dead node was last heard its sessions start no tool elsewhere.
    pub(super) fn tool_grace(&self) -> Option<Duration> {
        self.joining
            .as_ref()
            .map(|joining| joining.times.tool_grace.0)
    }

    fn with_joined(&self, tell: impl FnOnce(&Joined)) {
        if let Some(joined) = self
            .joined
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
        {
            tell(joined);
        }
    }
}

impl Node {
    /// Returns when this node may work.
    pub(super) async fn join(self: &Arc<Self>) -> Result<(), super::AssemblyError> {
        let (
            Some(Joining {
                nats,
                replicas,
                times,
                heart,
                store_address,
                ..
            }),
            Some(census),
        ) = (&self.belonging.joining, &self.belonging.census)
        else {
            return Ok(());
        };
        let of_load = Arc::downgrade(self);
        let options = Options {
            node: self.id.clone(),
            record: self.record(),
            nats: nats.clone(),
            replicas: *replicas,
            times: times.clone(),
            store: StoreRecord {
                id: self.store().id().await?,
                address: Some(store_address.clone()),
            },
            census: Arc::clone(census),
            permit: self.belonging.permit.clone(),
            heart: heart.clone(),
            load: Box::new(move || {
                of_load
                    .upgrade()
                    .map_or_else(Load::default, |node| node.load())
            }),
        };
        let (joined, facts) = thread::join(options).await.map_err(|error| match error {
            JoinError::Bus(error) => super::AssemblyError::Bus(error),
            error @ (JoinError::Registry(_)
            | JoinError::OtherTimes { .. }
            | JoinError::OtherStore { .. }
            | JoinError::TooLate
            | JoinError::Thread(_)) => super::AssemblyError::Join(error),
        })?;
        *self
            .belonging
            .joined
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(joined);
        let (node, stop) = (Arc::clone(self), self.stop.clone());
        self.tasks
            .spawn(async move { stop.run_until_cancelled(node.heed(facts)).await });
        let (node, stop) = (Arc::clone(self), self.stop.clone());
        self.tasks
            .spawn(async move { stop.run_until_cancelled(node.keep_watching()).await });
        Ok(())
    }

    /// How this node introduces itself.
    fn record(&self) -> NodeRecord {
        let NodeInfo {
            name,
            version,
            labels,
            capacity,
            workspaces,
            providers,
            started_at,
            ..
        } = self.info();
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
            times: self
                .belonging
                .joining
                .as_ref()
                .map(|joining| joining.times.shown())
                .unwrap_or_default(),
            verdict: None,
        }
    }

    fn load(&self) -> Load {
        let NodeInfo {
            agents, running, ..
        } = self.info();
        Load { agents, running }
    }

    async fn heed(self: Arc<Self>, mut facts: mpsc::Receiver<Fact>) {
        while let Some(fact) = facts.recv().await {
            match fact {
                Fact::PeerDied { node, quiet_since } => {
                    self.peer_died(node, quiet_since);
                    self.belonging.sweep_now();
                }
                Fact::PeerLeft(_) | Fact::Resumed => self.belonging.sweep_now(),
                Fact::Suspended => {}
                Fact::CheckLeases { asked_at } => {
                    if let Some(()) = self.check_leases().await {
                        self.belonging
                            .with_joined(|joined| joined.leases_checked(asked_at));
                    }
                }
                Fact::MustDie(why) => return self.die(why),
            }
        }
    }

    /// Drops the agents whose leases the store no longer has in this node's name; `None` if it does
    /// not say.
    async fn check_leases(&self) -> Option<()> {
        const PATIENCE: Duration = Duration::from_secs(2);
        let here = self.host.agents(None);
        let held = timeout(PATIENCE, self.store().held(&self.id)).await.ok()?;
        let held: BTreeSet<_> = match held {
            Ok(held) => held.into_iter().map(|stray| stray.agent).collect(),
            Err(error) => {
                tracing::debug!(%error, "the store does not say which leases are this node's");
                return None;
            }
        };
        for agent in here.into_iter().filter(|agent| !held.contains(agent)) {
            tracing::warn!(%agent, "another node holds the lease; the agent is dropped here");
            self.host.drop_agent(&agent);
        }
        Some(())
    }

    /// Nothing is written: others have taken up what ran here, or will.
    fn die(&self, why: String) {
        self.host.close();
        for agent in self.host.agents(None) {
            self.host.drop_agent(&agent);
        }
        self.belonging.ended.send_replace(Some(why));
    }

    /// Says why this node must end, when it must.
    pub(super) async fn must_end(&self) -> String {
        let mut ended = self.belonging.ended.subscribe();
        let why = ended.wait_for(Option::is_some).await.map(|why| why.clone());
        match why {
            Ok(Some(why)) => why,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Somebody asks this node to hand over what runs here, and to leave.
    pub(crate) fn ask_to_drain(&self, patience: Option<Duration>) {
        self.belonging
            .drain
            .send_replace(Some(patience.unwrap_or(self.settings.drain_timeout)));
    }

    pub(super) async fn must_drain(&self) -> Duration {
        let mut asked = self.belonging.drain.subscribe();
        match asked
            .wait_for(Option::is_some)
            .await
            .map(|patience| *patience)
        {
            Ok(Some(patience)) => patience,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// No new work is to come here.
    pub(super) fn announce_leave(&self) {
        self.belonging.with_joined(Joined::drain);
    }

    /// Tells the cluster that this node is gone for good.
    pub(super) async fn leave_cluster(&self) {
        let joined = self
            .belonging
            .joined
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(joined) = joined {
            joined.leave().await;
        }
    }

    pub(crate) fn liveness(&self) -> &Liveness {
        &self.belonging.liveness
    }

    /// Whether this node may begin anything.
    pub(crate) fn is_suspended(&self) -> bool {
        !self.belonging.permit.is_given()
    }

    /// Returns after a while, or when a peer is gone and what it did must be looked for.
    pub(crate) async fn until_sweep(&self, pause: Duration) {
        let _either = timeout(pause, self.belonging.sweep_now.notified()).await;
    }

    /// The other nodes of the cluster, as placement sees them.
    pub(crate) fn other_candidates(&self) -> Vec<Candidate> {
        let known = self
            .belonging
            .census
            .iter()
            .flat_map(|census| census.known());
        known
            .filter(|known| known.node != self.id)
            .filter_map(candidate)
            .collect()
    }

    /// An agent is placed on a peer.
    pub(crate) fn placed(&self, node: &NodeId) {
        if let Some(census) = &self.belonging.census {
            census.placed(node);
        }
    }

    /// The nodes of the cluster, this one first.
    pub(crate) fn nodes(&self) -> Vec<NodeInfo> {
        let known = self
            .belonging
            .census
            .iter()
            .flat_map(|census| census.known());
        let others = known.filter(|known| known.node != self.id).filter_map(row);
        std::iter::once(self.info()).chain(others).collect()
    }
}

/// As it is listed; `None` of a node that only its heartbeats tell of.
fn row(
    Known {
        node,
        record,
        heartbeat,
        state,
        silent,
        ..
    }: Known,
) -> Option<NodeInfo> {
    let NodeRecord {
        name,
        version,
        labels,
        capacity,
        workspaces,
        providers,
        started_at,
        ..
    } = record?;
    let is_gone = matches!(state, NodeState::Left | NodeState::Dead);
    let load = heartbeat
        .filter(|_| !is_gone)
        .map_or((0, 0), |beat| (beat.agents, beat.running));
    Some(NodeInfo {
        id: node,
        name,
        state,
        version,
        labels,
        capacity,
        agents: load.0,
        running: load.1,
        workspaces,
        providers,
        started_at,
        silent_ms: u64::try_from(silent.as_millis()).unwrap_or(u64::MAX),
    })
}

/// `None` of a node that is gone, or that only its heartbeats tell of.
fn candidate(
    Known {
        node,
        record,
        state,
        agents,
        ..
    }: Known,
) -> Option<Candidate> {
    let takes = match state {
        NodeState::Alive | NodeState::Suspect => true,
        NodeState::Suspended | NodeState::Draining => false,
        NodeState::Left | NodeState::Dead => return None,
    };
    let NodeRecord {
        labels,
        capacity,
        workspaces,
        providers,
        ..
    } = record?;
    Some(Candidate {
        id: node,
        labels,
        workspaces,
        providers,
        capacity,
        agents,
        takes,
    })
}
