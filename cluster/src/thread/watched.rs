//! The heartbeats that reach this node: its own, and those of the peers that it watches.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::{
    StreamExt,
    future::{AbortHandle, Abortable},
    stream::{BoxStream, SelectAll},
};
use tokio::time::sleep;

use planck_bus::Delivery;
use planck_common::{NodeId, subject::Topic};

use super::{AGAIN, member::MembershipThread, perform::JobResult};
use crate::membership::MembershipInput;

/// The subscriptions to heartbeats.
pub(super) struct Heartbeats {
    streams: SelectAll<BoxStream<'static, Delivery>>,
    /// The watched peers. `None` means that the subscription is not active yet.
    watched: BTreeMap<NodeId, Option<AbortHandle>>,
}

impl Heartbeats {
    pub fn of(own: BoxStream<'static, Delivery>) -> Self {
        Self {
            streams: SelectAll::from_iter([own]),
            watched: BTreeMap::new(),
        }
    }

    pub async fn next(&mut self) -> Option<Delivery> {
        self.streams.next().await
    }

    /// Adds the heartbeats of a peer. Returns whether the peer is watched and they were missing.
    fn add(&mut self, node: &NodeId, heartbeats: BoxStream<'static, Delivery>) -> bool {
        let Some(slot @ None) = self.watched.get_mut(node) else {
            return false;
        };
        let (handle, registration) = AbortHandle::new_pair();
        *slot = Some(handle);
        let heartbeats = Abortable::new(heartbeats, registration);
        self.streams.push(heartbeats.boxed());
        true
    }
}

impl MembershipThread {
    /// Begins to subscribe to the heartbeats of a peer, and tries again until it succeeds.
    pub(super) fn watch(&mut self, node: NodeId) {
        self.heartbeats.watched.insert(node.clone(), None);
        self.options.census.watched(&node, true);
        let bus = Arc::clone(&self.bus);
        self.jobs.spawn(async move {
            loop {
                match bus.subscribe(&Topic::Node(&node).to_string()).await {
                    Ok(heartbeats) => return JobResult::Watching(node, heartbeats),
                    Err(error) => tracing::debug!(%node, %error, "cannot watch a peer yet"),
                }
                sleep(AGAIN).await;
            }
        });
    }

    pub(super) fn watching(&mut self, node: NodeId, heartbeats: BoxStream<'static, Delivery>) {
        if self.heartbeats.add(&node, heartbeats) {
            self.happened(MembershipInput::Watching { node });
        }
    }

    pub(super) fn unwatch(&mut self, node: &NodeId) {
        if let Some(Some(handle)) = self.heartbeats.watched.remove(node) {
            // The subscription ends when its stream is polled next, which the handle causes.
            handle.abort();
        }
        self.options.census.watched(node, false);
    }
}
