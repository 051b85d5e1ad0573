//! The loop of the membership thread: what comes in goes to the pure machine, with the time it
//! came.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::BoxStream};
use planck_common::{
    NodeId,
    decision::{DecisionData, DecisionKind},
    node::Heartbeat,
    registry::NodeRecord,
    subject::Topic,
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use super::{
    Fact, JoinError, Options, Order, Ready, agreement, open,
    perform::{Done, Performer},
};
use crate::{
    bus::{Bus, Delivery, NatsBus, NatsOptions},
    cluster::{
        clock,
        membership::{Effect, Identity, Input, Membership, Seen, Source},
        registry::{NodeHint, Registry, RegistryError},
    },
    tools::process::heartbeat,
};

/// How long what was told last may take to be written out.
const FLUSHED: Duration = Duration::from_millis(500);

/// What comes in by itself.
pub(super) struct Ears {
    heartbeats: BoxStream<'static, Delivery>,
    hints: BoxStream<'static, NodeHint>,
}

pub(super) struct Member {
    pub(super) machine: Membership,
    pub(super) performer: Performer,
    pub(super) jobs: JoinSet<Done>,
    pub(super) bus: NatsBus,
    pub(super) options: Options,
    pub(super) facts: mpsc::Sender<Fact>,
    /// The number of the last heartbeat.
    pub(super) beaten: u64,
    pub(super) suspended: bool,
    pub(super) draining: bool,
    /// The registry is being opened anew.
    pub(super) reopening: bool,
    pub(super) over: bool,
}

impl Member {
    pub async fn enter(
        options: Options,
        facts: mpsc::Sender<Fact>,
        deadline: Instant,
    ) -> Result<(Self, Ears), JoinError> {
        let name = format!("{} membership", options.nats.name);
        let bus = NatsBus::connect(NatsOptions {
            name,
            ..options.nats.clone()
        })
        .await?;
        let registry = Registry::new(Arc::new(bus.records(options.replicas)));
        let age = match open(&registry, &options.store, deadline).await {
            Err(RegistryError::OtherStore { theirs, .. }) => {
                agreement::take_over(theirs, &options.store, &registry, &bus).await?;
                open(&registry, &options.store, deadline).await?
            }
            opened => opened?,
        };
        agreement::check(&options.record, &registry, &bus).await?;
        let heartbeats = bus.subscribe(&Topic::AllNodes.to_string()).await?;
        let hints = registry.watch_nodes();
        let identity = Identity {
            node: options.node.clone(),
            nonce: options.record.nonce.clone(),
        };
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
            beaten: 0,
            suspended: true,
            draining: false,
            reopening: false,
            over: false,
        };
        member.done(Done::Opened(age));
        Ok((member, Ears { heartbeats, hints }))
    }

    pub async fn run(
        mut self,
        mut ears: Ears,
        mut orders: mpsc::Receiver<Order>,
        ready: Ready,
        deadline: Instant,
    ) {
        let mut ready = Some(ready);
        let mut heartbeat = interval(heartbeat::INTERVAL);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
                _ = heartbeat.tick() => self.options.heartbeat.beat(),
                () = sleep_until(sweep) => {
                    self.perform(Effect::ReadAll);
                    sweep = self.next_sweep();
                }
                () = sleep_until(deadline), if ready.is_some() => return,
            }
            if !self.suspended
                && let Some(ready) = ready.take()
            {
                self.decided(
                    DecisionKind::NodeJoined,
                    DecisionData::because("its heartbeat came back and its proof is written"),
                );
                // Its peers know that it may work before anybody is told that it does.
                let _soon_enough = self.bus.flush(FLUSHED).await;
                let _nobody_waits = ready.send(Ok(()));
            }
        }
        let _gone_anyway = self.bus.flush(FLUSHED).await;
    }

    /// Every so often, give or take a fifth.
    fn next_sweep(&self) -> Instant {
        Instant::now()
            + self
                .options
                .times
                .sweep
                .0
                .mul_f64(0.8 + 0.4 * fastrand::f64())
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
        let Ok(heartbeat) = serde_json::from_slice::<Heartbeat>(&delivery.payload) else {
            return;
        };
        let (node, seq) = (heartbeat.node_id.clone(), heartbeat.seq);
        self.options.census.heard(heartbeat);
        self.happened(Input::Heard { node, seq });
    }

    fn hinted(&mut self, hint: NodeHint) {
        match hint {
            NodeHint::Restarted => self.perform(Effect::ReadAll),
            NodeHint::Changed(_, None) => {}
            NodeHint::Changed(node, Some(found)) => {
                let seen = Some(Seen::of(&found.record, found.revision));
                self.options
                    .census
                    .recorded(&node, found.revision, found.record);
                self.happened(Input::Record {
                    node,
                    seen,
                    source: Source::Watch,
                });
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
            Some(Order::LeasesChecked { asked_at }) => {
                self.happened(Input::LeasesChecked { asked_at })
            }
            None => self.over = true,
        }
    }

    /// What came of an effect.
    fn done(&mut self, done: Done) {
        match done {
            Done::Nothing => {}
            Done::Happened(input) => self.happened(input),
            Done::Read(node, found) => {
                let seen = found
                    .as_ref()
                    .map(|found| Seen::of(&found.record, found.revision));
                if let Some(found) = found {
                    self.options
                        .census
                        .recorded(&node, found.revision, found.record);
                }
                self.happened(Input::Record {
                    node,
                    seen,
                    source: Source::Leader,
                });
            }
            Done::ReadAll(found) => {
                self.warn_of_other_times(&found);
                let seen = found
                    .iter()
                    .map(|(node, revision, record)| (node.clone(), Seen::of(record, *revision)))
                    .collect();
                self.options.census.all_recorded(&found);
                self.happened(Input::Records(seen));
            }
            Done::Convicted(node, silent) => {
                let data = DecisionData {
                    node: Some(node.clone()),
                    silent_ms: u64::try_from(silent.as_millis()).ok(),
                    ..DecisionData::because("it was not heard")
                };
                self.decided(DecisionKind::NodeDead, data);
                self.happened(Input::Convicted { node });
            }
            Done::Opened(age) => {
                self.reopening = false;
                self.happened(Input::RegistryCreated {
                    at: clock::now().before(age),
                });
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

    /// Two nodes that came at once did not see each other when they were let in.
    fn warn_of_other_times(&self, found: &[(NodeId, u64, NodeRecord)]) {
        for (node, _, record) in found {
            if let Some(what) = agreement::difference(&self.options.record, record) {
                tracing::warn!(%node, name = record.name, what, "a node of this cluster has other times; give all the same `[cluster]`");
            }
        }
    }

    /// The bucket is gone: it is made anew, and what is this node's is written again.
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
