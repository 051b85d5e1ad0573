//! What happens to a node's membership.

use std::time::Duration;

use planck_common::{
    NodeId,
    registry::{NodeRecord, NodeStanding, Nonce},
};

use crate::cluster::moment::Moment;

/// A record's revision in the registry; it can fall when the registry lost its tail.
pub type Revision = u64;

/// A node's record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub revision: Revision,
    pub standing: NodeStanding,
    pub nonce: Nonce,
    /// How long a convict had not been heard by its judge.
    pub silent: Option<Duration>,
}

impl Seen {
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

/// How far a reading of the registry can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The stream's leader: what it says is what stands there.
    Leader,
    /// A watch: it lags and leaves out. Only what is final is believed.
    Watch,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The time of `next_wake` has come.
    Woken,
    /// A heartbeat, one's own too.
    Heard {
        node: NodeId,
        seq: u64,
    },
    /// Answers to `Prove`, by the moment it was sent at.
    ProofCommitted {
        sent_at: Moment,
    },
    ProofRefused {
        sent_at: Moment,
    },
    ProofUnknown {
        sent_at: Moment,
    },
    /// Answers to `Write`.
    Written {
        revision: Revision,
        standing: NodeStanding,
    },
    /// It was refused, or its outcome is not known.
    NotWritten,
    /// One record, one's own too; `None` where there is none.
    Record {
        node: NodeId,
        seen: Option<Seen>,
        source: Source,
    },
    /// Answers `ReadProof`: the revision of the peer's newest proof; `None` where there is none.
    Proof {
        node: NodeId,
        asked_at: Moment,
        proof: Option<Revision>,
    },
    /// Every node's record, from the leader.
    Records(Vec<(NodeId, Seen)>),
    /// Answers to `Convict`.
    Convicted {
        node: NodeId,
    },
    /// It was refused, or its outcome is not known.
    NotConvicted {
        node: NodeId,
    },
    /// SQL names this node as the holder of a lease.
    Leaseholder {
        node: NodeId,
    },
    /// Answers `CheckLeases`: SQL was heard, and what was raised has been stopped.
    LeasesChecked {
        asked_at: Moment,
    },
    /// When the registry that is there now was created.
    RegistryCreated {
        at: Moment,
    },
    /// No new work is to come to this node.
    Drain,
    /// All work is done or handed over.
    Leave,
}
