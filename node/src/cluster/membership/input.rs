//! The inputs of a node's membership.

use std::time::Duration;

use planck_common::{
    NodeId,
    registry::{NodeRecord, NodeStanding, Nonce},
};

use crate::cluster::moment::Moment;

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
    /// A watch, which lags and omits changes. Only a final record from it is used.
    Watch,
}

/// Something that happened, to which the membership reacts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipInput {
    /// The time that `next_wake` returned has come.
    Woken,
    /// A heartbeat arrived, of a peer or of this node.
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
    /// Answers `Write`: it was refused, or its outcome is not known.
    NotWritten,
    /// The record of a peer or of this node; `None` if there is none.
    Record {
        node: NodeId,
        seen: Option<SeenNode>,
        source: ReadSource,
    },
    /// Answers `ReadProof` with the revision of the peer's newest proof; `None` if there is none.
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
    /// Answers `DeclareDead`: it was refused, or its outcome is not known.
    NotDeclaredDead {
        node: NodeId,
    },
    /// SQL names a node as the holder of a lease, and the registry has no record of it.
    Leaseholder {
        node: NodeId,
    },
    /// Answers `CheckLeases`: SQL answered, and agents whose leases other nodes took were stopped.
    LeasesChecked {
        asked_at: Moment,
    },
    /// The registry was opened; it was created at this moment.
    RegistryCreated {
        at: Moment,
    },
    /// This node takes no new work from now on.
    Drain,
    /// This node leaves: all work is done or handed over.
    Leave,
}
