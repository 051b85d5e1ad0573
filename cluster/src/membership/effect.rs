//! The effects of a node's membership.

use std::time::Duration;

use planck_common::{NodeId, registry::NodeStanding};

use super::{super::moment::Moment, input::Revision};

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
