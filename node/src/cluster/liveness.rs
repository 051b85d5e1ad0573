//! Which nodes are alive, as far as this one can tell: by what the store can judge itself, else by their heartbeats.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, stream::BoxStream};
use planck_common::{NodeId, node::Heartbeat};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{bus::Delivery, store::SessionStore};

/// A node that was not heard for so long is taken for dead.
pub const SILENCE: Duration = Duration::from_secs(5);

pub struct Liveness {
    own: NodeId,
    store: Arc<dyn SessionStore>,
    /// Silence counts only from here.
    since: Instant,
    heard: Mutex<HashMap<NodeId, Instant>>,
}

impl Liveness {
    pub fn new(own: NodeId, store: Arc<dyn SessionStore>) -> Self {
        Self { own, store, since: Instant::now(), heard: Mutex::default() }
    }

    /// Hears heartbeats until told to stop.
    pub async fn listen(&self, mut heard: BoxStream<'static, Delivery>, stop: CancellationToken) {
        while let Some(Some(Delivery { payload, .. })) = stop.run_until_cancelled(heard.next()).await {
            if let Ok(Heartbeat { node_id, .. }) = serde_json::from_slice(&payload) {
                let mut heard = self.heard();
                heard.retain(|_, at| at.elapsed() < SILENCE);
                heard.insert(node_id, Instant::now());
            }
        }
    }

    /// Whether a node lives. One that could not have been heard yet is taken for alive.
    pub async fn is_alive(&self, node: &NodeId) -> bool {
        if *node == self.own {
            return true;
        }
        match self.store.node_lives(node).await {
            Ok(Some(lives)) => lives,
            Ok(None) => self.since.elapsed() < SILENCE || self.hears(node),
            Err(error) => {
                tracing::debug!(%node, %error, "cannot judge the node; it is taken for alive");
                true
            }
        }
    }

    /// The nodes that are heard, this one among them.
    pub fn alive(&self) -> Vec<NodeId> {
        let heard = self.heard();
        let others = heard.iter().filter(|(_, at)| at.elapsed() < SILENCE).map(|(node, _)| node.clone());
        others.chain([self.own.clone()]).collect()
    }

    fn hears(&self, node: &NodeId) -> bool {
        self.heard().get(node).is_some_and(|at| at.elapsed() < SILENCE)
    }

    fn heard(&self) -> MutexGuard<'_, HashMap<NodeId, Instant>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
