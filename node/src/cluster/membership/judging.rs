//! Suspicion, then verdict: who may judge, when a silence is long enough, and what becomes of the
//! judged.

use std::time::Duration;

use planck_common::{NodeId, registry::NodeStanding};

use super::{
    Effect, Membership, News, Peer, Record, Revision, Seen, Source, just_after, peer::Bench,
};
use crate::cluster::moment::Moment;

/// Judges of one silent node come one after the other, so that one verdict is written and not as
/// many as there are judges.
const STAGGER: Duration = Duration::from_millis(50);
/// When so many are silent at once the fault is likely elsewhere, and they get this many times as
/// long.
const MASS_SILENCE: u32 = 3;
/// How long nodes have to write their records into a new registry.
const REGISTRY_FILLS: Duration = Duration::from_secs(15);
/// How long nothing more is done about a peer after something was asked.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same after a verdict was refused.
const PATIENCE_AFTER_REFUSAL: Duration = Duration::from_millis(500);
/// How many nodes are remembered that are gone.
const GONE_REMEMBERED: usize = 1_000;

impl Membership {
    /// A judge has proved its own life lately and hears itself without a gap; and all it heard
    /// before that is void.
    pub(super) fn take_or_leave_the_bench(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let proven =
            self.own.held().is_some() && self.proofs.is_younger(self.times.proof_fresh.0, now);
        let steady_since = self
            .link
            .steady_since()
            .filter(|_| proven && !self.fence.is_suspended());
        let Some(steady_since) = steady_since else {
            (self.sound, self.judging) = (None, None);
            self.forget_proofs();
            return;
        };
        self.sound.get_or_insert(now);
        if self.judging.is_none() && now.since(steady_since) >= self.times.settle.0 {
            self.judging = Some(now);
            out.push(Effect::ReadAll);
        }
    }

    fn bench(&self) -> Option<Bench> {
        Some(Bench {
            sound: self.sound?,
            judging: self.judging?,
        })
    }

    /// A silence is known up to the newest own heartbeat that came back: what was said after that
    /// may still be on its way.
    pub(super) fn judge(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let (Some(bench), Some(own), Some(echo)) =
            (self.bench(), self.own.held(), self.link.echo())
        else {
            return;
        };
        let suspicion = self.times.suspicion.0;
        for (node, peer) in self
            .peers
            .iter_mut()
            .filter(|(_, peer)| peer.may_be_suspected())
        {
            if peer
                .silent_since(bench)
                .is_some_and(|since| echo.since(since) > suspicion)
            {
                peer.suspected_at = Some(now);
                out.push(Effect::Peer {
                    node: node.clone(),
                    news: News::Suspect,
                });
            }
        }
        let due = self.verdicts().filter(|(_, at)| now >= *at);
        for node in due.map(|(node, _)| node.clone()).collect::<Vec<_>>() {
            self.convict(now, node, bench, own, out);
        }
    }

    pub(super) fn next_judgement(&self) -> Option<Moment> {
        self.verdicts().map(|(_, at)| at).min()
    }

    pub(super) fn heard(&mut self, now: Moment, node: NodeId, out: &mut Vec<Effect>) {
        let peer = self.peers.entry(node.clone()).or_insert_with(Peer::new);
        if peer.is_gone() {
            return;
        }
        if peer.testimony.is_void() {
            return;
        }
        peer.hear(now);
        if peer.suspected_at.take().is_some() {
            out.push(Effect::Peer {
                node: node.clone(),
                news: News::Back,
            });
        }
        if matches!(peer.record, Record::Unread | Record::Missing) {
            ask_about(peer, node, now, out);
        }
    }

    /// Without a lease nobody cares whether it lives; with one, somebody must find out.
    pub(super) fn leaseholder(&mut self, now: Moment, node: NodeId, out: &mut Vec<Effect>) {
        if node == self.me {
            return;
        }
        let peer = self.peers.entry(node.clone()).or_insert_with(Peer::new);
        if peer.record == Record::Unread {
            ask_about(peer, node, now, out);
        }
    }

    pub(super) fn read(
        &mut self,
        now: Moment,
        node: &NodeId,
        seen: Option<&Seen>,
        source: Source,
        out: &mut Vec<Effect>,
    ) {
        let is_final = seen.is_some_and(|seen| seen.standing.is_final());
        let peer = self.peers.entry(node.clone()).or_insert_with(Peer::new);
        if source == Source::Watch && !is_final {
            match (peer.record, seen) {
                (Record::Unread, _) => ask_about(peer, node.clone(), now, out),
                // A verdict on the old one would be refused.
                (Record::At(known), Some(Seen { revision, .. })) if *revision > known => {
                    out.push(Effect::Read { node: node.clone() })
                }
                (Record::At(_) | Record::Missing | Record::Gone(_) | Record::Risen(_), _) => {}
            }
            return;
        }
        let was_gone = peer.is_gone();
        peer.read(seen);
        peer.load(now, self.judging);
        if peer.is_gone() && !was_gone {
            let silent = seen.and_then(|seen| seen.silent).unwrap_or_default();
            let quiet_since = now
                .before(silent)
                .max(peer.heard.unwrap_or(now.before(silent)));
            let news = match peer.record {
                Record::Gone(NodeStanding::Left) => News::Left,
                Record::Gone(_)
                | Record::Risen(_)
                | Record::Unread
                | Record::Missing
                | Record::At(_) => News::Died { quiet_since },
            };
            out.push(Effect::Peer {
                node: node.clone(),
                news,
            });
            self.forget_the_oldest_gone();
        }
    }

