//! What the node of this process says of itself when it is asked. Telemetry is older than the node,
//! and knows it by this only.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use async_trait::async_trait;

/// The numbers of a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gauges {
    /// In the order of the states that `/metrics` tells: active, idle.
    pub sessions: [u64; 2],
    /// Running, idle, resting, parked.
    pub agents: [u64; 4],
    pub inbox: u64,
    pub heartbeat_age: Duration,
}

/// A node, as its probes see it.
#[async_trait]
pub trait Vitals: Send + Sync {
    fn gauges(&self) -> Gauges;
    /// Why it takes no work, if it does not; found within `patience`, about.
    async fn unready(&self, patience: Duration) -> Vec<String>;
    /// Whether every runtime of it still turns.
    async fn turns(&self, within: Duration) -> bool;
}

static NODE: Mutex<Option<Weak<dyn Vitals>>> = Mutex::new(None);

/// Tells of this node from now on, as long as it is there.
pub fn register(node: Weak<dyn Vitals>) {
    *NODE.lock().unwrap_or_else(PoisonError::into_inner) = Some(node);
}

pub fn node() -> Option<Arc<dyn Vitals>> {
    NODE.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .as_ref()
        .and_then(Weak::upgrade)
}

pub fn gauges() -> Gauges {
    node().map_or_else(Gauges::default, |node| node.gauges())
}
