//! The section `[cluster]`.

use std::collections::BTreeMap;

use crate::config::{
    key::KeyPath,
    setting::{Field, Period},
};

section! {
    /// How nodes detect that another node has failed. All nodes of a cluster must have the same
    /// values.
    Cluster {
        /// How often a node publishes a heartbeat.
        heartbeat: Period = Period::millis(500);
        /// How long a node must be silent to become a suspect.
        suspicion: Period = Period::millis(2_500);
        /// How often a node proves in the registry that it can write.
        proof_every: Period = Period::seconds(2);
        /// The greatest age of an observer's own proof.
        proof_fresh: Period = Period::seconds(4);
        /// The age of a node's own proof at which it suspends itself.
        proof_limit: Period = Period::seconds(12);
        /// How long a node's own heartbeats may fail to come back before it suspends itself.
        echo_limit: Period = Period::seconds(2);
        /// How long an observer's own connection must have been without a gap.
        settle: Period = Period::seconds(3);
        /// How often records and leases are compared with the agents that run.
        sweep: Period = Period::seconds(10);
        /// How long a node must be silent before its tool processes are killed.
        reap_after: Period = Period::millis(2_500);
        /// How long the sessions of a dead node start no tool on other nodes, counted from its last
        /// heartbeat.
        tool_grace: Period = Period::millis(4_500);
    }
}

impl Cluster {
    /// Returns each key of this section with its value as text.
    pub fn shown(&self) -> BTreeMap<String, String> {
        let mut all = Vec::new();
        self.show(&KeyPath::default(), &mut all);
        all.into_iter()
            .filter_map(|(key, value)| Some((key.words().join("."), value?)))
            .collect()
    }
}
