//! The heartbeat that a node publishes on `node.<node>`.

use std::sync::LazyLock;

use planck_common::{NodeId, PROTOCOL_VERSION, Timestamp, node::Heartbeat, registry::NodeRecord};

/// The load of a node.
#[derive(Debug, Clone, Copy, Default)]
pub struct NodeLoad {
    pub agents: u32,
    /// The number of agents with an open turn.
    pub running: u32,
}

/// The content of a heartbeat, without the measurements of [`Beat::numbered`].
pub(super) struct Beat<'a> {
    pub node: &'a NodeId,
    pub record: &'a NodeRecord,
    pub load: NodeLoad,
    pub draining: bool,
    pub suspended: bool,
}

impl Beat<'_> {
    pub fn numbered(&self, seq: u64) -> Heartbeat {
        Heartbeat {
            v: PROTOCOL_VERSION,
            node_id: self.node.clone(),
            name: self.record.name.clone(),
            seq,
            at: Timestamp::now(),
            agents: self.load.agents,
            running: self.load.running,
            capacity: self.record.capacity,
            cpu: load_average(),
            rss_bytes: resident_bytes(),
            draining: self.draining,
            suspended: self.suspended,
        }
    }
}

/// Returns the load average of the last minute divided by the number of processors, or 0 if the
/// system does not report it.
fn load_average() -> f64 {
    // Each call reads files of the system, and heartbeats are frequent.
    static CORES: LazyLock<u32> = LazyLock::new(|| {
        let cores = std::thread::available_parallelism();
        cores.map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1))
    });
    let first = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = first
        .split_whitespace()
        .next()
        .and_then(|load| load.parse().ok())
        .unwrap_or(0.0);
    load / f64::from(*CORES)
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let resident: u64 = pages
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .unwrap_or(0);
    resident * 4096
}
