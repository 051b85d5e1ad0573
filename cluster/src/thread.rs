//! The membership of this node, on its own thread with its own NATS connection, so that a busy node
//! still sends its heartbeats in time. The thread passes inputs to the pure state machine and
//! performs its effects.

mod member;
mod perform;
mod watched;

use std::{io, sync::Arc, thread, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};

use planck_bus::{Bus, BusError, NatsBus, NatsOptions};
use planck_common::{
    NodeId,
    command::NodeVerb,
    registry::{NodeRecord, StoreRecord},
    subject::Address,
};

use self::member::MembershipThread;
use crate::{
    census::Census,
    heartbeat::NodeLoad,
    moment::Moment,
    permit::Permit,
    registry::{ClusterRegistry, RegistryError},
    times::ClusterTimes,
};

/// How long a node may take to join the cluster. NATS servers that just started elect a leader
/// first.
const JOINING: Duration = Duration::from_secs(45);
/// The time between two tries to open the registry.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a leaving node waits for the membership thread to record that it left.
const LEAVING: Duration = Duration::from_secs(3);
/// The number of nodes up to which each of them reads all records every `cluster.sweep`.
pub(crate) const SWEEPERS: usize = 50;
/// The maximum number of facts that wait to be read.
const FACTS: usize = 4_096;
/// The maximum number of orders that wait for the thread.
const ORDERS: usize = 256;

/// What a node needs to join its cluster.
pub struct JoinOptions {
    pub node: NodeId,
    /// The record that this node writes to the registry.
    pub record: NodeRecord,
    /// How membership reaches the other nodes.
    pub link: MemberLink,
    pub times: ClusterTimes,
    /// This node's store, which must be the one that the nodes of the cluster share.
    pub store: StoreRecord,
    /// The census that the thread fills.
    pub census: Arc<Census>,
    /// The permit that the thread renews.
    pub permit: Permit,
    /// Tells the reapers of tools that this node runs. The thread calls it every [`REAPER_BEAT`], so
    /// that the tools end if the thread hangs.
    ///
    /// [`REAPER_BEAT`]: crate::times::REAPER_BEAT
    pub beat_reapers: Box<dyn Fn() + Send>,
    /// Makes the reapers kill all tools.
    pub kill_tools: Box<dyn Fn() + Send>,
    /// The function that returns the current load. The thread calls it for each heartbeat.
    pub load: Box<dyn Fn() -> NodeLoad + Send>,
}

/// How membership reaches the other nodes.
#[derive(Clone)]
pub enum MemberLink {
    /// Over a connection to NATS that only the membership thread uses. The number is that of the NATS
    /// servers that hold each record.
    Nats(Box<NatsOptions>, usize),
    /// Over this bus, in a task of the caller's runtime instead of a thread. It is for a simulation,
    /// which runs all nodes on one thread.
    Shared {
        bus: Arc<dyn Bus>,
        registry: ClusterRegistry,
    },
}

impl MemberLink {
    async fn connect(&self) -> Result<(Arc<dyn Bus>, ClusterRegistry), BusError> {
        match self {
            Self::Nats(options, replicas) => {
                let bus = NatsBus::connect(NatsOptions {
                    name: format!("{} membership", options.name),
                    ..(**options).clone()
                })
                .await?;
                let registry = ClusterRegistry::new(Arc::new(bus.records(*replicas)));
                Ok((Arc::new(bus), registry))
            }
            Self::Shared { bus, registry } => Ok((Arc::clone(bus), registry.clone())),
        }
    }
}

/// Why a node could not join its cluster.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(
        "this node's times are not those of node {node}, which is alive: {what}; give all nodes of a cluster the same `[cluster]`, and to change it stop all of them first"
    )]
    OtherTimes { node: String, what: String },
    #[error(
        "this node's store is {mine}, and node {node}, which is there, shares store {theirs} with its cluster; give all nodes the same `store.url`, give this one a cluster of its own with `nats.subject_prefix`, or stop all nodes of that cluster first: the next node takes it over with its own store"
    )]
    OtherStore {
        mine: Box<StoreRecord>,
        theirs: Box<StoreRecord>,
        node: String,
    },
    #[error(
        "this node is not in the cluster after {JOINING:?}: its heartbeats do not come back, or the registry takes no proof of it"
    )]
    TooLate,
    #[error("cannot start the membership thread: {0}")]
    Thread(#[from] io::Error),
}

/// What the membership thread reports to the rest of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterFact {
    /// A node died. Its agents need another host, and its tools may still run for a while.
    PeerDied(NodeId),
    /// A node ended its work and left.
    PeerLeft(NodeId),
    /// Stop the agents on this node whose leases other nodes took. If the store answered, then call
    /// [`Joined::leases_checked`].
    CheckLeases { asked_at: Moment },
    /// This node was declared dead, or may not be in this cluster. Stop everything and end the
    /// process.
    MustDie(String),
}

/// An order of the node to the membership thread.
enum MemberOrder {
    Drain,
    Leave,
    LeasesChecked { asked_at: Moment },
}

/// A node's place in the cluster. If a `Joined` is dropped without [`leave`](Self::leave), the node
/// sends no more heartbeats and its peers declare it dead.
pub struct Joined {
    orders: mpsc::Sender<MemberOrder>,
    ended: oneshot::Receiver<()>,
}

impl Joined {
    /// Announces that this node takes no new work.
    pub fn drain(&self) {
        self.order(MemberOrder::Drain);
    }

    /// Reports that the store answered, and that agents whose leases other nodes took were stopped.
    pub fn leases_checked(&self, asked_at: Moment) {
        self.order(MemberOrder::LeasesChecked { asked_at });
    }

