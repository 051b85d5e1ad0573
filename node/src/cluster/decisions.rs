//! Publishes what this node decided about its cluster, for clients that watch `cluster.>`.

use std::sync::Arc;

use planck_common::{
    NodeId,
    decision::{Decision, DecisionData, DecisionKind},
    event::json,
    subject::Topic,
};

use crate::bus::Bus;

/// The publisher of this node's decisions.
#[derive(Clone)]
pub struct Decisions {
    bus: Arc<dyn Bus>,
    node: NodeId,
}

impl Decisions {
    pub fn new(bus: Arc<dyn Bus>, node: NodeId) -> Self {
        Self { bus, node }
    }

    pub fn publish(&self, kind: DecisionKind, data: DecisionData) {
        let decision = Decision::new(kind, &self.node, data);
        let subject = Topic::Cluster(kind.name()).to_string();
        self.bus.publish(subject, json(&decision).into());
    }
}
