//! Performs the effects of the state machine: reports to the node, publishes, or starts a task.

use planck_common::{
    NodeId,
    decision::{Decision, DecisionData, DecisionKind},
    event::json,
    registry::NodeStanding,
    subject::Topic,
};
use tokio::sync::mpsc::{self, error::TrySendError};

use super::{
    ClusterFact, JoinOptions,
    member::MembershipThread,
    perform::{JobResult, RegistryJob},
};
use crate::{
    heartbeat::Beat,
    membership::{MembershipEffect, PeerNews, SuspensionCause},
};

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
