//! **Pure**: what one node decides about itself and its peers. It beats and proves its life,
//! suspends itself when it cannot, and convicts a silent peer, if its own link is settled. The
//! shell performs the effects, and wakes it at `next_wake`.

pub mod effect;
pub mod input;

mod fence;
mod judging;
mod link;
mod own;
mod peer;
mod proof;
mod witness;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use planck_common::{
    NodeId,
    registry::{NodeStanding, Nonce},
};

use self::{
    fence::Fence,
    link::Link,
    own::{Found, OwnRecord, Trust},
    peer::{Peer, Record},
    proof::Proofs,
    witness::Rounds,
};
use super::moment::Moment;
use crate::config::Cluster;

pub use effect::{Doubt, Effect, News};
pub use input::{Input, Revision, Seen, Source};

/// Who a node is; the nonce goes into each of its writes of its own record.
#[derive(Debug, Clone)]
pub struct Identity {
    pub node: NodeId,
    pub nonce: Nonce,
}

#[derive(Debug)]
pub struct Membership {
    me: NodeId,
    times: Cluster,
    link: Link,
    proofs: Proofs,
    own: OwnRecord,
    fence: Fence,
    peers: BTreeMap<NodeId, Peer>,
    /// Since when it is proved and hears itself; what it heard before is void.
    sound: Option<Moment>,
    /// Since when this node may judge.
    judging: Option<Moment>,
    /// When it looks at the proofs of others.
    rounds: Rounds,
    registry_created: Option<Moment>,
    over: bool,
}

impl Membership {
    pub fn new(identity: Identity, times: Cluster, now: Moment) -> Self {
        Self {
            me: identity.node,
            link: Link::new(times.heartbeat.0, now),
            proofs: Proofs::new(times.proof_every.0),
            own: OwnRecord::new(identity.nonce),
            fence: Fence::new(now),
            peers: BTreeMap::new(),
            sound: None,
            judging: None,
            rounds: Rounds::new(times.proof_every.0),
            registry_created: None,
            over: false,
            times,
        }
    }

    /// What follows from what happened. Time that passed counts first: after a pause nothing that
    /// comes in makes it undone.
    pub fn on(&mut self, now: Moment, input: Input) -> Vec<Effect> {
        let mut out = Vec::new();
        if self.over {
            return out;
        }
        self.notice_time(now, &mut out);
        self.take(now, input, &mut out);
        if !self.over {
            self.go_on(now, &mut out);
        }
        out
    }

    /// When it must be called again, if nothing happens before.
    pub fn next_wake(&self) -> Moment {
        let fence = [
            self.link
                .echo()
                .map(|echo| just_after(echo, self.times.echo_limit.0)),
            self.proofs
                .newest()
                .map(|proof| just_after(proof, self.times.proof_limit.0)),
        ];
        let fence = fence
            .into_iter()
            .flatten()
            .filter(|_| !self.fence.is_suspended());
        let proof = self.proofs.next().filter(|_| self.own.held().is_some());
        let others = [
            proof,
            self.own.deadline(),
            self.fence.deadline(),
            self.next_judgement(),
        ];
        others
            .into_iter()
            .flatten()
            .chain(fence)
            .fold(self.link.next_beat(), Moment::min)
    }

    /// Whether a model call, a tool or an input may be started at this moment. To be asked before
    /// each.
    pub fn may_act(&self, now: Moment) -> bool {
        !self.over && !self.fence.is_suspended() && self.doubt(now).is_none()
    }

    /// Until when it may, if nothing more happens.
    pub fn may_act_until(&self, now: Moment) -> Option<Moment> {
        let (echo, proof) = (self.link.echo()?, self.proofs.newest()?);
        let until = (echo + self.times.echo_limit.0).min(proof + self.times.proof_limit.0);
        self.may_act(now).then_some(until)
    }

    /// The peers that are not known to be gone.
    pub fn peers(&self) -> impl Iterator<Item = &NodeId> {
        self.peers
            .iter()
            .filter(|(_, peer)| !peer.is_gone())
            .map(|(node, _)| node)
    }

    /// The peers that can be asked for something: neither gone nor suspect.
    pub fn audible(&self) -> impl Iterator<Item = &NodeId> {
        self.peers
            .iter()
            .filter(|(_, peer)| peer.is_audible())
            .map(|(node, _)| node)
    }

    /// Whether a node is known to have left or died.
    pub fn is_gone(&self, node: &NodeId) -> bool {
        self.peers.get(node).is_some_and(Peer::is_gone)
    }

    fn notice_time(&mut self, now: Moment, out: &mut Vec<Effect>) {
        self.link.notice_gap(now, self.gap());
        if self.is_unheard(now) {
            self.fence.doubt(now);
        }
        if let Some(why) = self.doubt(now) {
            out.extend(self.fence.suspend(now, why));
        }
        self.take_or_leave_the_bench(now, out);
    }

