//! **Pure**: decides what a node does about itself and its peers. A node publishes heartbeats and
//! writes proofs of life, and suspends itself when either fails. It declares a silent peer dead if
//! its own link is steady. The caller performs the effects, and calls the state machine again at
//! `next_wake`.

mod failure_detector;
mod own;
mod peer;
mod watching;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use planck_common::{
    NodeId,
    registry::{NodeRecord, NodeStanding, Nonce},
};

use self::{
    own::{OwnLink, OwnRecord, OwnRecordState, Proofs, SelfTrust, Suspension},
    peer::{Peer, PeerRecord, ProofRounds},
    watching::WatchDuties,
};
use crate::{
    moment::Moment,
    planted::{PlantedFault, is_planted},
    times::ClusterTimes,
};

#[cfg(test)]
pub(crate) use self::{failure_detector::REGISTRY_FILLS, own::SQL_SILENCE};

/// The identity of a node. The nonce is part of each record that the node writes about itself.
#[derive(Debug, Clone)]
pub struct NodeIdentity {
    pub node: NodeId,
    pub nonce: Nonce,
}

/// The membership of one node in its cluster.
#[derive(Debug)]
pub struct Membership {
    me: NodeId,
    times: ClusterTimes,
    link: OwnLink,
    proofs: Proofs,
    own: OwnRecord,
    suspension: Suspension,
    peers: BTreeMap<NodeId, Peer>,
    /// Since when this node has had a recent proof, received its own heartbeats and not been
    /// suspended. Earlier heartbeats of peers do not count.
    sound: Option<Moment>,
    /// Since when this node may declare others dead.
    observing: Option<Moment>,
    duties: WatchDuties,
    registry_created: Option<Moment>,
    over: bool,
}

impl Membership {
    pub fn new(identity: NodeIdentity, times: ClusterTimes, now: Moment) -> Self {
        Self {
            me: identity.node,
            link: OwnLink::new(times.heartbeat, now),
            proofs: Proofs::new(times.proof_every),
            own: OwnRecord::new(identity.nonce),
            suspension: Suspension::new(now),
            peers: BTreeMap::new(),
            sound: None,
            observing: None,
            duties: WatchDuties {
                rounds: ProofRounds::new(times.proof_every),
                watched: BTreeSet::new(),
                is_outdated: false,
            },
            registry_created: None,
            over: false,
            times,
        }
    }

