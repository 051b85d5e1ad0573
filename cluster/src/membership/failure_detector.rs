//! The failure detector. It decides when this node is an observer, when a silent peer becomes
//! suspect, and when to declare that peer dead.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use planck_common::{NodeId, registry::NodeStanding};

use super::{
    Membership, MembershipEffect, Peer, PeerNews, PeerRecord, ReadSource, Revision, SeenNode,
    just_after,
    peer::Observer,
    watching::{Watch, WatchDuties},
};
use crate::{
    moment::Moment,
    planted::{PlantedFault, is_planted},
};

/// The delay between two observers that would declare the same peer dead, so that most of the time
/// only the first one writes.
const STAGGER: Duration = Duration::from_millis(50);
/// The factor by which the required silence grows if most peers are silent at once, because the
/// cause is then probably the network and not the peers.
const MASS_SILENCE: u32 = 3;
/// How long nodes have to write their records into a new registry.
pub(crate) const REGISTRY_FILLS: Duration = Duration::from_secs(15);
/// How long to wait for an answer about a peer before the next request.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait before the next attempt after a declaration of death was refused or its outcome
/// stayed unknown.
const PATIENCE_AFTER_REFUSAL: Duration = Duration::from_millis(500);
/// The maximum number of nodes that are remembered after they left or died.
const GONE_REMEMBERED: usize = 1_000;

impl Membership {
    /// Updates whether this node is an observer. An observer is not suspended, knows the revision
    /// of its record, has a recent proof, and has received its own heartbeats without a gap for
    /// `settle`. A node that becomes an observer requests all records. A node that lacks a
    /// recent proof or steady heartbeats, or is suspended, forgets what it knows about its peers'
    /// proofs.
    pub(super) fn update_observer(&mut self, now: Moment, out: &mut Vec<MembershipEffect>) {
        let proven =
            self.own.held().is_some() && self.proofs.is_younger(self.times.proof_fresh, now);
        let steady_since = self
            .link
            .steady_since()
            .filter(|_| proven && !self.suspension.is_suspended());
        let Some(steady_since) = steady_since else {
            (self.sound, self.observing) = (None, None);
            self.forget_proofs();
            return;
        };
        self.sound.get_or_insert(now);
        if self.observing.is_none() && now.since(steady_since) >= self.times.settle {
            self.observing = Some(now);
            out.push(MembershipEffect::ReadAll);
        }
    }

    fn observer(&self) -> Option<Observer> {
        Some(Observer {
            sound: self.sound?,
            observing: self.observing?,
        })
    }

    /// If this node is an observer, reports silent peers as suspect, and requests `DeclareDead` for
    /// each suspect that has been silent for long enough. For a suspect whose record was not read
    /// yet, requests the record instead.
    pub(super) fn detect(&mut self, now: Moment, out: &mut Vec<MembershipEffect>) {
        let (Some(observer), Some(own), Some(echo)) =
            (self.observer(), self.own.held(), self.echo(now))
        else {
            return;
        };
        let suspicion = self.times.suspicion;
        for node in &self.duties.watched {
            let Some(peer) = self.peers.get_mut(node) else {
                continue;
            };
            let is_silent = peer
                .silent_since(observer)
                .is_some_and(|since| echo.since(since) > suspicion);
            if is_silent && peer.may_be_suspected() {
                peer.suspected_at = Some(now);
                self.duties.is_outdated = true;
                out.push(MembershipEffect::Peer {
                    node: node.clone(),
                    news: PeerNews::Suspect,
                });
            }
        }
        let due = self.due_suspects().filter(|(_, at)| now >= *at);
        for node in due.map(|(node, _)| node.clone()).collect::<Vec<_>>() {
            self.declare_dead(now, node, observer, own, out);
        }
    }

    /// Returns the time up to which silence counts, which is when this node sent the newest
    /// heartbeat that came back to it. Messages that peers sent later may not have arrived yet.
    fn echo(&self, now: Moment) -> Option<Moment> {
        if is_planted(PlantedFault::SilenceBeyondEcho) {
            return Some(now);
        }
        self.link.echo()
    }

    pub(super) fn next_declaration(&self) -> Option<Moment> {
        self.due_suspects().map(|(_, at)| at).min()
    }

