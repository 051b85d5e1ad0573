//! Checks whether a peer's heartbeats are its own. Any client with the right to publish can send
//! heartbeats in a dead node's name, and so keep its sessions from being taken over. A proof of
//! life needs the right to write to the registry. The heartbeats of a peer no longer count once its
//! newest proof has not changed for `proof_limit`. By that time a living peer has suspended itself.
//! They count again once it has proved its life or written its record again.
//!
//! Each node reads the proofs of the two peers that follow it in the order of ids. So two nodes
//! watch each peer, and the number of reads does not grow faster than the number of nodes.

use std::{ops::Bound, time::Duration};

use planck_common::NodeId;

use super::{Membership, MembershipEffect, PeerRecord, Revision};
use crate::moment::Moment;

/// The number of peers whose proofs a node reads.
const WATCHED: usize = 2;

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
    /// Requests the proofs of the peers that this node watches, if it is an observer and a round is
    /// due.
    pub(super) fn read_proofs(&mut self, now: Moment, out: &mut Vec<MembershipEffect>) {
        if self.observing.is_some() && self.rounds.begin(now) {
            let watched = self
                .watched_peers()
                .cloned()
                .map(|node| MembershipEffect::ReadProof {
                    node,
                    asked_at: now,
                });
            out.extend(watched.collect::<Vec<_>>());
        }
    }

    pub(super) fn watched_peers(&self) -> impl Iterator<Item = &NodeId> {
        let after = self
            .peers
            .range::<NodeId, _>((Bound::Excluded(&self.me), Bound::Unbounded));
        let around = after.chain(self.peers.range::<NodeId, _>(..&self.me));
        around
            .filter(|(_, peer)| matches!(peer.record, PeerRecord::At(_)))
            .map(|(node, _)| node)
            .take(WATCHED)
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

    /// Forgets what is known about the proofs of all peers, because their ages are measured only
    /// while this node is an observer.
    pub(super) fn forget_proofs(&mut self) {
        self.peers
            .values_mut()
            .for_each(|peer| peer.proofs = ProofHistory::default());
    }
}