    /// Peers that are not among all records have none.
    pub(super) fn read_all(
        &mut self,
        now: Moment,
        records: &[(NodeId, Seen)],
        out: &mut Vec<Effect>,
    ) {
        for (node, seen) in records {
            if *node == self.me {
                self.found_own(now, Some(seen), Source::Leader, out);
            } else {
                self.read(now, node, Some(seen), Source::Leader, out);
            }
        }
        for (node, peer) in &mut self.peers {
            if !records.iter().any(|(named, _)| named == node) {
                peer.read(None);
                peer.load(now, self.judging);
            }
        }
    }

    pub(super) fn convicted(&mut self, now: Moment, node: &NodeId, out: &mut Vec<Effect>) {
        let bench = self.bench();
        let Some(peer) = self.peers.get_mut(node) else {
            return;
        };
        let news = !peer.is_gone();
        peer.record = Record::Gone(NodeStanding::Dead);
        if news {
            let quiet_since = bench
                .and_then(|bench| peer.silent_since(bench))
                .unwrap_or(now);
            out.push(Effect::Peer {
                node: node.clone(),
                news: News::Died { quiet_since },
            });
            self.forget_the_oldest_gone();
        }
    }

    pub(super) fn not_convicted(&mut self, now: Moment, node: NodeId, out: &mut Vec<Effect>) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.busy_until = Some(now + PATIENCE_AFTER_REFUSAL);
            out.push(Effect::Read { node });
        }
    }

    fn convict(
        &mut self,
        now: Moment,
        node: NodeId,
        bench: Bench,
        own: Revision,
        out: &mut Vec<Effect>,
    ) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let expects = match peer.record {
            Record::At(revision) | Record::Risen(revision) => Some(revision),
            Record::Missing => None,
            Record::Unread => return ask_about(peer, node, now, out),
            Record::Gone(_) => return,
        };
        peer.busy_until = Some(now + PATIENCE);
        let silent = peer
            .silent_since(bench)
            .map(|since| now.since(since))
            .unwrap_or_default();
        out.push(Effect::Convict {
            node,
            expects,
            own,
            silent,
        });
    }

    /// Whom this node is to convict, and when, unless they are heard by then.
    fn verdicts(&self) -> impl Iterator<Item = (&NodeId, Moment)> {
        let accused = self.peers.iter().filter(|(_, peer)| peer.is_accused());
        accused.filter_map(|(node, peer)| Some((node, self.time_of_verdict(node, peer)?)))
    }

    fn time_of_verdict(&self, node: &NodeId, peer: &Peer) -> Option<Moment> {
        let bench = self.bench()?;
        let at = match peer.record {
            Record::Gone(_) => return None,
            Record::Risen(_) => bench.judging,
            Record::Missing => self
                .silent_long_enough(node, peer, bench)?
                .max(self.registry_created? + REGISTRY_FILLS),
            Record::Unread | Record::At(_) => self.silent_long_enough(node, peer, bench)?,
        };
        Some(peer.busy_until.map_or(at, |until| at.max(until)))
    }

    fn silent_long_enough(&self, node: &NodeId, peer: &Peer, bench: Bench) -> Option<Moment> {
        let enough = just_after(peer.silent_since(bench)?, self.patience(bench));
        let known = self.link.echo()? >= enough;
        known.then_some(peer.suspected_at?.max(enough) + self.stagger(node))
    }

    fn patience(&self, bench: Bench) -> Duration {
        let present = || self.peers.values().filter(|peer| !peer.is_gone());
        let silent = present()
            .filter(|peer| peer.suspected_at.is_some() && peer.silent_since(bench).is_some())
            .count();
        let many = silent >= 2 && 2 * silent > present().count();
        self.times.suspicion.0 * if many { MASS_SILENCE } else { 1 }
    }

    fn stagger(&self, node: &NodeId) -> Duration {
        let before_me = self
            .audible()
            .filter(|peer| **peer < self.me && *peer != node)
            .count();
        STAGGER * u32::try_from(before_me).unwrap_or(u32::MAX)
    }

    fn forget_the_oldest_gone(&mut self) {
        let gone = || self.peers.iter().filter(|(_, peer)| peer.is_gone());
        if gone().count() > GONE_REMEMBERED
            && let Some(oldest) = gone()
                .min_by_key(|(_, peer)| peer.heard)
                .map(|(node, _)| node.clone())
        {
            self.peers.remove(&oldest);
        }
    }
}

fn ask_about(peer: &mut Peer, node: NodeId, now: Moment, out: &mut Vec<Effect>) {
    if !peer.is_busy(now) {
        peer.busy_until = Some(now + PATIENCE);
        out.push(Effect::Read { node });
    }
}
