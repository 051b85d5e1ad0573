//! **Pure**: which nodes watch which. A node is watched by the nodes that rank highest for it, so
//! the number of heartbeats that are delivered grows with the number of nodes and not with its
//! square. Every node computes the same ranks from the same ids, so nodes need not tell each other
//! what they watch.

use std::cmp::Reverse;

use planck_common::NodeId;

use crate::planted::{PlantedFault, is_planted};

/// The number of nodes that watch a node. In a cluster of at most one node more, all nodes watch
/// each other. If a share `f` of the nodes dies at once, all watchers of a dead node died with it
/// with probability `f` to the power of this number, which costs that node a second round of
/// detection.
pub const WATCHERS: usize = 8;

/// A peer that a node watches, and all nodes that watch this peer, the highest-ranking one first.
pub type Watched = (NodeId, Vec<NodeId>);

/// Returns those of `peers` that `me` watches, if the nodes that can watch are `me` and `watchers`.
/// With a smaller set of watchers `me` watches the same peers and perhaps more.
pub fn watched<'a>(
    me: &'a NodeId,
    watchers: impl IntoIterator<Item = &'a NodeId>,
    peers: impl IntoIterator<Item = &'a NodeId>,
) -> Vec<Watched> {
    if is_planted(PlantedFault::NoneWatched) {
        return Vec::new();
    }
    let watchers: Vec<(u64, &NodeId)> = watchers
        .into_iter()
        .filter(|node| *node != me)
        .map(|node| (digest(node), node))
        .collect();
    let mine = (digest(me), me);
    let watch = |peer: &NodeId| {
        let of = digest(peer);
        let others = || watchers.iter().filter(|(_, node)| *node != peer);
        let rank = |&(watcher, node): &(u64, &'a NodeId)| (rank(watcher, of), node);
        let own = rank(&mine);
        // Most peers are decided after a few steps, because few nodes rank among the highest.
        let higher = others().filter(|other| rank(other) > own).take(WATCHERS);
        if higher.count() == WATCHERS {
            return None;
        }
        let mut all: Vec<_> = others().chain([&mine]).map(rank).collect();
        all.sort_unstable_by_key(|rank| Reverse(*rank));
        all.truncate(WATCHERS);
        let all = all.into_iter().map(|(_, node)| node.clone()).collect();
        Some((peer.clone(), all))
    };
    let others = peers.into_iter().filter(|peer| *peer != me);
    others.filter_map(watch).collect()
}

/// Returns the FNV-1a hash of an id. All versions of Planck must compute the same one.
fn digest(node: &NodeId) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    node.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Returns the rank of a watcher for a peer, from their digests. The two are mixed by the finalizer
/// of MurmurHash3, which maps different numbers to different ones, so ranks are equal only if
/// digests are.
fn rank(watcher: u64, peer: u64) -> u64 {
    let mixed = watcher ^ peer.rotate_left(32);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}

#[cfg(test)]
mod tests;
