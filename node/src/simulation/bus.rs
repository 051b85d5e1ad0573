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
            return self.is_connected();
        };
        NodeId::parse(target).is_ok_and(|target| self.world.reaches(&self.node, &target))
    }
}

#[async_trait]
impl Bus for SimBus {
    /// Publishes heartbeats. Nothing in the simulation reads other messages.
    fn publish(&self, subject: String, payload: Bytes) {
        let is_heartbeat = subject == Topic::Node(&self.node).to_string();
        if is_heartbeat && self.world.is_running(&self.node) {
            let heartbeat = Delivery { subject, payload };
            self.world.deliver(&self.node, &heartbeat);
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
        self.world.while_running(&self.node).await;
        self.world.pause(0..3).await;
        let timed_out = || BusError::TimedOut {
            subject: to.to_string(),
            after: timeout,
        };
        if !self.is_reached(to) || self.world.is_lost(&self.node) {
            sleep(timeout).await;
            self.world.while_running(&self.node).await;
            return Err(timed_out());
        }
        let answer = self.inner.request(to, body, timeout).await;
        self.world.while_running(&self.node).await;
        if !self.is_reached(to) || self.world.is_lost(&self.node) {
            sleep(timeout).await;
            return Err(timed_out());
        }
        self.world.pause(0..3).await;
        answer
    }

    async fn subscribe(&self, subject: &str) -> Result<BoxStream<'static, Delivery>, BusError> {
        let (world, node) = (Arc::clone(&self.world), self.node.clone());
        // A node that is stopped reads what has arrived when it continues.
        let arrives = move |delivery| {
            let (world, node) = (Arc::clone(&world), node.clone());
            async move {
                world.while_running(&node).await;
                delivery
            }
        };
        let (world, node) = (Arc::clone(&self.world), self.node.clone());
        let heard = move |_: &Delivery| ready(world.has_nats(&node));
        let messages = self.inner.subscribe(subject).await?.filter(heard);
        let listened = self.world.listen(&self.node, subject);
        let heartbeats = stream::unfold(listened, async |mut heard| {
            Some((heard.recv().await?, heard))
        });
        Ok(stream::select(heartbeats, messages).then(arrives).boxed())
    }

    async fn serve(
        &self,
        node: &NodeId,
        answer: CommandHandler,
    ) -> Result<Box<dyn ServiceGuard>, BusError> {
        let (world, of) = (Arc::clone(&self.world), node.clone());
        let reached: CommandHandler = Arc::new(move |address, body| {
            let (world, node) = (Arc::clone(&world), of.clone());
            if !world.has_nats(&node) {
                return Box::pin(pending());
            }
            let answer = Arc::clone(&answer);
            Box::pin(async move {
                world.while_running(&node).await;
                let answer = answer(address, body).await;
                world.while_running(&node).await;
                if !world.has_nats(&node) {
                    pending::<()>().await;
                }
                answer
            })
        });
        self.inner.serve(node, reached).await
    }

    fn is_connected(&self) -> bool {
        self.world.has_nats(&self.node)
    }

    async fn flush(&self, timeout: Duration) -> Result<(), BusError> {
        self.inner.flush(timeout).await
    }
}