    fn take(&mut self, now: Moment, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Woken => {}
            Input::Heard { node, seq } if node == self.me => self.link.came_back(seq, now),
            Input::Heard { node, .. } => self.heard(now, node, out),
            Input::ProofCommitted { sent_at } => self.proofs.committed(sent_at),
            Input::ProofUnknown { sent_at } => {
                self.proofs.answered(sent_at);
            }
            Input::ProofRefused { sent_at } => {
                if self.proofs.answered(sent_at) {
                    self.own.question(now);
                }
            }
            Input::Written { revision, standing } => self.written(revision, standing, out),
            Input::NotWritten => self.own.question(now),
            Input::Record { node, seen, source } if node == self.me => {
                self.found_own(now, seen.as_ref(), source, out)
            }
            Input::Record { node, seen, source } => {
                self.read(now, &node, seen.as_ref(), source, out)
            }
            Input::Proof {
                node,
                asked_at,
                proof,
            } => self.witness(now, &node, asked_at, proof),
            Input::Records(records) => self.read_all(now, &records, out),
            Input::Convicted { node } => self.convicted(now, &node, out),
            Input::NotConvicted { node } => self.not_convicted(now, node, out),
            Input::Leaseholder { node } => self.leaseholder(now, node, out),
            Input::LeasesChecked { asked_at } => {
                self.fence.leases_checked(asked_at);
                self.own.leases_checked(asked_at);
            }
            Input::RegistryCreated { at } => self.registry_created = Some(at),
            Input::Drain => self.own.want(NodeStanding::Draining),
            Input::Leave => self.own.want(NodeStanding::Left),
        }
    }

    fn go_on(&mut self, now: Moment, out: &mut Vec<Effect>) {
        out.extend(self.link.beat(now).map(|seq| Effect::Beat { seq }));
        let trust = match self.doubt(now) {
            Some(Doubt::Unheard) => Trust::None,
            Some(Doubt::Unproven) => Trust::Heard,
            None => Trust::Since(self.fence.doubted()),
        };
        out.extend(self.own.drive(now, &self.me, trust));
        self.prove(now, out);
        if self.is_trustworthy_again(now) {
            out.extend(self.fence.resume());
        }
        let alone = self.peers().next().is_none();
        self.fence.watch_over_leases(now, alone, out);
        self.take_or_leave_the_bench(now, out);
        self.read_proofs(now, out);
        self.judge(now, out);
    }

    fn prove(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let Some(expects) = self.own.held() else {
            return;
        };
        let doubted = Some(self.fence.doubted()).filter(|_| !self.is_unheard(now));
        if self.proofs.is_due(now, doubted) {
            self.proofs.sent(now);
            out.push(Effect::Prove {
                sent_at: now,
                expects,
            });
        }
    }

    fn doubt(&self, now: Moment) -> Option<Doubt> {
        if self.is_unheard(now) {
            Some(Doubt::Unheard)
        } else if !self.proofs.is_younger(self.times.proof_limit.0, now) {
            Some(Doubt::Unproven)
        } else {
            None
        }
    }

    fn is_unheard(&self, now: Moment) -> bool {
        self.link
            .echo_age(now)
            .is_none_or(|age| age > self.times.echo_limit.0)
    }

    /// A proof that was accepted after all doubt says that nobody convicted this node; and nobody
    /// does for what was before, as its record has moved.
    fn is_trustworthy_again(&self, now: Moment) -> bool {
        let doubted = self.fence.doubted();
        let is_proved = self.proofs.newest().is_some_and(|proof| proof >= doubted);
        self.doubt(now).is_none() && is_proved && self.own.is_written_since(doubted)
    }

    /// Echoes further apart than this leave room for a peer to seem silent that was not.
    fn gap(&self) -> Duration {
        self.times.suspicion.0 / 2
    }

    fn written(&mut self, revision: Revision, standing: NodeStanding, out: &mut Vec<Effect>) {
        self.own.written(revision, standing);
        self.proofs.begin_anew();
        if standing.is_final() {
            self.exit(standing, out);
        }
    }

    fn found_own(
        &mut self,
        now: Moment,
        seen: Option<&Seen>,
        source: Source,
        out: &mut Vec<Effect>,
    ) {
        let is_final = seen.is_some_and(|seen| seen.standing.is_final());
        if !is_final && (source == Source::Watch || !self.own.is_reading()) {
            return;
        }
        match self.own.found(seen, now) {
            Found::Moved => self.proofs.begin_anew(),
            Found::Unmoved | Found::Missing => {}
            Found::Lost(standing) => self.exit(standing, out),
        }
    }

    fn exit(&mut self, standing: NodeStanding, out: &mut Vec<Effect>) {
        self.over = true;
        out.push(Effect::Exit { standing });
    }
}

fn just_after(from: Moment, limit: Duration) -> Moment {
    from + limit + Duration::from_millis(1)
}
