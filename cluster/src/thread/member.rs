//! The loop of the membership thread. It passes each input to the state machine with the current
//! time, and performs the effects.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::BoxStream};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use planck_bus::{Bus, Delivery};
use planck_common::{
    NodeId,
    decision::{Decision, DecisionData, DecisionKind},
    event::json,
    node::Heartbeat,
    registry::{NodeRecord, NodeStanding},
    subject::Topic,
};

use super::{
    ClusterFact, JoinError, JoinOptions, MemberOrder, ReadySender, SWEEPERS, check, difference,
    open,
    perform::{JobResult, RegistryJob},
    take_over,
    watched::Heartbeats,
};
use crate::{
    clock,
    heartbeat::Beat,
    membership::{
        Membership, MembershipEffect, MembershipInput, NodeIdentity, PeerNews, ReadSource,
        SeenNode, SuspensionCause,
    },
    registry::{NodeHint, RegistryError},
    times::REAPER_BEAT,
};

/// How long the thread waits until NATS has taken its messages.
const FLUSHED: Duration = Duration::from_millis(500);

pub(super) struct MembershipThread {
    pub(super) machine: Membership,
    pub(super) performer: RegistryJob,
    pub(super) jobs: JoinSet<JobResult>,
    pub(super) bus: Arc<dyn Bus>,
    pub(super) heartbeats: Heartbeats,
    pub(super) options: JoinOptions,
    pub(super) facts: mpsc::Sender<ClusterFact>,
    /// The sequence number of the last heartbeat.
    pub(super) beaten: u64,
    pub(super) suspended: bool,
    pub(super) draining: bool,
    /// Whether the registry is being opened again.
    pub(super) reopening: bool,
    pub(super) over: bool,
}

impl MembershipThread {
    pub async fn enter(
        options: JoinOptions,
        facts: mpsc::Sender<ClusterFact>,
        deadline: Instant,
    ) -> Result<(Self, BoxStream<'static, NodeHint>), JoinError> {
        let (bus, registry) = options.link.connect().await?;
        let age = match open(&registry, &options.store, deadline).await {
            Err(RegistryError::OtherStore { theirs, .. }) => {
                take_over(theirs, &options.store, &registry, &*bus).await?;
                open(&registry, &options.store, deadline).await?
            }
            opened => opened?,
        };
        check(&options.record, &registry, &*bus).await?;
        let own = bus
            .subscribe(&Topic::Node(&options.node).to_string())
            .await?;
        let hints = registry.watch_nodes();
        let identity = NodeIdentity {
            node: options.node.clone(),
            nonce: options.record.nonce.clone(),
        };
        let mut member = Self {
            machine: Membership::new(identity, options.times, clock::now()),
            performer: RegistryJob {
                registry,
                node: options.node.clone(),
                record: options.record.clone(),
                store: options.store.clone(),
            },
            jobs: JoinSet::new(),
            bus,
            heartbeats: Heartbeats::of(own),
            options,
            facts,
            beaten: 0,
            suspended: true,
            draining: false,
            reopening: false,
            over: false,
        };
        member.done(JobResult::Opened(age));
        Ok((member, hints))
    }