    /// Takes one input, and returns the effects in the order in which the caller must begin them.
    /// Handles the passage of time before the input, so that no input hides a pause of the process.
    pub fn on(&mut self, now: Moment, input: MembershipInput) -> Vec<MembershipEffect> {
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

    /// Returns the latest time at which `on` must be called again.
    pub fn next_wake(&self) -> Moment {
        let fence = [
            self.link
                .echo()
                .map(|echo| just_after(echo, self.times.echo_limit)),
            self.proofs
                .newest()
                .map(|proof| just_after(proof, self.proof_limit())),
        ];
        let fence = fence
            .into_iter()
            .flatten()
            .filter(|_| !self.suspension.is_suspended());
        let proof = self.proofs.next().filter(|_| self.own.held().is_some());
        let others = [
            proof,
            self.own.deadline(),
            self.suspension.deadline(),
            self.next_declaration(),
        ];
        others
            .into_iter()
            .flatten()
            .chain(fence)
            .fold(self.link.next_beat(), Moment::min)
    }

    /// Returns whether a model call, a tool or the work on an input may begin now.
    pub fn may_act(&self, now: Moment) -> bool {
        !self.over && !self.suspension.is_suspended() && self.doubt(now).is_none()
    }

    /// Returns until when new work may begin without further inputs, or `None` if it may not begin
    /// now.
    pub fn may_act_until(&self, now: Moment) -> Option<Moment> {
        let (echo, proof) = (self.link.echo()?, self.proofs.newest()?);
        let until = (echo + self.times.echo_limit).min(proof + self.proof_limit());
        self.may_act(now).then_some(until)
    }

    /// Returns the peers that are not known to have left or died.
    pub fn peers(&self) -> impl Iterator<Item = &NodeId> {
        self.peers
            .iter()
            .filter(|(_, peer)| !peer.is_gone())
            .map(|(node, _)| node)
    }

    /// Returns whether a node left or died, or `None` if no record of it is known.
    #[cfg(test)]
    pub fn is_gone(&self, node: &NodeId) -> Option<bool> {
        match self.peers.get(node)?.record {
            PeerRecord::Unread | PeerRecord::Missing => None,
            PeerRecord::At(_) => Some(false),
            PeerRecord::Gone(_) | PeerRecord::Revived(_) => Some(true),
        }
    }

    fn notice_time(&mut self, now: Moment, out: &mut Vec<MembershipEffect>) {
        self.link.notice_gap(now, self.gap());
        if self.is_unheard(now) {
            self.suspension.doubt(now);
        }
        if let Some(why) = self.doubt(now) {
            out.extend(self.suspension.suspend(now, why));
        }
        self.update_observer(now, out);
    }

    fn take(&mut self, now: Moment, input: MembershipInput, out: &mut Vec<MembershipEffect>) {
        match input {
            MembershipInput::Woken => {}
            MembershipInput::Heartbeat { node, seq } if node == self.me => {
                self.link.came_back(seq, now)
            }
            MembershipInput::Heartbeat { node, .. } => self.heard(now, node, out),
            MembershipInput::ProofCommitted { sent_at } => self.proofs.committed(sent_at),
            MembershipInput::ProofUnknown { sent_at } => {
                self.proofs.answered(sent_at);
            }
            MembershipInput::ProofRefused { sent_at } => {
                if self.proofs.answered(sent_at) {
                    self.own.question(now);
                }
            }
            MembershipInput::Written { revision, standing } => {
                self.written(revision, standing, out)
            }
            MembershipInput::NotWritten => self.own.question(now),
            MembershipInput::Record { node, seen, source } if node == self.me => {
                self.found_own(now, seen.as_ref(), source, out)
            }
            MembershipInput::Record { node, seen, source } => {
                self.read(now, &node, seen.as_ref(), source, out)
            }
            MembershipInput::Proof {
                node,
                asked_at,
                proof,
            } => self.proof_read(now, &node, asked_at, proof),
            MembershipInput::Records(records) => self.read_all(now, &records, out),
            MembershipInput::Watching { node } => self.watches(now, &node),
            MembershipInput::DeclaredDead { node } => self.declared_dead(now, &node, out),
            MembershipInput::NotDeclaredDead { node } => self.not_declared_dead(now, node, out),
            MembershipInput::Leaseholder { node } => self.leaseholder(now, node, out),
            MembershipInput::LeasesChecked { asked_at } => {
                self.suspension.leases_checked(asked_at);
                self.own.leases_checked(asked_at);
            }
            MembershipInput::RegistryCreated { at } => self.registry_created = Some(at),
            MembershipInput::Drain => self.own.want(NodeStanding::Draining),
            MembershipInput::Leave => self.own.want(NodeStanding::Left),
        }
    }

    fn go_on(&mut self, now: Moment, out: &mut Vec<MembershipEffect>) {
        out.extend(
            self.link
                .beat(now)
                .map(|seq| MembershipEffect::Beat { seq }),
        );
        let trust = match self.doubt(now) {
            Some(SuspensionCause::Unheard) => SelfTrust::None,
            Some(SuspensionCause::Unproven) => SelfTrust::Unproven,
            None => SelfTrust::Since(self.suspension.doubted()),
        };
        out.extend(self.own.drive(now, &self.me, trust));
        self.prove(now, out);
        if self.is_trustworthy_again(now) {
            out.extend(self.suspension.resume());
        }
        let alone = self.peers().next().is_none();
        self.suspension.watch_over_leases(now, alone, out);
        self.update_observer(now, out);
        self.read_proofs(now, out);
        self.detect(now, out);
        self.choose_watched(out);
    }

    fn prove(&mut self, now: Moment, out: &mut Vec<MembershipEffect>) {
        let Some(expects) = self.own.held() else {
            return;
        };
        let doubted = Some(self.suspension.doubted()).filter(|_| !self.is_unheard(now));
        if self.proofs.is_due(now, doubted) {
            self.proofs.sent(now);
            out.push(MembershipEffect::Prove {
                sent_at: now,
                expects,
            });
        }
    }

    fn doubt(&self, now: Moment) -> Option<SuspensionCause> {
        if self.is_unheard(now) {
            Some(SuspensionCause::Unheard)
        } else if !self.proofs.is_younger(self.proof_limit(), now) {
            Some(SuspensionCause::Unproven)
        } else {
            None
        }
    }

    /// Returns the maximum age that the newest proof may have while this node works.
    fn proof_limit(&self) -> Duration {
        if is_planted(PlantedFault::WorkWithoutProof) {
            return self.times.proof_limit * 100;
        }
        self.times.proof_limit
    }

    fn is_unheard(&self, now: Moment) -> bool {
        self.link
            .echo_age(now)
            .is_none_or(|age| age > self.times.echo_limit)
    }

    /// Returns whether this node may work again after a doubt. It must have written its record and
    /// a proof since then. The proof shows that no peer declared this node dead. Because the record
    /// has a new revision, no peer can declare this node dead for its earlier silence.
    fn is_trustworthy_again(&self, now: Moment) -> bool {
        let doubted = self.suspension.doubted();
        let is_proved = self.proofs.newest().is_some_and(|proof| proof >= doubted);
        self.doubt(now).is_none() && is_proved && self.own.is_written_since(doubted)
    }

    /// Returns the longest gap between received own heartbeats that an observer tolerates. During a
    /// longer gap, a living peer may seem silent.
    fn gap(&self) -> Duration {
        self.times.suspicion / 2
    }

    fn written(
        &mut self,
        revision: Revision,
        standing: NodeStanding,
        out: &mut Vec<MembershipEffect>,
    ) {
        self.own.written(revision, standing);
        self.proofs.restart();
        if standing.is_final() {
            self.exit(standing, out);
        }
    }

    fn found_own(
        &mut self,
        now: Moment,
        seen: Option<&SeenNode>,
        source: ReadSource,
        out: &mut Vec<MembershipEffect>,
    ) {
        let is_final = seen.is_some_and(|seen| seen.standing.is_final());
        if !is_final && (source == ReadSource::Watch || !self.own.is_reading()) {
            return;
        }
        match self.own.found(seen, now) {
            OwnRecordState::Moved => self.proofs.restart(),
            OwnRecordState::Unmoved | OwnRecordState::Missing => {}
            OwnRecordState::Lost(standing) => self.exit(standing, out),
        }
    }

    fn exit(&mut self, standing: NodeStanding, out: &mut Vec<MembershipEffect>) {
        self.over = true;
        out.push(MembershipEffect::Exit { standing });
    }
}

fn just_after(from: Moment, limit: Duration) -> Moment {
    from + limit + Duration::from_millis(1)
}

// The inputs of a node's membership.

/// A record's revision in the registry. It can fall when the registry loses its latest writes.
pub type Revision = u64;

/// A node's record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenNode {
    pub revision: Revision,
    pub standing: NodeStanding,
    pub nonce: Nonce,
    /// For a dead node, how long it had been silent when an observer declared it dead.
    pub silent: Option<Duration>,
}

