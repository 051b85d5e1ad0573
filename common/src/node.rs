//! What nodes say of themselves.

use serde::{Deserialize, Serialize};

use crate::{NodeId, Timestamp};

/// On `node.<node>`, every 500 ms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Heartbeat {
    pub v: u32,
    pub node_id: NodeId,
    pub name: String,
    /// Counts this process's heartbeats from 1.
    pub seq: u64,
    pub at: Timestamp,
    pub agents: u32,
    /// Agents with an open turn.
    pub running: u32,
    pub capacity: u32,
    /// Busy share of the machine's processors over the last minute; over 1 when work waits.
    pub cpu: f64,
    pub rss_bytes: u64,
    pub draining: bool,
    pub suspended: bool,
}
