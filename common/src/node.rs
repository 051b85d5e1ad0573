//! Heartbeats of nodes.

use serde::{Deserialize, Serialize};

use crate::{NodeId, Timestamp};

/// A node publishes this on `node.<node>` every 500 ms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Heartbeat {
    pub v: u32,
    pub node_id: NodeId,
    pub name: String,
    /// The number of this heartbeat of the process, from 1.
    pub seq: u64,
    pub at: Timestamp,
    pub agents: u32,
    /// The number of agents with an open turn.
    pub running: u32,
    pub capacity: u32,
    /// The machine's load average over the last minute, divided by the number of processors.
    pub cpu: f64,
    pub rss_bytes: u64,
    pub draining: bool,
    pub suspended: bool,
}
