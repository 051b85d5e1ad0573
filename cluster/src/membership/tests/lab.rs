//! The membership of one node with a simulated clock, NATS link and peers.

use std::collections::BTreeMap;

use planck_common::NodeId;

use super::super::*;
use super::ME;

/// A node whose heartbeats come back and whose proofs are accepted, unless a test changes that.
pub struct Lab {
    me: NodeId,
    pub node: Membership,
    pub now: u64,
    /// The effects that the node requested, with their times in milliseconds, except heartbeats and
    /// proofs.
    pub asked: Vec<(u64, MembershipEffect)>,
    pub proofs: Vec<(u64, Revision)>,
    pub echoes: bool,
    pub proof: Answer,
    pub sql: bool,
    /// Whether the next write of the node's record fails.
    pub loses_write: bool,
    /// The nodes' records in the registry.
    pub records: BTreeMap<NodeId, SeenNode>,
    /// The nodes that send a heartbeat every half second.
    pub beating: Vec<NodeId>,
    /// The nodes that no longer write proofs.
    pub proofless: Vec<NodeId>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Answer {
    Committed,
    RefusedOnce,
    None,
}

pub fn id(name: &str) -> NodeId {
    NodeId::parse(name).unwrap()
}

pub fn seen(revision: Revision, standing: NodeStanding, nonce: &str) -> SeenNode {
    SeenNode {
        revision,
        standing,
        nonce: nonce.into(),
        silent: None,
    }
}

pub fn died(quiet_since: u64) -> PeerNews {
    PeerNews::Died {
        quiet_since: Moment::from_millis(quiet_since),
    }
}

impl Lab {
    /// Creates a lab and runs it to 10 s, while all peers send heartbeats.
    pub fn settled(peers: &[&str]) -> Self {
        let mut lab = Self::new(peers);
        lab.until(10_000);
        lab.asked.clear();
        lab
    }

    pub fn new(peers: &[&str]) -> Self {
        Self::of(ME, peers)
    }

    pub fn of(me: &str, peers: &[&str]) -> Self {
        let identity = NodeIdentity {
            node: id(me),
            nonce: "mine".into(),
        };
        let node = Membership::new(identity, ClusterTimes::default(), Moment::from_millis(0));
        let records = peers
            .iter()
            .map(|peer| (id(peer), seen(7, NodeStanding::Alive, peer)))
            .collect();
        let beating = peers.iter().map(|peer| id(peer)).collect();
        let (asked, proofs) = (Vec::new(), Vec::new());
        Self {
            me: id(me),
            node,
            now: 0,
            asked,
            proofs,
            echoes: true,
            proof: Answer::Committed,
            sql: true,
            loses_write: false,
            records,
            beating,
            proofless: Vec::new(),
        }
    }

    pub fn silence(&mut self, peer: &str) {
        self.beating.retain(|beating| *beating != id(peer));
    }

    pub fn tell(&mut self, input: MembershipInput) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for effect in self.node.on(Moment::from_millis(self.now), input) {
                inputs.extend(self.perform(effect));
            }
        }
    }

    /// Runs the node until `end`, with its wake-ups and the heartbeats of its peers.
    pub fn until(&mut self, end: u64) {
        self.tell(MembershipInput::Woken);
        while self.now < end {
            let beat = (self.now / 500 + 1) * 500;
            let wake = self.node.next_wake().as_millis();
            assert!(wake > self.now, "it would be woken at {wake} for ever");
            self.now = wake.min(beat).min(end);
            self.tell(MembershipInput::Woken);
            if self.now == beat {
                for peer in self.beating.clone() {
                    self.tell(MembershipInput::Heartbeat {
                        node: peer,
                        seq: beat,
                    });
                }
            }
        }
    }

    pub fn perform(&mut self, effect: MembershipEffect) -> Option<MembershipInput> {
        let me = self.me.clone();
        let own = || me.clone();
        let answer = match &effect {
            MembershipEffect::Beat { seq } => {
                return self.echoes.then_some(MembershipInput::Heartbeat {
                    node: own(),
                    seq: *seq,
                });
            }
            MembershipEffect::Prove { sent_at, expects } => {
                self.proofs.push((self.now, *expects));
                return match self.proof {
                    Answer::Committed => {
                        Some(MembershipInput::ProofCommitted { sent_at: *sent_at })
                    }
                    Answer::RefusedOnce => {
                        self.proof = Answer::Committed;
                        Some(MembershipInput::ProofRefused { sent_at: *sent_at })
                    }
                    Answer::None => None,
                };
            }
            MembershipEffect::Write { .. } if std::mem::take(&mut self.loses_write) => {
                Some(MembershipInput::NotWritten)
            }
            MembershipEffect::Write { standing, .. } => {
                let revision = 100 + self.now;
                self.records
                    .insert(own(), seen(revision, *standing, "mine"));
                Some(MembershipInput::Written {
                    revision,
                    standing: *standing,
                })
            }
            MembershipEffect::Read { node } => {
                let seen = self.records.get(node).cloned();
                Some(MembershipInput::Record {
                    node: node.clone(),
                    seen,
                    source: ReadSource::Leader,
                })
            }
            MembershipEffect::ReadProof { node, asked_at } => {
                let proof = if self.proofless.contains(node) {
                    1
                } else {
                    1_000 + self.now / 2_000
                };
                return Some(MembershipInput::Proof {
                    node: node.clone(),
                    asked_at: *asked_at,
                    proof: Some(proof),
                });
            }
            MembershipEffect::Watch { node } => {
                return Some(MembershipInput::Watching { node: node.clone() });
            }
            MembershipEffect::Unwatch { .. } => return None,
            MembershipEffect::ReadAll => Some(MembershipInput::Records(
                self.records.clone().into_iter().collect(),
            )),
            MembershipEffect::CheckLeases { asked_at } => {
                self.sql.then_some(MembershipInput::LeasesChecked {
                    asked_at: *asked_at,
                })
            }
            MembershipEffect::DeclareDead { node, .. } => {
                Some(MembershipInput::DeclaredDead { node: node.clone() })
            }
            MembershipEffect::KillTools
            | MembershipEffect::Suspend { .. }
            | MembershipEffect::Resume
            | MembershipEffect::Peer { .. }
            | MembershipEffect::Exit { .. } => None,
        };
        self.asked.push((self.now, effect));
        answer
    }

    /// Returns the requested effects without their times, except reads of all records.
    pub fn what(&self) -> Vec<MembershipEffect> {
        self.asked
            .iter()
            .map(|(_, effect)| effect.clone())
            .filter(|effect| *effect != MembershipEffect::ReadAll)
            .collect()
    }

    pub fn when(&self, wanted: impl Fn(&MembershipEffect) -> bool) -> Vec<u64> {
        self.asked
            .iter()
            .filter(|(_, effect)| wanted(effect))
            .map(|(at, _)| *at)
            .collect()
    }

    pub fn deaths(&self) -> Vec<u64> {
        self.when(|effect| matches!(effect, MembershipEffect::DeclareDead { .. }))
    }
}

pub fn suspends(effect: &MembershipEffect) -> bool {
    matches!(effect, MembershipEffect::Suspend { .. })
}

pub fn resumes(effect: &MembershipEffect) -> bool {
    matches!(effect, MembershipEffect::Resume)
}
