//! Publishes what this node decided about its cluster, for clients that watch `cluster.>`.

use std::sync::Arc;

use planck_common::{
    NodeId,
    decision::{Decision, DecisionData, DecisionKind},
    event::json,
    subject::Topic,
};

use planck_bus::Bus;

/// The publisher of this node's decisions.
#[derive(Clone)]
pub struct Decisions {
    bus: Arc<dyn Bus>,
    node: NodeId,
}

impl Decisions {
    /// Returns a publisher in the name of `node`.
    pub fn new(bus: Arc<dyn Bus>, node: NodeId) -> Self {
        Self { bus, node }
    }

    /// Publishes a decision. It may be lost, because the records in SQL and in the registry say what
    /// holds.
    pub fn publish(&self, kind: DecisionKind, data: DecisionData) {
        let decision = Decision::new(kind, &self.node, data);
        let subject = Topic::Cluster(kind.name()).to_string();
        self.bus.publish(subject, json(&decision).into());
    }
}
