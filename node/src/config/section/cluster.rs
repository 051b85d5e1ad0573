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
        /// How long a node must be silent to become a suspect, between 2500ms and 10s. All other
        /// times of the cluster are multiples of it, such as the time between two heartbeats, which
        /// is a fifth.
        suspicion: Period = Period(ClusterTimes::default().suspicion);
        /// How often records and leases are compared with the agents that run.
        sweep: Period = Period(ClusterTimes::default().sweep);
    }
}

impl Cluster {
    /// Returns the times by which the node judges itself and its peers.
    pub fn times(&self) -> ClusterTimes {
        ClusterTimes::new(self.suspicion.0, self.sweep.0)
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