    pub async fn run(
        mut self,
        mut hints: BoxStream<'static, NodeHint>,
        mut orders: mpsc::Receiver<MemberOrder>,
        ready: ReadySender,
        deadline: Instant,
    ) {
        let mut ready = Some(ready);
        let mut heartbeat = interval(REAPER_BEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sweep = self.next_sweep();
        while !self.over {
            let wake = clock::instant(self.machine.next_wake());
            // Many heartbeats may wait after a pause of the process, so the rest comes before them.
            // In particular the reapers, which kill the tools unless they are told in time.
            tokio::select! {
                biased;
                _ = heartbeat.tick() => (self.options.beat_reapers)(),
                () = sleep_until(wake) => self.happened(MembershipInput::Woken),
                () = sleep_until(sweep) => {
                    self.perform(MembershipEffect::ReadAll);
                    sweep = self.next_sweep();
                }
                () = sleep_until(deadline), if ready.is_some() => return,
                order = orders.recv() => self.ordered(order),
                Some(done) = self.jobs.join_next() => self.done(done.unwrap_or(JobResult::Nothing)),
                asked = self.options.census.was_asked() => asked.into_iter().for_each(|node| self.happened(MembershipInput::Leaseholder { node })),
                Some(hint) = hints.next() => self.hinted(hint),
                Some(delivery) = self.heartbeats.next() => self.heartbeat(&delivery),
            }
            if !self.suspended
                && let Some(ready) = ready.take()
            {
                self.decided(
                    DecisionKind::NodeJoined,
                    DecisionData::because("its heartbeat came back and its proof is written"),
                );
                // Peers must learn that this node may work before `join` returns.
                let _soon_enough = self.bus.flush(FLUSHED).await;
                let _nobody_waits = ready.send(Ok(()));
            }
        }
        let _gone_anyway = self.bus.flush(FLUSHED).await;
    }

    /// Returns the time of the next read of all records, give or take a fifth. It is `cluster.sweep`
    /// from now in a cluster of up to [`SWEEPERS`] nodes and in proportion longer in a larger one, so
    /// that the reads of all nodes do not grow with the square of their number.
    fn next_sweep(&self) -> Instant {
        let times = self.options.census.count().div_ceil(SWEEPERS).max(1);
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        let every = self.options.times.sweep.saturating_mul(times);
        Instant::now() + every.mul_f64(0.8 + 0.4 * fastrand::f64())
    }

    pub(super) fn happened(&mut self, input: MembershipInput) {
        let now = clock::now();
        for effect in self.machine.on(now, input) {
            self.perform(effect);
        }
        match self.machine.may_act_until(now) {
            Some(until) => self.options.permit.give_until(until.as_millis()),
            None => self.options.permit.take_back(),
        }
    }

    fn heartbeat(&mut self, delivery: &Delivery) {
        let Ok(heartbeat) = serde_json::from_slice::<Heartbeat>(&delivery.payload) else {
            return;
        };
        let (node, seq) = (heartbeat.node_id.clone(), heartbeat.seq);
        self.options.census.heard(heartbeat);
        self.happened(MembershipInput::Heartbeat { node, seq });
    }

    fn hinted(&mut self, hint: NodeHint) {
        match hint {
            NodeHint::Restarted => self.perform(MembershipEffect::ReadAll),
            NodeHint::Changed(_, None) => {}
            NodeHint::Changed(node, Some(found)) => {
                let seen = Some(SeenNode::of(&found.record, found.revision));
                self.options
                    .census
                    .recorded(&node, found.revision, found.record);
                self.happened(MembershipInput::Record {
                    node,
                    seen,
                    source: ReadSource::Watch,
                });
            }
        }
    }

    fn ordered(&mut self, order: Option<MemberOrder>) {
        match order {
            Some(MemberOrder::Drain) => {
                self.draining = true;
                self.happened(MembershipInput::Drain);
            }
            Some(MemberOrder::Leave) => self.happened(MembershipInput::Leave),
            Some(MemberOrder::LeasesChecked { asked_at }) => {
                self.happened(MembershipInput::LeasesChecked { asked_at })
            }
            None => self.over = true,
        }
    }

    /// Handles the outcome of an effect.
    fn done(&mut self, done: JobResult) {
        match done {
            JobResult::Nothing => {}
            JobResult::Happened(input) => self.happened(input),
            JobResult::Watching(node, heartbeats) => self.watching(node, heartbeats),
            JobResult::Read(node, found) => {
                let seen = found
                    .as_ref()
                    .map(|found| SeenNode::of(&found.record, found.revision));
                if let Some(found) = found {
                    self.options
                        .census
                        .recorded(&node, found.revision, found.record);
                }
                self.happened(MembershipInput::Record {
                    node,
                    seen,
                    source: ReadSource::Leader,
                });
            }
            JobResult::ReadAll(found) => {
                self.warn_of_other_times(&found);
                let seen = found
                    .iter()
                    .map(|(node, revision, record)| (node.clone(), SeenNode::of(record, *revision)))
                    .collect();
                self.options.census.all_recorded(&found);
                self.happened(MembershipInput::Records(seen));
            }
            JobResult::DeclaredDead(node, silent) => {
                let data = DecisionData {
                    node: Some(node.clone()),
                    silent_ms: u64::try_from(silent.as_millis()).ok(),
                    ..DecisionData::because("it was not heard")
                };
                self.decided(DecisionKind::NodeDead, data);
                self.happened(MembershipInput::DeclaredDead { node });
            }
            JobResult::Opened(age) => {
                self.reopening = false;
                self.happened(MembershipInput::RegistryCreated {
                    at: clock::now().before(age),
                });
            }
            JobResult::NotOpened => self.reopening = false,
            JobResult::Missing(input) => {
                self.reopen();
                if let Some(input) = input {
                    self.happened(input);
                }
            }
            JobResult::Refused(why) => self.must_die(why),
        }
    }

    /// Logs a warning for each node with other times. Two nodes that joined at the same time did
    /// not see each other when their times were compared.
    fn warn_of_other_times(&self, found: &[(NodeId, u64, NodeRecord)]) {
        for (node, _, record) in found {
            if let Some(what) = difference(&self.options.record, record) {
                tracing::warn!(%node, name = record.name, what, "a node of this cluster has other times; give all the same `[cluster]`");
            }
        }
    }

    /// Starts a task that opens the lost registry again, unless one is running. The state machine
    /// then writes this node's record again.
    fn reopen(&mut self) {
        if !self.reopening {
            self.reopening = true;
            tracing::warn!(
                "the registry is gone; it is made anew, and every node writes again what is its own"
            );
            self.jobs.spawn(self.performer.clone().reopen());
        }
    }
}

// Performs the effects of the state machine: reports to the node, publishes, or starts a task.

impl MembershipThread {
    pub(super) fn perform(&mut self, effect: MembershipEffect) {
        match effect {
            MembershipEffect::Beat { seq } => self.beat(seq),
            MembershipEffect::Prove { sent_at, expects } => {
                self.job(|performer| performer.prove(sent_at, expects))
            }
            MembershipEffect::Write { standing, expects } => {
                self.job(|performer| performer.write(standing, expects))
            }
            MembershipEffect::Read { node } => self.job(|performer| performer.read(node)),
            MembershipEffect::ReadProof { node, asked_at } => {
                self.job(|performer| performer.read_proof(node, asked_at))
            }
            MembershipEffect::ReadAll => self.job(RegistryJob::read_all),
            MembershipEffect::Watch { node } => self.watch(node),
            MembershipEffect::Unwatch { node } => self.unwatch(&node),
            MembershipEffect::DeclareDead {
                node,
                expects,
                own,
                silent,
            } => {
                let known = self.options.census.record(&node);
                self.job(|performer| performer.declare_dead(node, expects, own, silent, known));
            }
            MembershipEffect::CheckLeases { asked_at } => {
                self.tell(ClusterFact::CheckLeases { asked_at })
            }
            MembershipEffect::KillTools => {
                tracing::warn!(
                    "suspended, and the store does not answer: nobody can say what is still this node's, so its tools are killed"
                );
                (self.options.kill_tools)();
            }
            MembershipEffect::Suspend { why } => self.suspend(why),
            MembershipEffect::Resume => self.resume(),
            MembershipEffect::Peer { node, news } => self.news(node, news),
            MembershipEffect::Exit { standing } => self.exit(standing),
        }
    }