impl SeenNode {
    pub fn of(record: &NodeRecord, revision: Revision) -> Self {
        Self {
            revision,
            standing: record.state,
            nonce: record.nonce.clone(),
            silent: record
                .verdict
                .as_ref()
                .map(|verdict| Duration::from_millis(verdict.silent_ms)),
        }
    }
}

/// Where a record was read, which determines how far it can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadSource {
    /// The leader of the stream. The record is current.
    Leader,
    /// A watch, which lags and omits changes. Only a final record is taken from a watch. Another
    /// record is at most a reason to read from the leader.
    Watch,
}

/// An input of the membership, which is an event or the answer to an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipInput {
    /// The time that `next_wake` returned has come.
    Woken,
    /// A heartbeat of a peer or of this node arrived.
    Heartbeat {
        node: NodeId,
        seq: u64,
    },
    /// Answers the `Prove` that was sent at this moment: the proof was accepted.
    ProofCommitted {
        sent_at: Moment,
    },
    ProofRefused {
        sent_at: Moment,
    },
    ProofUnknown {
        sent_at: Moment,
    },
    /// Answers `Write`: the record was written.
    Written {
        revision: Revision,
        standing: NodeStanding,
    },
    /// Answers `Write`: the write was refused, or its outcome is unknown.
    NotWritten,
    /// The record of a peer or of this node. `seen` is `None` if there is no record.
    Record {
        node: NodeId,
        seen: Option<SeenNode>,
        source: ReadSource,
    },
    /// Answers `ReadProof` with the revision of the peer's newest proof, or `None` if the peer has
    /// no proof.
    Proof {
        node: NodeId,
        asked_at: Moment,
        proof: Option<Revision>,
    },
    /// The records of all nodes, from the leader.
    Records(Vec<(NodeId, SeenNode)>),
    /// Answers `DeclareDead`: the node was declared dead.
    DeclaredDead {
        node: NodeId,
    },
    /// Answers `DeclareDead`: the declaration was refused, or its outcome is unknown.
    NotDeclaredDead {
        node: NodeId,
    },
    /// Answers `Watch`: the heartbeats of the peer reach this node from now on.
    Watching {
        node: NodeId,
    },
    /// SQL names a node as the holder of a lease, and this node knows no record of that node.
    Leaseholder {
        node: NodeId,
    },
    /// Answers `CheckLeases`: SQL answered, and agents whose leases other nodes took were stopped.
    LeasesChecked {
        asked_at: Moment,
    },
    /// This node opened the registry, which had been created at `at`.
    RegistryCreated {
        at: Moment,
    },
    /// This node takes no new work from now on.
    Drain,
    /// This node leaves the cluster for good.
    Leave,
}