    pub(super) fn heard(&mut self, now: Moment, node: NodeId, out: &mut Vec<MembershipEffect>) {
        let peer = known(&mut self.peers, &mut self.duties, &node);
        if peer.is_gone() {
            return;
        }
        if peer.proofs.is_void() {
            return;
        }
        peer.hear(now);
        if peer.suspected_at.take().is_some() {
            self.duties.is_outdated = true;
            out.push(MembershipEffect::Peer {
                node: node.clone(),
                news: PeerNews::Back,
            });
        }
        if matches!(peer.record, PeerRecord::Unread | PeerRecord::Missing) {
            ask_about(peer, node, now, out);
        }
    }

    /// Handles the report that a node without a known record holds a lease. Requests the node's
    /// record, unless it was read before or an answer about the node is awaited.
    pub(super) fn leaseholder(
        &mut self,
        now: Moment,
        node: NodeId,
        out: &mut Vec<MembershipEffect>,
    ) {
        if node == self.me {
            return;
        }
        let peer = known(&mut self.peers, &mut self.duties, &node);
        if peer.record == PeerRecord::Unread {
            ask_about(peer, node, now, out);
        }
    }

    pub(super) fn read(
        &mut self,
        now: Moment,
        node: &NodeId,
        seen: Option<&SeenNode>,
        source: ReadSource,
        out: &mut Vec<MembershipEffect>,
    ) {
        let is_final = seen.is_some_and(|seen| seen.standing.is_final());
        let peer = known(&mut self.peers, &mut self.duties, node);
        if source == ReadSource::Watch && !is_final {
            match (peer.record, seen) {
                (PeerRecord::Unread, _) => ask_about(peer, node.clone(), now, out),
                // The registry would refuse a death that is written on condition of the old
                // revision. If all nodes read each record that changes, the reads would grow with
                // the square of the number of nodes, so only the watchers read it.
                (PeerRecord::At(known), Some(SeenNode { revision, .. })) if *revision > known => {
                    match peer.watch {
                        Some(_) => out.push(MembershipEffect::Read { node: node.clone() }),
                        None => peer.record = PeerRecord::At(*revision),
                    }
                }
                (
                    PeerRecord::At(_)
                    | PeerRecord::Missing
                    | PeerRecord::Gone(_)
                    | PeerRecord::Revived(_),
                    _,
                ) => {}
            }
            return;
        }
        let (was_gone, before) = (peer.is_gone(), peer.record);
        peer.read(seen);
        peer.load(now, self.observing);
        self.duties.is_outdated |= peer.record != before;
        if peer.is_gone() && !was_gone {
            let silent = seen.and_then(|seen| seen.silent).unwrap_or_default();
            let quiet_since = now
                .before(silent)
                .max(peer.heard.unwrap_or(now.before(silent)));
            let news = match peer.record {
                PeerRecord::Gone(NodeStanding::Left) => PeerNews::Left,
                PeerRecord::Gone(_)
                | PeerRecord::Revived(_)
                | PeerRecord::Unread
                | PeerRecord::Missing
                | PeerRecord::At(_) => PeerNews::Died { quiet_since },
            };
            out.push(MembershipEffect::Peer {
                node: node.clone(),
                news,
            });
            self.forget_the_oldest_gone();
        }
    }

    /// Handles the answer to `ReadAll`. A peer that is missing in the answer has no record.
    pub(super) fn read_all(
        &mut self,
        now: Moment,
        records: &[(NodeId, SeenNode)],
        out: &mut Vec<MembershipEffect>,
    ) {
        for (node, seen) in records {
            if *node == self.me {
                self.found_own(now, Some(seen), ReadSource::Leader, out);
            } else {
                self.read(now, node, Some(seen), ReadSource::Leader, out);
            }
        }
        let named: BTreeSet<&NodeId> = records.iter().map(|(node, _)| node).collect();
        for (node, peer) in &mut self.peers {
            if !named.contains(node) {
                let before = peer.record;
                peer.read(None);
                peer.load(now, self.observing);
                self.duties.is_outdated |= peer.record != before;
            }
        }
    }

    pub(super) fn declared_dead(
        &mut self,
        now: Moment,
        node: &NodeId,
        out: &mut Vec<MembershipEffect>,
    ) {
        let observer = self.observer();
        let Some(peer) = self.peers.get_mut(node) else {
            return;
        };
        let news = !peer.is_gone();
        peer.record = PeerRecord::Gone(NodeStanding::Dead);
        self.duties.is_outdated = true;
        if news {
            let quiet_since = observer
                .and_then(|observer| peer.silent_since(observer))
                .unwrap_or(now);
            out.push(MembershipEffect::Peer {
                node: node.clone(),
                news: PeerNews::Died { quiet_since },
            });
            self.forget_the_oldest_gone();
        }
    }

