//! The state of this process's node, for metrics and probes. Telemetry starts before the node and
//! accesses the node only through [`Vitals`].

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use async_trait::async_trait;

/// The values of the gauges at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gauges {
    /// The number of sessions by state, in the order of `/metrics`: active, idle.
    pub sessions: [u64; 2],
    /// The number of agents by state: running, idle, parked.
    pub agents: [u64; 3],
    pub inbox: u64,
    pub heartbeat_age: Duration,
}

/// The state of a node for metrics and probes.
#[async_trait]
pub trait Vitals: Send + Sync {
    fn gauges(&self) -> Gauges;
    /// Returns the reasons why the node accepts no work, or none if it is ready. The check takes
    /// about `patience` at most.
    async fn unready(&self, patience: Duration) -> Vec<String>;
    /// Returns whether every runtime of the node makes progress within `within`.
    async fn turns(&self, within: Duration) -> bool;
}

static NODE: Mutex<Option<Weak<dyn Vitals>>> = Mutex::new(None);

/// Registers the node of this process for metrics and probes, which use it until it is dropped or
/// another node is registered.
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
