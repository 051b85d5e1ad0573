//! The membership of this node, on a thread of its own with a connection of its own: however busy the rest of the node is, it
//! is heard, and hears. What happens goes to the pure machine, and what that decides is performed.

mod perform;

use std::{io, sync::Arc, thread, time::Duration};

use futures_util::{StreamExt, stream::BoxStream};
use planck_common::{
    NodeId,
    decision::{Decided, Decision, DecisionKind},
    event::json,
    node::Heartbeat,
    registry::{NodeRecord, NodeStanding},
    subject::Topic,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};

use super::{
    census::Census,
    clock,
    heartbeat::{Beat, Load},
    membership::{Doubt, Effect, Identity, Input, Membership, News, Seen, Source},
    moment::Moment,
    registry::{NodeHint, Registry, RegistryError},
};
use crate::{
    bus::{Bus, BusError, Delivery, NatsBus, NatsOptions},
    config::Cluster as Times,
    permit::Permit,
    tools::process::heart::{self, Heart},
};

use self::perform::{Done, Performer};

/// How long a node may take until it is in the cluster: a cluster of servers that just started elects a leader first.
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
    pub store: String,
    pub census: Arc<Census>,
    pub permit: Permit,
    pub heart: Heart,
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
    /// Stop what runs here and is no longer this node's by the store's word; then say so with [`Joined::leases_checked`].
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

/// A node's place in the cluster. Dropped without [`leave`](Self::leave), the node just falls silent.
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
            tracing::warn!("the registry does not take this node's leave; its peers will find it dead");
        }
    }
}

/// Joins, and returns when the node may work: its heartbeat came back and its first proof is written.
pub async fn join(options: Options) -> Result<(Joined, mpsc::Receiver<Fact>), JoinError> {
    let (orders, ordered) = mpsc::channel(ORDERS);
    let (facts, told) = mpsc::channel(FACTS);
    let (ready, joined) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("membership".into()).spawn(move || {
        runtime.block_on(live(options, ordered, facts, ready));
        let _nobody_waits = end.send(());
    })?;
    joined.await.unwrap_or(Err(JoinError::TooLate))?;
    Ok((Joined { orders, ended }, told))
}

type Ready = oneshot::Sender<Result<(), JoinError>>;

async fn live(options: Options, orders: mpsc::Receiver<Order>, facts: mpsc::Sender<Fact>, ready: Ready) {
    let deadline = Instant::now() + JOINING;
    match Member::enter(options, facts, deadline).await {
        Ok((member, ears)) => member.run(ears, orders, ready, deadline).await,
        Err(error) => {
            let _nobody_waits = ready.send(Err(error));
        }
    }
}

/// What comes in by itself.
struct Ears {
    heartbeats: BoxStream<'static, Delivery>,
    hints: BoxStream<'static, NodeHint>,
}

struct Member {
    machine: Membership,
    performer: Performer,
    jobs: JoinSet<Done>,
    bus: NatsBus,
    options: Options,
    facts: mpsc::Sender<Fact>,
    suspended: bool,
    draining: bool,
    last_beat: u64,
    /// The registry is being opened anew.
    reopening: bool,
    over: bool,
}

impl Member {
    async fn enter(options: Options, facts: mpsc::Sender<Fact>, deadline: Instant) -> Result<(Self, Ears), JoinError> {
        let name = format!("{} membership", options.nats.name);
        let bus = NatsBus::connect(NatsOptions { name, ..options.nats.clone() }).await?;
        let registry = Registry::new(Arc::new(bus.records(options.replicas)));
        let age = open(&registry, &options.store, deadline).await?;
        let heartbeats = bus.subscribe(&Topic::AllNodes.to_string()).await?;
        let hints = registry.watch_nodes();
        let identity = Identity { node: options.node.clone(), nonce: options.record.nonce.clone() };
        let mut member = Self {
            machine: Membership::new(identity, options.times.clone(), clock::now()),
            performer: Performer {
                registry,
                node: options.node.clone(),
                record: options.record.clone(),
                store: options.store.clone(),
            },
            jobs: JoinSet::new(),
            bus,
            options,
            facts,
            suspended: true,
            draining: false,
            last_beat: 0,
            reopening: false,
            over: false,
        };
        member.done(Done::Opened(age));
        Ok((member, Ears { heartbeats, hints }))
    }