    pub(super) fn not_declared_dead(
        &mut self,
        now: Moment,
        node: NodeId,
        out: &mut Vec<MembershipEffect>,
    ) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.busy_until = Some(now + PATIENCE_AFTER_REFUSAL);
            out.push(MembershipEffect::Read { node });
        }
    }

    fn declare_dead(
        &mut self,
        now: Moment,
        node: NodeId,
        observer: Observer,
        own: Revision,
        out: &mut Vec<MembershipEffect>,
    ) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let expects = match peer.record {
            PeerRecord::At(revision) | PeerRecord::Revived(revision) => Some(revision),
            PeerRecord::Missing => None,
            PeerRecord::Unread => return ask_about(peer, node, now, out),
            PeerRecord::Gone(_) => return,
        };
        peer.busy_until = Some(now + PATIENCE);
        let silent = peer
            .silent_since(observer)
            .map(|since| now.since(since))
            .unwrap_or_default();
        out.push(MembershipEffect::DeclareDead {
            node,
            expects,
            own,
            silent,
        });
    }

    /// Returns the suspects that may be declared dead, each with the earliest time for that.
    fn due_suspects(&self) -> impl Iterator<Item = (&NodeId, Moment)> {
        let suspects = self.watched().filter(|(_, peer)| peer.is_suspect());
        suspects.filter_map(|(node, peer)| Some((node, self.declare_at(peer)?)))
    }

    fn declare_at(&self, peer: &Peer) -> Option<Moment> {
        let observer = self.observer()?;
        let at = match peer.record {
            PeerRecord::Gone(_) => return None,
            PeerRecord::Revived(_) => observer.observing,
            PeerRecord::Missing => self
                .silent_long_enough(peer, observer)?
                .max(self.registry_created? + REGISTRY_FILLS),
            PeerRecord::Unread | PeerRecord::At(_) => self.silent_long_enough(peer, observer)?,
        };
        Some(peer.busy_until.map_or(at, |until| at.max(until)))
    }

    /// Returns when the peer can be declared dead, or `None` if it is not known to have been silent
    /// for long enough.
    fn silent_long_enough(&self, peer: &Peer, observer: Observer) -> Option<Moment> {
        let enough = just_after(peer.silent_since(observer)?, self.patience(observer));
        let known = self.echo(enough)? >= enough;
        let watch = peer.watch.as_ref()?;
        known.then_some(peer.suspected_at?.max(enough) + self.stagger(watch))
    }

    fn patience(&self, observer: Observer) -> Duration {
        let watched = self.watched().map(|(_, peer)| peer);
        let present: Vec<&Peer> = watched.filter(|peer| !peer.is_gone()).collect();
        let silent = present
            .iter()
            .filter(|peer| peer.suspected_at.is_some() && peer.silent_since(observer).is_some())
            .count();
        let many = silent >= 2 && 2 * silent > present.len();
        self.times.suspicion * if many { MASS_SILENCE } else { 1 }
    }

    fn stagger(&self, watch: &Watch) -> Duration {
        let before_me = self.watchers_before_me(watch);
        STAGGER * u32::try_from(before_me).unwrap_or(u32::MAX)
    }

    fn forget_the_oldest_gone(&mut self) {
        let is_gone = |peer: &Peer| peer.is_gone() && peer.watch.is_none();
        let gone = || self.peers.iter().filter(|(_, peer)| is_gone(peer));
        if gone().count() > GONE_REMEMBERED
            && let Some(oldest) = gone()
                .min_by_key(|(_, peer)| peer.heard)
                .map(|(node, _)| node.clone())
        {
            self.peers.remove(&oldest);
        }
    }
}

/// Returns the entry of a peer, which is made if there is none.
fn known<'a>(
    peers: &'a mut BTreeMap<NodeId, Peer>,
    duties: &mut WatchDuties,
    node: &NodeId,
) -> &'a mut Peer {
    peers.entry(node.clone()).or_insert_with(|| {
        duties.is_outdated = true;
        Peer::new()
    })
}

fn ask_about(peer: &mut Peer, node: NodeId, now: Moment, out: &mut Vec<MembershipEffect>) {
    if !peer.is_busy(now) {
        peer.busy_until = Some(now + PATIENCE);
        out.push(MembershipEffect::Read { node });
    }
}
