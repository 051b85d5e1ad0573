//! The inputs of a node's membership.

use std::time::Duration;

use planck_common::{
    NodeId,
    registry::{NodeRecord, NodeStanding, Nonce},
};

use crate::moment::Moment;

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
