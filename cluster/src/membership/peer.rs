//! What a node knows about a peer, and whether the peer's heartbeats are its own.

use std::time::Duration;

use planck_common::{NodeId, registry::NodeStanding};

use super::{Membership, MembershipEffect, Revision, SeenNode, watching::Watch};
use crate::moment::Moment;

/// The record of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerRecord {
    Unread,
    Missing,
    At(Revision),
    /// The peer left or died, which is final.
    Gone(NodeStanding),
    /// The peer is dead, but its record does not say that, because the registry lost the death.
    Revived(Revision),
}

/// The times since which a node can judge its peers.
#[derive(Debug, Clone, Copy)]
pub struct Observer {
    /// Since when the node would have received the heartbeats of a living peer.
    pub sound: Moment,
    /// Since when the node may declare peers dead.
    pub observing: Moment,
}

/// Another node.
#[derive(Debug)]
pub struct Peer {
    pub record: PeerRecord,
    pub heard: Option<Moment>,
    loaded: Option<Moment>,
    pub suspected_at: Option<Moment>,
    /// How this node watches the peer, or `None` if it does not.
    pub watch: Option<Watch>,
    /// When to stop waiting for an answer about the peer.
    pub busy_until: Option<Moment>,
    /// The peer's proofs of life. If the newest one is too old, the peer's heartbeats do not count.
    pub proofs: ProofHistory,
}

impl Peer {
    pub fn new() -> Self {
        Self {
            record: PeerRecord::Unread,
            heard: None,
            loaded: None,
            suspected_at: None,
            watch: None,
            busy_until: None,
            proofs: ProofHistory::default(),
        }
    }

    pub fn is_gone(&self) -> bool {
        matches!(self.record, PeerRecord::Gone(_) | PeerRecord::Revived(_))
    }

    pub fn may_be_suspected(&self) -> bool {
        self.watch.is_some() && self.suspected_at.is_none() && !self.is_gone()
    }

    pub fn is_suspect(&self) -> bool {
        self.watch.is_some()
            && (self.suspected_at.is_some() || matches!(self.record, PeerRecord::Revived(_)))
    }

    pub fn is_audible(&self) -> bool {
        self.may_be_suspected() && self.heard.is_some()
    }

    pub fn is_busy(&self, now: Moment) -> bool {
        self.busy_until.is_some_and(|until| now < until)
    }

    pub fn hear(&mut self, now: Moment) {
        self.heard = Some(now);
    }

    /// Records when the peer's record was first loaded, or first loaded since this node became an
    /// observer. If the observer has received no heartbeat that counts, the peer's silence begins
    /// at that time.
    pub fn load(&mut self, now: Moment, observing: Option<Moment>) {
        if self.loaded.is_none() || self.loaded < observing {
            self.loaded = Some(now);
        }
    }

    /// Returns the time from which the peer's silence counts. That is the time of the last
    /// heartbeat if the observer was sound then. Otherwise it is the time at which the record was
    /// loaded, if the observer could declare peers dead then. It never begins before the observer
    /// watched the peer.
    pub fn silent_since(&self, observer: Observer) -> Option<Moment> {
        let watched = self.watch.as_ref()?.since?;
        let heard = self
            .heard
            .filter(|heard| *heard >= observer.sound.max(watched));
        let loaded = || self.loaded.filter(|loaded| *loaded >= observer.observing);
        heard.or_else(|| loaded().map(|loaded| loaded.max(watched)))
    }

    /// Updates `record` from the record that was read, or from its absence. A record that the peer
    /// has written again shows, like a proof, that the peer may write to the registry, so its
    /// heartbeats count again.
    pub fn read(&mut self, seen: Option<&SeenNode>) {
        let is_new = |seen: &&SeenNode| self.record != PeerRecord::At(seen.revision);
        if seen.filter(is_new).is_some() {
            self.proofs = ProofHistory::default();
        }
        self.record = match (self.record, seen) {
            (PeerRecord::Gone(NodeStanding::Dead) | PeerRecord::Revived(_), Some(seen))
                if !seen.standing.is_final() =>
            {
                PeerRecord::Revived(seen.revision)
            }
            (gone @ PeerRecord::Gone(_), _) => gone,
            (PeerRecord::Revived(_), _) => PeerRecord::Gone(NodeStanding::Dead),
            (_, Some(seen)) if seen.standing.is_final() => PeerRecord::Gone(seen.standing),
            (_, Some(seen)) => PeerRecord::At(seen.revision),
            (_, None) => PeerRecord::Missing,
        };
    }
}

