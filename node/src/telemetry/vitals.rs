//! The state of this process's node, for metrics and probes. Telemetry starts before the node and
//! knows it only through this trait.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use async_trait::async_trait;

/// The values of the gauges at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gauges {
    /// By state, in the order in which `/metrics` lists them: active, idle.
    pub sessions: [u64; 2],
    /// By state: running, idle, resting, parked.
    pub agents: [u64; 4],
    pub inbox: u64,
    pub heartbeat_age: Duration,
}

/// A node, as its probes see it.
#[async_trait]
pub trait Vitals: Send + Sync {
    fn gauges(&self) -> Gauges;
    /// Returns the reasons why the node accepts no work, within about `patience`.
    async fn unready(&self, patience: Duration) -> Vec<String>;
    /// Returns whether every runtime of the node makes progress.
    async fn turns(&self, within: Duration) -> bool;
}

static NODE: Mutex<Option<Weak<dyn Vitals>>> = Mutex::new(None);

/// Registers the node of this process. It is used as long as it exists.
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
