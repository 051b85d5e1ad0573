//! The bus within one process, for embedded use and tests. It has the same publisher as the NATS
//! bus, and connects only the nodes and clients of its hub.

mod hub;
mod records;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, future::join_all, stream::BoxStream};
use planck_common::{
    AgentId, NodeId, SessionId,
    subject::{Address, Prefix, SHARED_ENDPOINTS, own_endpoint},
};
use tokio::sync::oneshot;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tracing::Span;

pub(crate) use self::hub::BEHIND;
pub use self::{hub::MemoryHub, records::MemoryRecords};

use super::{
    Bus, BusError, CommandHandler, Delivery, Published, ServiceGuard, answering::Answering,
    outbox::OutboxLimits, publisher::Publisher,
};

/// The maximum size of a request or a reply in bytes, the same as in `deploy/nats.conf`.
pub(crate) const MAX_PAYLOAD: usize = 8 * 1024 * 1024;
const GRACE: Duration = Duration::from_secs(10);

/// The connection of a node or a client to a hub.
pub struct MemoryBus {
    hub: Arc<MemoryHub>,
    publisher: Publisher,
    _tasks: TaskTracker,
    _stop: DropGuard,
}

impl MemoryBus {
    /// Connects to a hub. The publishing task runs on the current runtime.
    pub fn new(hub: Arc<MemoryHub>) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let publisher = Publisher::start(
            hub.clone(),
            Prefix::default(),
            OutboxLimits::default(),
            &tasks,
            stop.clone(),
        );
        Self {
            hub,
            publisher,
            _tasks: tasks,
            _stop: stop.drop_guard(),
        }
    }
}

/// Returns an error if a request is too large.
pub(crate) fn check_size(body: &Bytes) -> Result<(), BusError> {
    match body.len() <= MAX_PAYLOAD {
        true => Ok(()),
        false => Err(BusError::TooLarge {
            size: body.len(),
            limit: MAX_PAYLOAD,
        }),
    }
}

#[async_trait]
impl Bus for MemoryBus {
    fn publish(&self, subject: String, payload: Bytes) {
        self.publisher.publish(subject, payload);
    }

    fn publish_event(&self, event: Published) {
        self.publisher.publish_event(event);
    }

    fn turn_open(&self, session: &SessionId, agent: &AgentId, open: bool) {
        self.publisher.turn_open(session, agent, open);
    }

    async fn request(
        &self,
        to: &Address,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, BusError> {
        check_size(&body)?;
        let subject = to.to_string();
        let (reply, answered) = oneshot::channel();
        let answering = self
            .hub
            .find(&subject)
            .ok_or_else(|| BusError::NoResponders(subject.clone()))?;
        answering.take(&subject, body, Span::current(), |answer| async move {
            let _caller_gone = reply.send(answer.within(MAX_PAYLOAD).body);
        });
        tokio::time::timeout(timeout, answered)
            .await
            .ok()
            .and_then(Result::ok)
            .ok_or(BusError::TimedOut {
                subject,
                after: timeout,
            })
    }

    async fn subscribe(&self, subject: &str) -> Result<BoxStream<'static, Delivery>, BusError> {
        Ok(ReceiverStream::new(self.hub.subscribe(subject)).boxed())
    }

    async fn serve(
        &self,
        node: &NodeId,
        answer: CommandHandler,
    ) -> Result<Box<dyn ServiceGuard>, BusError> {
        let (for_all, for_one) = (Answering::new(answer.clone()), Answering::new(answer));
        let patterns = SHARED_ENDPOINTS
            .iter()
            .map(|(_, pattern)| (*pattern).to_owned());
        let shared = self.hub.add(patterns.collect(), for_all.clone());
        let own = self.hub.add(vec![own_endpoint(node)], for_one.clone());
        Ok(Box::new(MemoryService {
            hub: self.hub.clone(),
            shared,
            own,
            answering: [for_all, for_one],
        }))
    }

    fn is_private(&self) -> bool {
        true
    }

    fn room(&self) -> usize {
        MAX_PAYLOAD
    }

    fn is_connected(&self) -> bool {
        true
    }

    async fn flush(&self, timeout: Duration) -> Result<(), BusError> {
        self.publisher.flush(timeout).await
    }
}

struct MemoryService {
    hub: Arc<MemoryHub>,
    shared: u64,
    own: u64,
    answering: [Answering; 2],
}

impl Drop for MemoryService {
    fn drop(&mut self) {
        self.hub.remove(self.shared);
        self.hub.remove(self.own);
    }
}

#[async_trait]
impl ServiceGuard for MemoryService {
    async fn leave_queue(&self) {
        self.hub.remove(self.shared);
    }

    async fn stop(&self) {
        self.hub.remove(self.shared);
        self.hub.remove(self.own);
        join_all(
            self.answering
                .iter()
                .map(|answering| answering.finish(GRACE)),
        )
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{World, suite};

    struct Memory(Arc<MemoryHub>);

    #[async_trait]
    impl World for Memory {
        async fn end(&self) -> Arc<dyn Bus> {
            Arc::new(MemoryBus::new(self.0.clone()))
        }
    }

    suite!(Memory(MemoryHub::new()));
}
