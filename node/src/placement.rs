//! Placement: chooses the node that hosts an agent, and starts agents on this node. Every request
//! to start an agent on this node goes through [`Placement::host_agent`], whichever node sent it.

mod admission;
mod choice;
mod hosting;
mod local;
mod spawn_batcher;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio_util::task::TaskTracker;

pub use admission::AdmissionPermit;
pub use choice::wanted;
pub use local::LocalNode;

pub(crate) use choice::{AgentNodes, TRIES, choose, is_of_that_node};
pub(crate) use hosting::claim_request;

use self::spawn_batcher::SpawnBatcher;
use crate::{actor::Host, base::Base, lookup::Lookup, peers::Peers, team_registry::TeamRegistry};
use planck_cluster::view::ClusterView;
use planck_store::SessionStore;

/// The service that chooses nodes for agents, and starts the agents for which this node is chosen.
pub struct Placement {
    view: Arc<ClusterView>,
    peers: Arc<Peers>,
    store: Arc<dyn SessionStore>,
    lookup: Lookup,
    host: Host,
    local: LocalNode,
    teams: Arc<TeamRegistry>,
    batcher: SpawnBatcher,
    tasks: TaskTracker,
}

/// The services that placement needs.
pub struct PlacementParts {
    pub base: Base,
    pub local: LocalNode,
    pub teams: Arc<TeamRegistry>,
    pub tasks: TaskTracker,
}

impl Placement {
    pub fn new(parts: PlacementParts) -> Self {
        let PlacementParts {
            base,
            local,
            teams,
            tasks,
        } = parts;
        let Base {
            view,
            peers,
            store,
            lookup,
            host,
        } = base;
        Self {
            view,
            peers,
            store,
            lookup,
            host,
            local,
            teams,
            batcher: SpawnBatcher::default(),
            tasks,
        }
    }

    /// Returns this node as a host of agents.
    pub fn local(&self) -> &LocalNode {
        &self.local
    }
}