    async fn run(mut self, mut ears: Ears, mut orders: mpsc::Receiver<Order>, ready: Ready, deadline: Instant) {
        let mut ready = Some(ready);
        let mut heart = interval(heart::INTERVAL);
        heart.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sweep = self.next_sweep();
        while !self.over {
            let wake = clock::instant(self.machine.next_wake());
            tokio::select! {
                () = sleep_until(wake) => self.happened(Input::Woken),
                Some(delivery) = ears.heartbeats.next() => self.heard(&delivery),
                Some(hint) = ears.hints.next() => self.hinted(hint),
                Some(done) = self.jobs.join_next() => self.done(done.unwrap_or(Done::Nothing)),
                asked = self.options.census.was_asked() => asked.into_iter().for_each(|node| self.happened(Input::Leaseholder { node })),
                order = orders.recv() => self.ordered(order),
                _ = heart.tick() => self.options.heart.beat(),
                () = sleep_until(sweep) => {
                    self.perform(Effect::ReadAll);
                    sweep = self.next_sweep();
                }
                () = sleep_until(deadline), if ready.is_some() => return,
            }
            if !self.suspended
                && let Some(ready) = ready.take()
            {
                self.decided(DecisionKind::NodeJoined, Decided::because("its heartbeat came back and its proof is written"));
                let _nobody_waits = ready.send(Ok(()));
            }
        }
        let _gone_anyway = self.bus.flush(Duration::from_millis(500)).await;
    }

    /// Every so often, give or take a fifth.
    fn next_sweep(&self) -> Instant {
        Instant::now() + self.options.times.sweep.0.mul_f64(0.8 + 0.4 * fastrand::f64())
    }

    fn happened(&mut self, input: Input) {
        let now = clock::now();
        for effect in self.machine.on(now, input) {
            self.perform(effect);
        }
        match self.machine.may_act_until(now) {
            Some(until) => self.options.permit.give_until(until.as_millis()),
            None => self.options.permit.take_back(),
        }
    }

    fn heard(&mut self, delivery: &Delivery) {
        let Ok(heartbeat) = serde_json::from_slice::<Heartbeat>(&delivery.payload) else { return };
        let (node, seq) = (heartbeat.node_id.clone(), heartbeat.seq);
        self.options.census.heard(heartbeat);
        self.happened(Input::Heard { node, seq });
    }

    fn hinted(&mut self, hint: NodeHint) {
        match hint {
            NodeHint::LookAgain => self.perform(Effect::ReadAll),
            NodeHint::Changed(_, None) => {}
            NodeHint::Changed(node, Some(found)) => {
                let seen = Some(Seen::of(&found.record, found.revision));
                self.options.census.recorded(&node, found.revision, found.record);
                self.happened(Input::Record { node, seen, source: Source::Watch });
            }
        }
    }

    fn ordered(&mut self, order: Option<Order>) {
        match order {
            Some(Order::Drain) => {
                self.draining = true;
                self.happened(Input::Drain);
            }
            Some(Order::Leave) => self.happened(Input::Leave),
            Some(Order::LeasesChecked { asked_at }) => self.happened(Input::LeasesChecked { asked_at }),
            None => self.over = true,
        }
    }

    /// What came of an effect.
    fn done(&mut self, done: Done) {
        match done {
            Done::Nothing => {}
            Done::Happened(input) => self.happened(input),
            Done::Read(node, found) => {
                let seen = found.as_ref().map(|found| Seen::of(&found.record, found.revision));
                if let Some(found) = found {
                    self.options.census.recorded(&node, found.revision, found.record);
                }
                self.happened(Input::Record { node, seen, source: Source::Leader });
            }
            Done::ReadAll(found) => {
                let seen = found.iter().map(|(node, revision, record)| (node.clone(), Seen::of(record, *revision))).collect();
                self.options.census.all_recorded(&found);
                self.happened(Input::Records(seen));
            }
            Done::Convicted(node, silent) => {
                let data = Decided {
                    node: Some(node.clone()),
                    silent_ms: u64::try_from(silent.as_millis()).ok(),
                    ..Decided::because("it was not heard")
                };
                self.decided(DecisionKind::NodeDead, data);
                self.happened(Input::Convicted { node });
            }
            Done::Opened(age) => {
                self.reopening = false;
                self.happened(Input::RegistryCreated { at: clock::now().before(age) });
            }
            Done::NotOpened => self.reopening = false,
            Done::Missing(input) => {
                self.reopen();
                if let Some(input) = input {
                    self.happened(input);
                }
            }
            Done::Refused(why) => self.must_die(why),
        }
    }

