//! `[cluster]`

use std::collections::BTreeMap;

use crate::config::{
    key::KeyPath,
    setting::{Field, Period},
};

section! {
    /// How nodes find out who is alive. All nodes of a cluster must agree on it.
    Cluster {
        /// How often a node says that it lives.
        heartbeat: Period = Period::millis(500);
        /// Silence that makes a peer suspect.
        suspicion: Period = Period::millis(2_500);
        /// How often a node proves in the registry that it can write.
        proof_every: Period = Period::seconds(2);
        /// How young a judge's own proof must be.
        proof_fresh: Period = Period::seconds(4);
        /// How old a node's own proof may be before it suspends itself.
        proof_limit: Period = Period::seconds(12);
        /// How long its own heartbeats may fail to come back before it suspends itself.
        echo_limit: Period = Period::seconds(2);
        /// How long a judge's own link must have been without a gap.
        settle: Period = Period::seconds(3);
        /// How often records and leases are compared with what is true.
        sweep: Period = Period::seconds(10);
        /// Silence of the node after which tool processes kill themselves.
        reap_after: Period = Period::millis(2_500);
        /// How long after a dead node was last heard its sessions start no tool elsewhere.
        tool_grace: Period = Period::millis(4_500);
    }
}

impl Cluster {
    /// Its keys, and their values as a configuration has them.
    pub fn shown(&self) -> BTreeMap<String, String> {
        let mut all = Vec::new();
        self.show(&KeyPath::default(), &mut all);
        all.into_iter()
            .filter_map(|(key, value)| Some((key.words().join("."), value?)))
            .collect()
    }
}
