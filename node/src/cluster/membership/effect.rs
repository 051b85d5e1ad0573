//! What a node's membership asks for.

use std::time::Duration;

use planck_common::{NodeId, registry::NodeStanding};

use super::{super::moment::Moment, input::Revision};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Publish a heartbeat.
    Beat {
        seq: u64,
    },
    /// Write the proof, on condition that one's own record is at `expects`. Give it up after
    /// `proof_every`.
    Prove {
        sent_at: Moment,
        expects: Revision,
    },
    /// Write one's own record, on condition that it is at `expects`, or not there.
    Write {
        standing: NodeStanding,
        expects: Option<Revision>,
    },
    /// Read a node's record from the leader.
    Read {
        node: NodeId,
    },
    /// Read the revision of a peer's proof from the leader.
    ReadProof {
        node: NodeId,
        asked_at: Moment,
    },
    /// Read every node's record from the leader.
    ReadAll,
    /// One atomic batch: the proof on condition that one's own record is at `own`, and `node` dead
    /// on condition that its record is at `expects`, or not there.
    Convict {
        node: NodeId,
        expects: Option<Revision>,
        own: Revision,
        silent: Duration,
    },
    /// Compare one's leases with SQL and stop what was raised.
    CheckLeases {
        asked_at: Moment,
    },
    /// Kill the processes of all tools: nobody can say that the leases are still this node's.
    KillTools,
    /// No new model call, tool or input until `Resume`; what runs goes on. A node begins suspended.
    Suspend {
        why: Doubt,
    },
    Resume,
    /// A peer is seen in a new light.
    Peer {
        node: NodeId,
        news: News,
    },
    /// Stop everything and end the process. Nothing comes after it.
    Exit {
        standing: NodeStanding,
    },
}

/// Why a node does not trust itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// Its own heartbeats do not come back.
    Unheard,
    /// It could not write to the registry.
    Unproven,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    Suspect,
    Back,
    Left,
    /// From `quiet_since` on nobody can have heard it.
    Died {
        quiet_since: Moment,
    },
}
