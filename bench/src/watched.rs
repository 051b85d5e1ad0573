//! A bus that records when each turn ends, so that the benchmark needs no subscription.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use planck_common::{AgentId, NodeId, SessionId, subject::Address};
use tokio::{sync::Notify, time::timeout};

use planck_bus::{Bus, BusError, CommandHandler, Delivery, Published, ServiceGuard};

/// The first bytes of the event that reports a failed turn.
const FAILED: &[u8] = br#"{"v":1,"type":"error""#;

pub struct WatchedBus {
    inner: Arc<dyn Bus>,
    ended: Mutex<Vec<(AgentId, Instant)>>,
    failed: AtomicUsize,
    news: Notify,
}

impl WatchedBus {
    pub fn new(inner: Arc<dyn Bus>) -> Self {
        Self {
            inner,
            ended: Mutex::default(),
            failed: AtomicUsize::new(0),
            news: Notify::new(),
        }
    }

    /// Waits until `count` turns have ended. Returns the agent of each and when it ended. Fails if
    /// a turn failed, or if that takes longer than `within`.
    pub async fn ends(&self, count: usize, within: Duration) -> Result<Vec<(AgentId, Instant)>> {
        let all = async {
            while self.lock().len() < count {
                self.news.notified().await;
            }
        };
        timeout(within, all)
            .await
            .with_context(|| format!("{} of {count} turns ended in time", self.lock().len()))?;
        match self.failed.load(Ordering::Relaxed) {
            0 => Ok(std::mem::take(&mut *self.lock())),
            failed => bail!("{failed} turns failed"),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(AgentId, Instant)>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Bus for WatchedBus {
    fn publish(&self, subject: String, payload: Bytes) {
        self.inner.publish(subject, payload);
    }

    fn publish_event(&self, event: Published) {
        if event.payload.starts_with(FAILED) {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.publish_event(event);
    }

    fn turn_open(&self, session: &SessionId, agent: &AgentId, open: bool) {
        if !open {
            self.lock().push((agent.clone(), Instant::now()));
            self.news.notify_one();
        }
        self.inner.turn_open(session, agent, open);
    }

    async fn request(
        &self,
        to: &Address,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, BusError> {
        self.inner.request(to, body, timeout).await
    }

    async fn subscribe(&self, subject: &str) -> Result<BoxStream<'static, Delivery>, BusError> {
        self.inner.subscribe(subject).await
    }

    async fn serve(
        &self,
        node: &NodeId,
        answer: CommandHandler,
    ) -> Result<Box<dyn ServiceGuard>, BusError> {
        self.inner.serve(node, answer).await
    }

    fn is_connected(&self) -> bool {
        self.inner.is_connected()
    }

    async fn flush(&self, timeout: Duration) -> Result<(), BusError> {
        self.inner.flush(timeout).await
    }
}
