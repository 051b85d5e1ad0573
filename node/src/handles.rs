//! The handles that all services have in common.

use std::sync::Arc;

use planck_cluster::{decisions::Decisions, view::ClusterView};
use planck_store::SessionStore;
use tokio_util::task::TaskTracker;

use crate::{actor::Host, bus::Bus, lookup::Lookup, peers::Peers};

/// Handles to the resources that the services use.
#[derive(Clone)]
pub struct ServiceHandles {
    pub view: Arc<ClusterView>,
    pub bus: Arc<dyn Bus>,
    pub peers: Arc<Peers>,
    pub store: Arc<dyn SessionStore>,
    pub lookup: Lookup,
    pub host: Host,
    pub decisions: Decisions,
    /// Tracks the tasks that the services spawn, so that the node can wait for their end.
    pub tasks: TaskTracker,
}