    fn job<F: Future<Output = JobResult> + Send + 'static>(
        &mut self,
        job: impl FnOnce(RegistryJob) -> F,
    ) {
        self.jobs.spawn(job(self.performer.clone()));
    }

    fn beat(&mut self, seq: u64) {
        self.beaten = seq;
        self.tell_heartbeat();
    }

    /// Publishes a heartbeat with the last number and the current state of the node.
    fn tell_heartbeat(&self) {
        let JoinOptions {
            node, record, load, ..
        } = &self.options;
        let beat = Beat {
            node,
            record,
            load: load(),
            draining: self.draining,
            suspended: self.suspended,
        };
        self.bus.publish(
            Topic::Node(node).to_string(),
            json(&beat.numbered(self.beaten)).into(),
        );
    }

    fn suspend(&mut self, why: SuspensionCause) {
        let why = match why {
            SuspensionCause::Unheard => "its own heartbeats do not come back",
            SuspensionCause::Unproven => "it could not write to the registry for long",
        };
        self.suspended = true;
        self.options.permit.take_back();
        tracing::warn!(
            why,
            "this node is suspended: what runs goes on, and nothing new is begun"
        );
        self.decided(DecisionKind::NodeSuspended, DecisionData::because(why));
    }

    fn resume(&mut self) {
        self.suspended = false;
        tracing::info!("this node is in the cluster and may work");
        // Peers place no agents on a node whose last heartbeat says that it is suspended, so this
        // node publishes another one at once.
        self.tell_heartbeat();
        self.decided(
            DecisionKind::NodeResumed,
            DecisionData::because("its heartbeat came back and its proof is written"),
        );
    }

