//! The section `[cluster]`.

use std::collections::BTreeMap;

use planck_cluster::ClusterTimes;

use crate::config::{
    key::KeyPath,
    setting::{Field, Period},
};

section! {
    /// How nodes detect that another node has failed. All nodes of a cluster must have the same
    /// values.
    Cluster {
        /// How often a node publishes a heartbeat.
        heartbeat: Period = Period(ClusterTimes::default().heartbeat);
        /// How long a node must be silent to become a suspect.
        suspicion: Period = Period(ClusterTimes::default().suspicion);
        /// How often a node proves in the registry that it can write.
        proof_every: Period = Period(ClusterTimes::default().proof_every);
        /// The greatest age of an observer's own proof.
        proof_fresh: Period = Period(ClusterTimes::default().proof_fresh);
        /// The age of a node's own proof at which it suspends itself.
        proof_limit: Period = Period(ClusterTimes::default().proof_limit);
        /// How long a node's own heartbeats may fail to come back before it suspends itself.
        echo_limit: Period = Period(ClusterTimes::default().echo_limit);
        /// How long an observer's own connection must have been without a gap.
        settle: Period = Period(ClusterTimes::default().settle);
        /// How often records and leases are compared with the agents that run.
        sweep: Period = Period(ClusterTimes::default().sweep);
        /// How long a node must be silent before its tool processes are killed.
        reap_after: Period = Period::millis(2_500);
        /// How long the sessions of a dead node start no tool on other nodes, counted from its last
        /// heartbeat.
        tool_grace: Period = Period::millis(4_500);
    }
}

impl Cluster {
    /// Returns the times by which the node judges itself and its peers.
    pub fn times(&self) -> ClusterTimes {
        ClusterTimes {
            heartbeat: self.heartbeat.0,
            suspicion: self.suspicion.0,
            proof_every: self.proof_every.0,
            proof_fresh: self.proof_fresh.0,
            proof_limit: self.proof_limit.0,
            echo_limit: self.echo_limit.0,
            settle: self.settle.0,
            sweep: self.sweep.0,
        }
    }

    /// Returns each key of this section with its value as text.
    pub fn shown(&self) -> BTreeMap<String, String> {
        let mut all = Vec::new();
        self.show(&KeyPath::default(), &mut all);
        all.into_iter()
            .filter_map(|(key, value)| Some((key.words().join("."), value?)))
            .collect()
    }
}