    fn order(&self, order: MemberOrder) {
        if let Err(error) = self.orders.try_send(order) {
            tracing::debug!(%error, "the membership thread takes no orders; it has ended");
        }
    }

    /// Makes the membership thread record that this node left for good. Waits until the thread has
    /// ended, but at most for `LEAVING`.
    pub async fn leave(self) {
        self.order(MemberOrder::Leave);
        if timeout(LEAVING, self.ended).await.is_err() {
            tracing::warn!(
                "the registry does not take this node's leave; its peers will find it dead"
            );
        }
    }
}

/// Joins the cluster. Returns when the node may work, which is when its heartbeat came back and its
/// first proof was accepted.
pub async fn join(
    options: JoinOptions,
) -> Result<(Joined, mpsc::Receiver<ClusterFact>), JoinError> {
    let (orders, ordered) = mpsc::channel(ORDERS);
    let (facts, told) = mpsc::channel(FACTS);
    let (ready, joined) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let is_simulated = matches!(options.link, MemberLink::Shared { .. });
    let member = async move {
        live(options, ordered, facts, ready).await;
        let _nobody_waits = end.send(());
    };
    if is_simulated {
        tokio::spawn(member);
    } else {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        thread::Builder::new()
            .name("membership".into())
            .spawn(move || runtime.block_on(member))?;
    }
    joined.await.unwrap_or(Err(JoinError::TooLate))?;
    Ok((Joined { orders, ended }, told))
}

type ReadySender = oneshot::Sender<Result<(), JoinError>>;

async fn live(
    options: JoinOptions,
    orders: mpsc::Receiver<MemberOrder>,
    facts: mpsc::Sender<ClusterFact>,
    ready: ReadySender,
) {
    let deadline = Instant::now() + JOINING;
    match MembershipThread::enter(options, facts, deadline).await {
        Ok((member, hints)) => member.run(hints, orders, ready, deadline).await,
        Err(error) => {
            let _nobody_waits = ready.send(Err(error));
        }
    }
}

/// Opens the registry, checks that the nodes of the cluster share `store`, and returns the
/// registry's age. Repeats attempts that fail for a passing reason until `deadline`.
async fn open(
    registry: &ClusterRegistry,
    store: &StoreRecord,
    deadline: Instant,
) -> Result<Duration, RegistryError> {
    loop {
        let opened = async {
            let age = registry.open().await?;
            registry.check_store(store).await?;
            Ok(age)
        };
        match opened.await {
            Err(error @ RegistryError::Records(_))
                if error.is_passing() && Instant::now() + AGAIN < deadline =>
            {
                tracing::debug!(%error, "the registry cannot be opened yet");
                tokio::time::sleep(AGAIN).await;
            }
            opened => return opened,
        }
    }
}

// What the nodes of a cluster must agree on: its store, and its times. A node with other times
// would declare living nodes dead, or start tools too early.

/// How long a node may take to answer the request that shows that it is alive.
const ANSWERED: Duration = Duration::from_secs(2);

/// Fails if this node's times differ from those of a living node. Succeeds without a comparison if
/// the registry does not answer now.
async fn check(
    mine: &NodeRecord,
    registry: &ClusterRegistry,
    bus: &dyn Bus,
) -> Result<(), JoinError> {
    let records = match registry.nodes().await {
        Ok(records) => records,
        Err(error) if error.is_passing() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    for (node, found) in records {
        if let Some(what) = difference(mine, &found.record)
            && lives(&node, bus).await
        {
            return Err(JoinError::OtherTimes {
                node: found.record.name,
                what,
            });
        }
    }
    Ok(())
}

/// Records this node's store as the one that the cluster shares, in place of `theirs`. Fails while
/// a node that has neither left nor died is connected, even if that node does not answer, because
/// it may be frozen and later continue with the store `theirs`.
async fn take_over(
    theirs: Box<StoreRecord>,
    mine: &StoreRecord,
    registry: &ClusterRegistry,
    bus: &dyn Bus,
) -> Result<(), JoinError> {
    for (node, found) in registry.nodes().await? {
        if !found.record.state.is_final() && is_connected(&node, bus).await {
            return Err(JoinError::OtherStore {
                mine: Box::new(mine.clone()),
                theirs,
                node: found.record.name,
            });
        }
    }
    registry.replace_store(&theirs, mine).await?;
    tracing::warn!(
        "this node takes the cluster over with its store {mine}: no node is there that shares the former store, {theirs}"
    );
    Ok(())
}

/// Returns whether a node answers a request. Its record is not enough, because after a crash of all
/// nodes the records of dead ones still say `alive`.
async fn lives(node: &NodeId, bus: &dyn Bus) -> bool {
    ask(node, bus).await.is_ok()
}

async fn is_connected(node: &NodeId, bus: &dyn Bus) -> bool {
    !matches!(ask(node, bus).await, Err(BusError::NoResponders(_)))
}

async fn ask(node: &NodeId, bus: &dyn Bus) -> Result<Bytes, BusError> {
    bus.request(
        &Address::node(node, NodeVerb::Info.name()),
        "{}".into(),
        ANSWERED,
    )
    .await
}

/// Returns which times differ between two nodes, or `None` if none differ or the other node left or
/// died.
fn difference(mine: &NodeRecord, theirs: &NodeRecord) -> Option<String> {
    if theirs.state.is_final() {
        return None;
    }
    let other = |(key, mine): (&String, &String)| {
        let theirs = theirs.times.get(key).filter(|theirs| *theirs != mine)?;
        Some(format!("cluster.{key} is {mine} here and {theirs} there"))
    };
    let differences: Vec<String> = mine.times.iter().filter_map(other).collect();
    (!differences.is_empty()).then(|| differences.join(", "))
}