// Checks whether a peer's heartbeats are its own. Any client with the right to publish can send
// heartbeats in a dead node's name, and so keep its sessions from being taken over. A proof of
// life needs the right to write to the registry. The heartbeats of a peer no longer count once its
// newest proof has not changed for `proof_limit`. By that time a living peer has suspended itself.
// They count again once it has proved its life or written its record again.
//
// The two highest-ranking watchers of a peer read its proofs, so the number of reads does not grow
// faster than the number of nodes.

/// The number of watchers of a peer that read its proofs.
const WITNESSES: usize = 2;

/// The times at which a node reads the proofs of its peers.
#[derive(Debug)]
pub struct ProofRounds {
    every: Duration,
    last: Option<Moment>,
}

impl ProofRounds {
    pub fn new(proof_every: Duration) -> Self {
        Self {
            every: proof_every * 2,
            last: None,
        }
    }

    /// Begins a round if one is due. Returns whether one began.
    fn begin(&mut self, now: Moment) -> bool {
        let due = self.last.is_none_or(|last| now.since(last) >= self.every);
        if due {
            self.last = Some(now);
        }
        due
    }
}

/// What an observer knows about a peer's proofs.
#[derive(Debug, Default)]
pub struct ProofHistory {
    /// The newest proof, and when it was first seen.
    newest: Option<(Option<Revision>, Moment)>,
    void: bool,
}

impl ProofHistory {
    /// Returns whether the peer's heartbeats do not count.
    pub fn is_void(&self) -> bool {
        self.void
    }

    /// Records a proof that was requested at `asked_at` and received at `now`. The age of a proof
    /// is measured from the answer that first showed it to a later request, so a registry that does
    /// not answer makes no peer suspect.
    fn take(&mut self, proof: Option<Revision>, asked_at: Moment, now: Moment, limit: Duration) {
        match self.newest {
            Some((known, since)) if known == proof => {
                self.void = asked_at >= since && asked_at.since(since) > limit
            }
            Some(_) | None => {
                *self = Self {
                    newest: Some((proof, now)),
                    void: false,
                }
            }
        }
    }
}

impl Membership {
    /// Requests the proofs of the peers whose witness this node is, if it is an observer and a round
    /// is due.
    pub(super) fn read_proofs(&mut self, now: Moment, out: &mut Vec<MembershipEffect>) {
        if self.observing.is_some() && self.duties.rounds.begin(now) {
            let witnessed =
                self.witnessed_peers()
                    .cloned()
                    .map(|node| MembershipEffect::ReadProof {
                        node,
                        asked_at: now,
                    });
            out.extend(witnessed.collect::<Vec<_>>());
        }
    }

    pub(super) fn witnessed_peers(&self) -> impl Iterator<Item = &NodeId> {
        let is_witness = |watch: &Watch| {
            watch
                .watchers
                .iter()
                .take(WITNESSES)
                .any(|node| *node == self.me)
        };
        let witnessed = move |peer: &Peer| {
            matches!(peer.record, PeerRecord::At(_)) && peer.watch.as_ref().is_some_and(is_witness)
        };
        let peers = self.watched().filter(move |(_, peer)| witnessed(peer));
        peers.map(|(node, _)| node)
    }

    pub(super) fn proof_read(
        &mut self,
        now: Moment,
        node: &NodeId,
        asked_at: Moment,
        proof: Option<Revision>,
    ) {
        // A request from before this node became an observer does not show the proof's age.
        if self.observing.is_none_or(|observing| asked_at < observing) {
            return;
        }
        let limit = self.times.proof_limit;
        if let Some(peer) = self.peers.get_mut(node) {
            peer.proofs.take(proof, asked_at, now, limit);
        }
    }

    /// Forgets what is known about the proofs of the watched peers, because their ages are measured
    /// only while this node is an observer.
    pub(super) fn forget_proofs(&mut self) {
        for node in &self.duties.watched {
            if let Some(peer) = self.peers.get_mut(node) {
                peer.proofs = ProofHistory::default();
            }
        }
    }
}
