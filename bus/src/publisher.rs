//! The one task that publishes for all agents of a process. Publications handed over within a
//! window are written together.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use planck_common::{AgentId, SessionId, subject::Prefix};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    BusError, Published,
    outbox::{Outbox, OutboxLimits, Publication},
    truncate,
};
use crate::telemetry;

/// The current state of a link. `connects` counts how often the link was established, so that an
/// unreported reconnect is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkStatus {
    pub up: bool,
    pub connects: u64,
}

/// The connection over which publications are sent.
pub trait Outlet: Send + Sync + 'static {
    fn link(&self) -> LinkStatus;
    /// Returns when the link may have changed.
    fn link_changed(&self) -> impl Future<Output = ()> + Send;
    /// Sends one message. An error means that the link went down.
    fn send(
        &self,
        subject: String,
        payload: Bytes,
    ) -> impl Future<Output = Result<(), BusError>> + Send;
    /// Returns when everything sent before is written out.
    fn flush(&self) -> impl Future<Output = Result<(), BusError>> + Send;
}

/// A handle to the publishing task. The task ends when the token given to [`Publisher::start`] is
/// cancelled.
#[derive(Debug, Clone)]
pub struct Publisher {
    shared: Arc<PublisherState>,
}

#[derive(Debug)]
struct PublisherState {
    outbox: Mutex<Outbox>,
    flushes: Mutex<Vec<oneshot::Sender<Result<(), BusError>>>>,
    wake: Notify,
}

impl PublisherState {
    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flushes(&self) -> MutexGuard<'_, Vec<oneshot::Sender<Result<(), BusError>>>> {
        self.flushes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Publisher {
    /// Starts the task on the current runtime. The task runs until `stop` is cancelled.
    pub fn start(
        outlet: Arc<impl Outlet>,
        prefix: Prefix,
        limits: OutboxLimits,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let shared = Arc::new(PublisherState {
            outbox: Mutex::new(Outbox::new(limits)),
            flushes: Mutex::default(),
            wake: Notify::new(),
        });
        let task = Task {
            connects: outlet.link().connects,
            outlet,
            prefix,
            shared: shared.clone(),
        };
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = task.run() => {}
            }
        });
        Self { shared }
    }

    pub fn publish(&self, subject: String, payload: Bytes) {
        self.push(Publication::Plain { subject, payload });
    }

    pub fn publish_event(&self, mut event: Published) {
        if event.payload.len() > truncate::EVENT_LIMIT {
            event.payload = cut(&event.payload);
        }
        self.push(Publication::Event(event));
    }

    pub fn turn_open(&self, session: &SessionId, agent: &AgentId, open: bool) {
        self.shared
            .outbox()
            .turn(session, agent, open, Instant::now());
        self.shared.wake.notify_one();
    }

    /// Waits until everything published before is written out. Fails after `timeout`, or if the
    /// link is down.
    pub async fn flush(&self, timeout: Duration) -> Result<(), BusError> {
        let (done, wait) = oneshot::channel();
        // The held publications must become due before the task sees the flush. Otherwise the task
        // could answer the flush while the publications are still held.
        self.shared.outbox().hurry();
        self.shared.flushes().push(done);
        self.shared.wake.notify_one();
        let away = || BusError::Away("the publications were not written out in time".into());
        tokio::time::timeout(timeout, wait)
            .await
            .map_err(|_| away())?
            .map_err(|_| away())?
    }

    /// Returns the number of publications dropped so far because the link was down or slow.
    pub fn dropped(&self) -> u64 {
        self.shared.outbox().dropped()
    }

    fn push(&self, item: Publication) {
        let first = self.shared.outbox().push(item, Instant::now());
        if first {
            self.shared.wake.notify_one();
        }
    }
}

/// Returns the event, shortened if it is over the size limit. A payload that is not UTF-8 is not an
/// event, and becomes empty.
fn cut(payload: &Bytes) -> Bytes {
    let text = std::str::from_utf8(payload).unwrap_or_default();
    truncate::fit(text, truncate::EVENT_LIMIT)
        .into_owned()
        .into()
}

struct Task<O> {
    outlet: Arc<O>,
    prefix: Prefix,
    shared: Arc<PublisherState>,
    connects: u64,
}

impl<O: Outlet> Task<O> {
    async fn run(mut self) {
        loop {
            self.wait().await;
            let link = self.outlet.link();
            if link.up {
                self.write_ripe(link).await;
            } else {
                self.shared.outbox().link_down(Instant::now());
                self.answer_flushes(&Err(BusError::Away("the link is down".into())));
            }
        }
    }

    async fn wait(&self) {
        let next = self.shared.outbox().next();
        let ripe = async {
            match next {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = ripe => {}
            () = self.shared.wake.notified() => {}
            () = self.outlet.link_changed() => {}
        }
    }

    async fn write_ripe(&mut self, link: LinkStatus) {
        let flushes = std::mem::take(&mut *self.shared.flushes());
        let (batch, since) = {
            let (mut outbox, now) = (self.shared.outbox(), Instant::now());
            if link.connects != self.connects {
                self.connects = link.connects;
                outbox.link_renewed(now);
            }
            let since = outbox.since();
            let batch = outbox.take(now);
            (batch, since.filter(|_| outbox.since().is_none()))
        };
        if self.write(batch).await
            && let Some(since) = since
        {
            telemetry::installed().published(since.elapsed());
        }
        if !flushes.is_empty() {
            let result = self.outlet.flush().await;
            for flush in flushes {
                let _gone = flush.send(result.clone());
            }
        }
    }

    /// Writes a batch, and returns whether all of it was written. After an error the rest is
    /// dropped.
    async fn write(&self, batch: Vec<Publication>) -> bool {
        let mut items = batch.into_iter();
        while let Some(item) = items.next() {
            let copy = item.clone();
            for (subject, payload) in item.messages(&self.prefix) {
                if self.outlet.send(subject, payload).await.is_err() {
                    let rest = std::iter::once(copy).chain(items);
                    self.shared.outbox().drop_unwritten(rest, Instant::now());
                    return false;
                }
            }
        }
        true
    }

    fn answer_flushes(&self, result: &Result<(), BusError>) {
        for flush in std::mem::take(&mut *self.shared.flushes()) {
            let _gone = flush.send(result.clone());
        }
    }
}
