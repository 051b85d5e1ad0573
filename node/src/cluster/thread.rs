//! The membership of this node, on a thread of its own with a connection of its own: however busy
//! the rest of the node is, it is heard, and hears. What happens goes to the pure machine, and what
//! that decides is performed.

mod act;
mod agreement;
mod member;
mod perform;

use std::{io, sync::Arc, thread, time::Duration};

use planck_common::{
    NodeId,
    registry::{NodeRecord, StoreRecord},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};

use self::member::Member;
use super::{
    census::Census,
    heartbeat::Load,
    moment::Moment,
    registry::{Registry, RegistryError},
};
use crate::{
    bus::{BusError, NatsOptions},
    config::Cluster as Times,
    permit::Permit,
    tools::process::heartbeat::ReaperHeartbeat,
};

/// How long a node may take until it is in the cluster: a cluster of servers that just started
/// elects a leader first.
const JOINING: Duration = Duration::from_secs(45);
/// Between two tries to open the registry.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a node that leaves tries to say so.
const LEAVING: Duration = Duration::from_secs(3);
/// Facts nobody has read yet.
const FACTS: usize = 4_096;
/// Orders the thread has not taken yet.
const ORDERS: usize = 256;

/// Who joins, and how.
pub struct Options {
    pub node: NodeId,
    pub record: NodeRecord,
    pub nats: NatsOptions,
    pub replicas: usize,
    pub times: Times,
    /// The store all nodes of the cluster share.
    pub store: StoreRecord,
    pub census: Arc<Census>,
    pub permit: Permit,
    pub heartbeat: ReaperHeartbeat,
    /// Asked for each heartbeat.
    pub load: Box<dyn Fn() -> Load + Send>,
}

/// Why a node is not in the cluster.
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

/// What the rest of the node must know or do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    PeerDied {
        node: NodeId,
        /// From then on nobody can have heard it.
        quiet_since: Moment,
    },
    PeerLeft(NodeId),
    Suspended,
    Resumed,
    /// Stop what runs here and is no longer this node's by the store's word; then say so with
    /// [`Joined::leases_checked`].
    CheckLeases {
        asked_at: Moment,
    },
    /// This node was convicted, or its place was taken: everything is stopped and the process ends.
    MustDie(String),
}

/// What the node tells the thread.
enum Order {
    Drain,
    Leave,
    LeasesChecked { asked_at: Moment },
}

/// A node's place in the cluster. Dropped without [`leave`](Self::leave), the node just falls
/// silent.
pub struct Joined {
    orders: mpsc::Sender<Order>,
    ended: oneshot::Receiver<()>,
}

impl Joined {
    /// No new work is to come here.
    pub fn drain(&self) {
        self.order(Order::Drain);
    }

    /// The store was heard, and what is no longer this node's has been stopped.
    pub fn leases_checked(&self, asked_at: Moment) {
        self.order(Order::LeasesChecked { asked_at });
    }

    fn order(&self, order: Order) {
        if let Err(error) = self.orders.try_send(order) {
            tracing::debug!(%error, "the membership thread takes no orders; it has ended");
        }
    }

    /// Says that this node is gone for good.
    pub async fn leave(self) {
        self.order(Order::Leave);
        if timeout(LEAVING, self.ended).await.is_err() {
            tracing::warn!(
                "the registry does not take this node's leave; its peers will find it dead"
            );
        }
    }
}

/// Joins, and returns when the node may work: its heartbeat came back and its first proof is
/// written.
pub async fn join(options: Options) -> Result<(Joined, mpsc::Receiver<Fact>), JoinError> {
    let (orders, ordered) = mpsc::channel(ORDERS);
    let (facts, told) = mpsc::channel(FACTS);
    let (ready, joined) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    thread::Builder::new()
        .name("membership".into())
        .spawn(move || {
            runtime.block_on(live(options, ordered, facts, ready));
            let _nobody_waits = end.send(());
        })?;
    joined.await.unwrap_or(Err(JoinError::TooLate))?;
    Ok((Joined { orders, ended }, told))
}

type Ready = oneshot::Sender<Result<(), JoinError>>;

async fn live(
    options: Options,
    orders: mpsc::Receiver<Order>,
    facts: mpsc::Sender<Fact>,
    ready: Ready,
) {
    let deadline = Instant::now() + JOINING;
    match Member::enter(options, facts, deadline).await {
        Ok((member, ears)) => member.run(ears, orders, ready, deadline).await,
        Err(error) => {
            let _nobody_waits = ready.send(Err(error));
        }
    }
}

/// Opens the registry, and checks that its nodes share this store. What may pass is tried again.
async fn open(
    registry: &Registry,
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