// The effects of a node's membership.

/// An action that the caller must perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipEffect {
    /// Publish a heartbeat.
    Beat {
        seq: u64,
    },
    /// Write a proof of life, on condition that this node's record is at `expects`.
    Prove {
        sent_at: Moment,
        expects: Revision,
    },
    /// Write this node's record, on condition that it is at `expects`. If `expects` is `None`,
    /// there must be neither a final record nor one of this process.
    Write {
        standing: NodeStanding,
        expects: Option<Revision>,
    },
    /// Read a node's record from the stream's leader.
    Read {
        node: NodeId,
    },
    /// Read the revision of a peer's proof from the stream's leader.
    ReadProof {
        node: NodeId,
        asked_at: Moment,
    },
    /// Read the records of all nodes from the stream's leader.
    ReadAll,
    /// Receive the heartbeats of a peer from now on, and answer `Watching` once the subscription is
    /// active.
    Watch {
        node: NodeId,
    },
    /// Receive the heartbeats of a peer no more.
    Unwatch {
        node: NodeId,
    },
    /// Write one atomic batch: a proof of this node on condition that this node's record is at
    /// `own`, and the death of `node` on condition that the record of `node` is at `expects`. If
    /// `expects` is `None`, `node` must have no record.
    DeclareDead {
        node: NodeId,
        expects: Option<Revision>,
        own: Revision,
        silent: Duration,
    },
    /// Compare the agents on this node with the leases in SQL, and stop the agents whose leases
    /// other nodes took.
    CheckLeases {
        asked_at: Moment,
    },
    /// Kill the processes of all tools, because it is unknown whether this node still holds its
    /// leases.
    KillTools,
    /// Begin no model call, tool or work on an input until `Resume`. Running work continues. A new
    /// node is suspended from the start, without this effect.
    Suspend {
        why: SuspensionCause,
    },
    Resume,
    /// Report a change in what is known about a peer.
    Peer {
        node: NodeId,
        news: PeerNews,
    },
    /// Stop everything and end the process. This is the last effect.
    Exit {
        standing: NodeStanding,
    },
}

/// Why a node suspends itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuspensionCause {
    /// The node's own heartbeats do not come back.
    Unheard,
    /// The registry has accepted no recent proof of the node.
    Unproven,
}

/// What became known about a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerNews {
    /// The peer is silent and therefore suspect.
    Suspect,
    /// The peer was suspect, but its heartbeats arrive again.
    Back,
    Left,
    /// The peer is dead. As far as this node knows, its silence began at `quiet_since`.
    Died {
        quiet_since: Moment,
    },
}

#[cfg(test)]
mod tests;