    /// The bucket is gone: it is made anew, and what is this node's is written again.
    fn reopen(&mut self) {
        if !self.reopening {
            self.reopening = true;
            tracing::warn!("the registry is gone; it is made anew, and every node writes again what is its own");
            self.jobs.spawn(self.performer.clone().reopen());
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Beat { seq } => {
                self.last_beat = seq;
                self.beat(seq);
            }
            Effect::Prove { sent_at, expects } => self.job(|performer| performer.prove(sent_at, expects)),
            Effect::Write { standing, expects } => self.job(|performer| performer.write(standing, expects)),
            Effect::Read { node } => self.job(|performer| performer.read(node)),
            Effect::ReadAll => self.job(Performer::read_all),
            Effect::Convict { node, expects, own, silent } => {
                let known = self.options.census.record(&node);
                self.job(|performer| performer.convict(node, expects, own, silent, known));
            }
            Effect::CheckLeases { asked_at } => self.tell(Fact::CheckLeases { asked_at }),
            Effect::KillTools => {
                tracing::warn!(
                    "suspended, and the store does not answer: nobody can say what is still this node's, so its tools are killed"
                );
                self.options.heart.cut();
            }
            Effect::Suspend { why } => self.suspend(why),
            Effect::Resume => self.resume(),
            Effect::Peer { node, news } => self.news(node, news),
            Effect::Exit { standing } => self.exit(standing),
        }
    }

    fn job<F: Future<Output = Done> + Send + 'static>(&mut self, job: impl FnOnce(Performer) -> F) {
        self.jobs.spawn(job(self.performer.clone()));
    }

    fn beat(&self, seq: u64) {
        let Options { node, record, load, .. } = &self.options;
        let beat = Beat { node, record, load: load(), draining: self.draining, suspended: self.suspended };
        self.bus.publish(Topic::Node(node).to_string(), json(&beat.numbered(seq)).into());
    }

    fn suspend(&mut self, why: Doubt) {
        let why = match why {
            Doubt::Unheard => "its own heartbeats do not come back",
            Doubt::Unproven => "it could not write to the registry for long",
        };
        self.suspended = true;
        self.options.permit.take_back();
        tracing::warn!(why, "this node is suspended: what runs goes on, and nothing new is begun");
        self.decided(DecisionKind::NodeSuspended, Decided::because(why));
        self.tell(Fact::Suspended);
    }

    fn resume(&mut self) {
        self.suspended = false;
        tracing::info!("this node is in the cluster and may work");
        // Peers place nothing on a node that said it was suspended: they need not wait for the next beat.
        self.beat(self.last_beat);
        self.decided(DecisionKind::NodeResumed, Decided::because("its heartbeat came back and its proof is written"));
        self.tell(Fact::Resumed);
    }

    fn news(&mut self, node: NodeId, news: News) {
        let census = &self.options.census;
        match news {
            News::Suspect => {
                tracing::info!(%node, "a peer is silent");
                census.suspected(&node, true);
            }
            News::Back => census.suspected(&node, false),
            News::Left => {
                tracing::info!(%node, "a peer left");
                self.tell(Fact::PeerLeft(node));
            }
            News::Died { quiet_since } => {
                tracing::info!(%node, "a peer is dead");
                self.tell(Fact::PeerDied { node, quiet_since });
            }
        }
    }

    fn exit(&mut self, standing: NodeStanding) {
        match standing {
            NodeStanding::Left => {
                self.decided(DecisionKind::NodeLeft, Decided::because("it was asked to leave"));
                self.over = true;
            }
            NodeStanding::Alive | NodeStanding::Draining | NodeStanding::Dead => {
                self.must_die("its peers did not hear it and gave it up; what it did is taken up elsewhere".into());
            }
        }
    }

    fn must_die(&mut self, why: String) {
        self.options.permit.take_back();
        self.options.heart.cut();
        tracing::error!(why, "this node is out of the cluster; it stops everything and ends");
        self.tell(Fact::MustDie(why));
        self.over = true;
    }

    /// A reader that is so far behind is stuck; it finds the rest out from the census and the store.
    fn tell(&self, fact: Fact) {
        if let Err(error) = self.facts.try_send(fact) {
            tracing::warn!(%error, "the node does not hear of its cluster");
        }
    }

    fn decided(&self, kind: DecisionKind, data: Decided) {
        let decision = Decision::new(kind, &self.options.node, data);
        self.bus.publish(Topic::Cluster(kind.name()).to_string(), json(&decision).into());
    }
}

/// Opens the registry, and checks that its nodes share this store. What may pass is tried again.
async fn open(registry: &Registry, store: &str, deadline: Instant) -> Result<Duration, RegistryError> {
    loop {
        let opened = async {
            let age = registry.open().await?;
            registry.check_store(store).await?;
            Ok(age)
        };
        match opened.await {
            Err(error @ RegistryError::Records(_)) if error.is_passing() && Instant::now() + AGAIN < deadline => {
                tracing::debug!(%error, "the registry cannot be opened yet");
                tokio::time::sleep(AGAIN).await;
            }
            opened => return opened,
        }
    }
}
