//! What the pure machine decided, done: told to the node, published, or given to a task of its own.

use planck_common::{
    NodeId,
    decision::{Decision, DecisionData, DecisionKind},
    event::json,
    registry::NodeStanding,
    subject::Topic,
};
use tokio::sync::mpsc::error::TrySendError;

use super::{
    Fact, Options,
    member::Member,
    perform::{Done, Performer},
};
use crate::{
    bus::Bus,
    cluster::{
        heartbeat::Beat,
        membership::{Doubt, Effect, News},
    },
};

impl Member {
    pub(super) fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Beat { seq } => self.beat(seq),
            Effect::Prove { sent_at, expects } => {
                self.job(|performer| performer.prove(sent_at, expects))
            }
            Effect::Write { standing, expects } => {
                self.job(|performer| performer.write(standing, expects))
            }
            Effect::Read { node } => self.job(|performer| performer.read(node)),
            Effect::ReadProof { node, asked_at } => {
                self.job(|performer| performer.read_proof(node, asked_at))
            }
            Effect::ReadAll => self.job(Performer::read_all),
            Effect::Convict {
                node,
                expects,
                own,
                silent,
            } => {
                let known = self.options.census.record(&node);
                self.job(|performer| performer.convict(node, expects, own, silent, known));
            }
            Effect::CheckLeases { asked_at } => self.tell(Fact::CheckLeases { asked_at }),
            Effect::KillTools => {
                tracing::warn!(
                    "suspended, and the store does not answer: nobody can say what is still this node's, so its tools are killed"
                );
                self.options.heartbeat.cut();
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

    fn beat(&mut self, seq: u64) {
        self.beaten = seq;
        self.tell_heartbeat();
    }

    /// The last one again says what has changed meanwhile.
    fn tell_heartbeat(&self) {
        let Options {
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

    fn suspend(&mut self, why: Doubt) {
        let why = match why {
            Doubt::Unheard => "its own heartbeats do not come back",
            Doubt::Unproven => "it could not write to the registry for long",
        };
        self.suspended = true;
        self.options.permit.take_back();
        tracing::warn!(
            why,
            "this node is suspended: what runs goes on, and nothing new is begun"
        );
        self.decided(DecisionKind::NodeSuspended, DecisionData::because(why));
        self.tell(Fact::Suspended);
    }

    fn resume(&mut self) {
        self.suspended = false;
        tracing::info!("this node is in the cluster and may work");
        // Peers place nothing on a node that said it was suspended: they need not wait for the next
        // beat.
        self.tell_heartbeat();
        self.decided(
            DecisionKind::NodeResumed,
            DecisionData::because("its heartbeat came back and its proof is written"),
        );
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
        self.options.heartbeat.cut();
        tracing::error!(
            why,
            "this node is out of the cluster; it stops everything and ends"
        );
        self.tell(Fact::MustDie(why));
        self.over = true;
    }

    /// A reader that is so far behind is stuck; it finds the rest out from the census and the
    /// store.
    fn tell(&self, fact: Fact) {
        match self.facts.try_send(fact) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => tracing::warn!("the node does not hear of its cluster"),
            Err(TrySendError::Closed(_)) => tracing::debug!("the node is leaving"),
        }
    }

    pub(super) fn decided(&self, kind: DecisionKind, data: DecisionData) {
        let decision = Decision::new(kind, &self.options.node, data);
        self.bus.publish(
            Topic::Cluster(kind.name()).to_string(),
            json(&decision).into(),
        );
    }
}
