//! Chooses the peers that this node watches. The node receives the heartbeats of these peers only, and
//! judges no others. It learns from the registry what the watchers of the others decide.

use std::collections::{BTreeMap, BTreeSet};

use planck_common::NodeId;

use super::{
    Membership, MembershipEffect, Peer, PeerRecord,
    peer::{ProofHistory, ProofRounds},
};
use crate::{moment::Moment, watchers::watched};

/// How this node watches a peer.
#[derive(Debug)]
pub struct Watch {
    /// Since when the peer's heartbeats reach this node, or `None` until the subscription is
    /// active.
    pub since: Option<Moment>,
    /// The nodes that watch the peer, the highest-ranking one first.
    pub watchers: Vec<NodeId>,
}

/// The peers that this node watches, and when it reads their proofs.
#[derive(Debug)]
pub struct WatchDuties {
    /// When this node reads proofs.
    pub rounds: ProofRounds,
    /// The peers that this node watches.
    pub watched: BTreeSet<NodeId>,
    /// Whether a node has become known, silent, heard again or gone since the watched peers were
    /// chosen.
    pub is_outdated: bool,
}

impl Membership {
    /// Chooses the peers to watch again if a node has become known, silent, heard again or gone. A
    /// silent peer watches nothing as far as this node knows, so that this node watches more peers
    /// if many are silent at once.
    pub(super) fn choose_watched(&mut self, out: &mut Vec<MembershipEffect>) {
        if !std::mem::take(&mut self.duties.is_outdated) {
            return;
        }
        let watchers = self.peers.iter().filter(|(_, peer)| peer.can_watch());
        let peers = self.peers.iter().filter(|(_, peer)| peer.can_be_watched());
        let chosen = watched(
            &self.me,
            watchers.map(|(node, _)| node),
            peers.map(|(node, _)| node),
        );
        let mut chosen: BTreeMap<_, _> = chosen.into_iter().collect();
        for (node, peer) in &mut self.peers {
            let node = node.clone();
            match (chosen.remove(&node), &mut peer.watch) {
                (Some(watchers), Some(watch)) => watch.watchers = watchers,
                (Some(watchers), None) => {
                    self.duties.watched.insert(node.clone());
                    peer.proofs = ProofHistory::default();
                    peer.watch = Some(Watch {
                        since: None,
                        watchers,
                    });
                    out.push(MembershipEffect::Watch { node });
                }
                (None, Some(_)) => {
                    self.duties.watched.remove(&node);
                    (peer.watch, peer.suspected_at) = (None, None);
                    out.push(MembershipEffect::Unwatch { node });
                }
                (None, None) => {}
            }
        }
    }

    /// Returns the peers that this node watches. Work that is repeated with each input looks at these
    /// only, because there may be many others.
    pub(super) fn watched(&self) -> impl Iterator<Item = (&NodeId, &Peer)> {
        let watched = self.duties.watched.iter();
        watched.filter_map(|node| Some((node, self.peers.get(node)?)))
    }

    pub(super) fn watches(&mut self, now: Moment, node: &NodeId) {
        if let Some(watch) = self
            .peers
            .get_mut(node)
            .and_then(|peer| peer.watch.as_mut())
        {
            watch.since.get_or_insert(now);
        }
    }

    /// Returns how many watchers of a peer come before this one in the order of ids, without those
    /// that this node knows to be silent.
    pub(super) fn watchers_before_me(&self, watch: &Watch) -> usize {
        let is_there = |node: &&NodeId| {
            let peer = self.peers.get(*node);
            peer.is_some_and(|peer| match peer.watch {
                Some(_) => peer.is_audible(),
                None => !peer.is_gone(),
            })
        };
        let before = watch.watchers.iter().filter(|node| **node < self.me);
        before.filter(is_there).count()
    }
}

impl Peer {
    fn can_watch(&self) -> bool {
        !self.is_gone() && self.suspected_at.is_none()
    }

    /// Returns whether the peer may have to be declared dead.
    fn can_be_watched(&self) -> bool {
        !matches!(self.record, PeerRecord::Gone(_))
    }
}
