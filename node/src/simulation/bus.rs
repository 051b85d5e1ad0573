//! The bus of a simulated node: the bus in memory, with delays, losses, and nodes that it does not
//! reach.

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    future::ready,
    stream::{self, BoxStream},
};
use planck_common::{
    AgentId, NodeId, SessionId,
    subject::{Address, Target, Topic},
};
use tokio::time::sleep;

use super::world::SimWorld;
use crate::bus::{
    Bus, BusError, CommandHandler, Delivery, MemoryBus, MemoryHub, Published, ServiceGuard,
};

pub(super) struct SimBus {
    world: Arc<SimWorld>,
    node: NodeId,
    inner: MemoryBus,
}

impl SimBus {
    pub(super) fn new(world: &Arc<SimWorld>, hub: &Arc<MemoryHub>, node: &NodeId) -> Self {
        Self {
            world: Arc::clone(world),
            node: node.clone(),
            inner: MemoryBus::new(Arc::clone(hub)),
        }
    }

    fn is_reached(&self, to: &Address) -> bool {
        let Target::Node(target) = &to.target else {
            return true;
        };
        NodeId::parse(target).is_ok_and(|target| self.world.link(&target).has_nats)
    }
}

#[async_trait]
impl Bus for SimBus {
    /// Publishes heartbeats. Nothing in the simulation reads other messages.
    fn publish(&self, subject: String, payload: Bytes) {
        let link = self.world.link(&self.node);
        let is_heartbeat = subject == Topic::Node(&self.node).to_string();
        if is_heartbeat && link.has_nats && !link.is_crashed {
            self.world.deliver(&Delivery { subject, payload });
        }
    }

    fn publish_event(&self, _: Published) {}

    fn turn_open(&self, _: &SessionId, _: &AgentId, _: bool) {}

    async fn request(
        &self,
        to: &Address,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, BusError> {
        self.world.unless_crashed(&self.node).await;
        self.world.pause(0..3).await;
        let lost = self.world.state().lost_requests;
        let has_nats = || self.world.link(&self.node).has_nats;
        let timed_out = || BusError::TimedOut {
            subject: to.to_string(),
            after: timeout,
        };
        if !has_nats() || !self.is_reached(to) || self.world.chance(lost) {
            sleep(timeout).await;
            self.world.unless_crashed(&self.node).await;
            return Err(timed_out());
        }
        let answer = self.inner.request(to, body, timeout).await;
        self.world.unless_crashed(&self.node).await;
        if !has_nats() || self.world.chance(lost) {
            sleep(timeout).await;
            return Err(timed_out());
        }
        self.world.pause(0..3).await;
        answer
    }

    async fn subscribe(&self, subject: &str) -> Result<BoxStream<'static, Delivery>, BusError> {
        let (world, node) = (Arc::clone(&self.world), self.node.clone());
        let heard = move |_: &Delivery| {
            let link = world.link(&node);
            ready(link.has_nats && !link.is_crashed)
        };
        if subject != Topic::AllNodes.to_string() {
            return Ok(self.inner.subscribe(subject).await?.filter(heard).boxed());
        }
        let heartbeats = stream::unfold(self.world.listen(), async |mut heard| {
            Some((heard.recv().await?, heard))
        });
        Ok(heartbeats.filter(heard).boxed())
    }

    async fn serve(
        &self,
        node: &NodeId,
        answer: CommandHandler,
    ) -> Result<Box<dyn ServiceGuard>, BusError> {
        let (world, of) = (Arc::clone(&self.world), node.clone());
        let reached: CommandHandler = Arc::new(move |address, body| {
            let (world, node) = (Arc::clone(&world), of.clone());
            let is_cut_off = move || {
                let link = world.link(&node);
                link.is_crashed || !link.has_nats
            };
            if is_cut_off() {
                return Box::pin(pending());
            }
            let answer = answer(address, body);
            Box::pin(async move {
                let answer = answer.await;
                if is_cut_off() {
                    pending::<()>().await;
                }
                answer
            })
        });
        self.inner.serve(node, reached).await
    }

    fn is_connected(&self) -> bool {
        self.world.link(&self.node).has_nats
    }

    async fn flush(&self, timeout: Duration) -> Result<(), BusError> {
        self.inner.flush(timeout).await
    }
}
