//! Determines which nodes are alive. In a cluster, a node is gone if the registry says that it left
//! or died, or if the store knows that its process ended.

use std::{future, sync::Arc, time::Duration};

use planck_common::NodeId;
use tokio::time::Instant;

use crate::{census::Census, recovery::NodeLife};
use planck_store::SessionStore;

/// How long a node may send no heartbeat and still be listed as alive. Without a cluster, another
/// node of which the store knows nothing counts as alive until this node has run for this long.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

/// Tells which nodes are alive, by the census and by what the store knows of processes.
pub struct Liveness {
    own: NodeId,
    store: Arc<dyn SessionStore>,
    /// The nodes of the cluster that this node knows, or `None` without a cluster.
    census: Option<Arc<Census>>,
    since: Instant,
}

impl Liveness {
    /// Returns the liveness as node `own` sees it. Without a census, only the store says which
    /// processes ended.
    pub fn new(own: NodeId, store: Arc<dyn SessionStore>, census: Option<Arc<Census>>) -> Self {
        Self {
            own,
            store,
            census,
            since: Instant::now(),
        }
    }

    /// Returns whether a node is alive. A node counts as alive if the store cannot be read. In a
    /// cluster, a node about which nothing is known also counts as alive, and this function asks
    /// the membership thread to read its record.
    pub(crate) async fn is_alive(&self, node: &NodeId) -> bool {
        if *node == self.own {
            return true;
        }
        let is_gone = self.census.as_ref().and_then(|census| census.is_gone(node));
        if is_gone == Some(true) {
            return false;
        }
        match self.store.node_lives(node).await {
            Ok(process_lives) => match NodeLife::of(is_gone, process_lives) {
                NodeLife::Alive => true,
                NodeLife::Gone => false,
                NodeLife::Unknown => self.counts_as_alive(node),
            },
            Err(error) => {
                tracing::debug!(%node, %error, "the store cannot say whether a node lives; it counts as alive");
                true
            }
        }
    }

    /// Waits until the registry reports that a node left or died. Without a registry, waits
    /// forever.
    pub async fn until_gone(&self, node: &NodeId) {
        match &self.census {
            Some(census) => census.until_gone(node).await,
            None => future::pending().await,
        }
    }

    fn counts_as_alive(&self, node: &NodeId) -> bool {
        match &self.census {
            Some(census) => {
                census.ask_about(node);
                true
            }
            None => self.since.elapsed() < SILENCE,
        }
    }

    /// Returns this node and the nodes that are not gone and sent a heartbeat or became known
    /// within [`SILENCE`]. A node that is missing in the list may still be alive, which `is_alive`
    /// checks.
    pub fn alive(&self) -> Vec<NodeId> {
        let others = self
            .census
            .iter()
            .flat_map(|census| census.present(SILENCE));
        others
            .filter(|node| *node != self.own)
            .chain([self.own.clone()])
            .collect()
    }
}