    fn news(&mut self, node: NodeId, news: PeerNews) {
        let census = &self.options.census;
        match news {
            PeerNews::Suspect => {
                tracing::info!(%node, "a peer is silent");
                census.suspected(&node, true);
            }
            PeerNews::Back => census.suspected(&node, false),
            PeerNews::Left => {
                tracing::info!(%node, "a peer left");
                census.gone(&node, None);
                self.tell(ClusterFact::PeerLeft(node));
            }
            PeerNews::Died { quiet_since } => {
                tracing::info!(%node, "a peer is dead");
                census.gone(&node, Some(quiet_since));
                self.tell(ClusterFact::PeerDied(node));
            }
        }
    }

    fn exit(&mut self, standing: NodeStanding) {
        match standing {
            NodeStanding::Left => {
                self.decided(
                    DecisionKind::NodeLeft,
                    DecisionData::because("it was asked to leave"),
                );
                self.over = true;
            }
            NodeStanding::Alive | NodeStanding::Draining | NodeStanding::Dead => {
                self.must_die(
                    "its peers did not hear it and gave it up; what it did is taken up elsewhere"
                        .into(),
                );
            }
        }
    }

    pub(super) fn must_die(&mut self, why: String) {
        self.options.permit.take_back();
        (self.options.kill_tools)();
        tracing::error!(
            why,
            "this node is out of the cluster; it stops everything and ends"
        );
        self.tell(ClusterFact::MustDie(why));
        self.over = true;
    }

    fn tell(&self, fact: ClusterFact) {
        send(&self.facts, fact);
    }

    pub(super) fn decided(&self, kind: DecisionKind, data: DecisionData) {
        let decision = Decision::new(kind, &self.options.node, data);
        self.bus.publish(
            Topic::Cluster(kind.name()).to_string(),
            json(&decision).into(),
        );
    }
}

/// Reports a fact to the node. Drops the fact if too many wait already or the node receives no
/// more. A request to check the leases is repeated every second while the node is suspended, and a
/// check lasts longer if the store hangs. Such a request is therefore dropped once half of the
/// channel is in use, so that the facts that are reported only once still fit.
fn send(facts: &mpsc::Sender<ClusterFact>, fact: ClusterFact) {
    let is_repeated = matches!(fact, ClusterFact::CheckLeases { .. });
    if is_repeated && facts.capacity() < facts.max_capacity() / 2 {
        tracing::debug!("skipped a check of the leases: earlier ones still wait");
        return;
    }
    match facts.try_send(fact) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => {
            tracing::warn!("dropped a cluster event: the channel to the node is full")
        }
        Err(TrySendError::Closed(_)) => tracing::debug!("the node is leaving"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moment::Moment;

    #[test]
    fn requests_to_check_the_leases_leave_room_for_other_facts() {
        let (facts, mut told) = mpsc::channel(8);
        for second in 0..100 {
            let asked_at = Moment::from_millis(second * 1_000);
            send(&facts, ClusterFact::CheckLeases { asked_at });
        }
        let death = ClusterFact::MustDie("it was declared dead".into());
        send(&facts, death.clone());
        drop(facts);
        let received: Vec<_> = std::iter::from_fn(|| told.try_recv().ok()).collect();
        assert!(received.len() > 1, "{received:?}");
        assert_eq!(received.last(), Some(&death));
    }
}
