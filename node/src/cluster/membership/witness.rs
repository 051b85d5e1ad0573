//! Whether a peer's heartbeats are its own. Whoever may publish can send heartbeats in a dead
//! node's name, and so keep its sessions from being taken over. A proof of life needs the right to
//! write to the registry: a peer whose newest proof has not changed for `proof_limit` is no longer
//! believed. By that time it is suspended by its own account.
//!
//! Every node looks at the proofs of the two peers that come after it in the order of ids, so each
//! peer has two witnesses and the registry a read for each proof, however many nodes there are.

use std::{ops::Bound, time::Duration};

use planck_common::NodeId;

use super::{Effect, Membership, Record, Revision};
use crate::cluster::moment::Moment;

/// Peers that a node is a witness of.
const WATCHED: usize = 2;

/// When the proofs of others are read.
#[derive(Debug)]
pub struct Rounds {
    every: Duration,
    last: Option<Moment>,
}

impl Rounds {
    pub fn new(proof_every: Duration) -> Self {
        Self {
            every: proof_every * 2,
            last: None,
        }
    }

    /// Whether it is time, and if so begins a round.
    fn begin(&mut self, now: Moment) -> bool {
        let due = self.last.is_none_or(|last| now.since(last) >= self.every);
        if due {
            self.last = Some(now);
        }
        due
    }
}

/// What a judge knows of a peer's proofs.
#[derive(Debug, Default)]
pub struct Testimony {
    /// The newest proof, and when it was first seen.
    newest: Option<(Option<Revision>, Moment)>,
    void: bool,
}

impl Testimony {
    /// Whether the peer's heartbeats count for nothing.
    pub fn is_void(&self) -> bool {
        self.void
    }

    /// Takes a proof that was asked for at one moment and answered at another. How old it is counts
    /// between two answers: a registry that does not answer makes nobody suspect.
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
    /// A judge asks for the proofs of those whose witness it is.
    pub(super) fn read_proofs(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if self.judging.is_some() && self.rounds.begin(now) {
            let watched = self.watched().cloned().map(|node| Effect::ReadProof {
                node,
                asked_at: now,
            });
            out.extend(watched.collect::<Vec<_>>());
        }
    }

    pub(super) fn watched(&self) -> impl Iterator<Item = &NodeId> {
        let after = self
            .peers
            .range::<NodeId, _>((Bound::Excluded(&self.me), Bound::Unbounded));
        let around = after.chain(self.peers.range::<NodeId, _>(..&self.me));
        around
            .filter(|(_, peer)| matches!(peer.record, Record::At(_)))
            .map(|(node, _)| node)
            .take(WATCHED)
    }

    pub(super) fn witness(
        &mut self,
        now: Moment,
        node: &NodeId,
        asked_at: Moment,
        proof: Option<Revision>,
    ) {
        // What was asked before this node left the bench and came back says too little.
        if self.judging.is_none_or(|judging| asked_at < judging) {
            return;
        }
        let limit = self.times.proof_limit.0;
        if let Some(peer) = self.peers.get_mut(node) {
            peer.testimony.take(proof, asked_at, now, limit);
        }
    }

    /// One who may not judge does not know how long proofs have been old.
    pub(super) fn forget_proofs(&mut self) {
        self.peers
            .values_mut()
            .for_each(|peer| peer.testimony = Testimony::default());
    }
}
