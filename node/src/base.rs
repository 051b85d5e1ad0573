//! The handles that all services have in common.

use std::sync::Arc;

use crate::{actor::Host, lookup::Lookup, peers::Peers};
use planck_cluster::view::ClusterView;
use planck_store::SessionStore;

/// Handles to the resources that every service uses.
#[derive(Clone)]
pub struct Base {
    pub view: Arc<ClusterView>,
    pub peers: Arc<Peers>,
    pub store: Arc<dyn SessionStore>,
    pub lookup: Lookup,
    pub host: Host,
}
