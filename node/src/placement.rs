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

pub use admission::AdmissionPermit;
pub use choice::wanted;
pub use local::LocalNode;

pub(crate) use choice::{AgentNodes, TRIES, choose, is_of_that_node};
pub(crate) use hosting::claim_request;

use self::spawn_batcher::SpawnBatcher;
use crate::{base::Base, team_registry::TeamRegistry};

/// The service that chooses nodes for agents, and starts the agents for which this node is chosen.
pub struct Placement {
    base: Base,
    local: LocalNode,
    teams: Arc<TeamRegistry>,
    batcher: SpawnBatcher,
}

impl Placement {
    pub fn new(base: Base, local: LocalNode, teams: Arc<TeamRegistry>) -> Self {
        Self {
            base,
            local,
            teams,
            batcher: SpawnBatcher::default(),
        }
    }

    /// Returns this node as a host of agents.
    pub fn local(&self) -> &LocalNode {
        &self.local
    }
}
