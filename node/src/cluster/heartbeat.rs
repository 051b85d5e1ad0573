//! The heartbeat a node publishes on `node.<node>`.

use std::{sync::Arc, time::Duration};

use planck_common::{PROTOCOL_VERSION, Timestamp, event::json, node::Heartbeat, subject::Topic};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::node::Node;

const EVERY: Duration = Duration::from_millis(500);

/// The subject of all nodes' heartbeats.
pub fn everybody() -> String {
    Topic::AllNodes.to_string()
}

/// Beats until told to stop.
pub(crate) async fn beat(node: Arc<Node>, stop: CancellationToken) {
    let subject = Topic::Node(node.id()).to_string();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seq = 0;
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        seq += 1;
        node.bus().publish(subject.clone(), json(&heartbeat(&node, seq)).into());
    }
}

fn heartbeat(node: &Node, seq: u64) -> Heartbeat {
    let info = node.info();
    Heartbeat {
        v: PROTOCOL_VERSION,
        node_id: info.id,
        name: info.name,
        seq,
        at: Timestamp::now(),
        agents: info.agents,
        running: info.running,
        capacity: info.capacity,
        cpu: load_average(),
        rss_bytes: resident_bytes(),
        draining: false,
        suspended: false,
    }
}

/// The share of the machine's processors that was busy over the last minute, as the kernel tells it.
fn load_average() -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1));
    let first = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = first.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
    load / f64::from(cores)
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let resident: u64 = pages.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    resident * 4096
}
