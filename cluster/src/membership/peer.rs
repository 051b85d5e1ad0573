//! What a node knows about a peer.

use planck_common::registry::NodeStanding;

use super::{
    input::{Revision, SeenNode},
    peer_proofs::ProofHistory,
};
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
            busy_until: None,
            proofs: ProofHistory::default(),
        }
    }

    pub fn is_gone(&self) -> bool {
        matches!(self.record, PeerRecord::Gone(_) | PeerRecord::Revived(_))
    }

    pub fn may_be_suspected(&self) -> bool {
        self.suspected_at.is_none() && !self.is_gone()
    }

    pub fn is_suspect(&self) -> bool {
        self.suspected_at.is_some() || matches!(self.record, PeerRecord::Revived(_))
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
    /// loaded, if the observer could declare peers dead then.
    pub fn silent_since(&self, observer: Observer) -> Option<Moment> {
        let heard = self.heard.filter(|heard| *heard >= observer.sound);
        heard.or_else(|| self.loaded.filter(|loaded| *loaded >= observer.observing))
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
