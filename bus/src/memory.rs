//! The bus within one process, for embedded use and tests. It has the same publisher as the NATS
//! bus, and connects only the nodes and clients of its hub.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{
    StreamExt,
    future::join_all,
    stream::{self, BoxStream},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tracing::Span;

use planck_common::{
    AgentId, NodeId, SessionId,
    subject::{Address, Prefix, SHARED_ENDPOINTS, own_endpoint},
};

use crate::{
    Bus, BusError, CommandHandler, Delivery, Published, ServiceGuard,
    answering::Answering,
    outbox::OutboxLimits,
    publisher::{LinkStatus, Outlet, Publisher},
    records::{Condition, Hint, MOST, Record, Records, RecordsError, Write},
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

// The state that the connections of a memory bus share: the subscriptions and the services.

/// The number of messages that a subscription holds. A reader that falls further behind loses the
/// newest, as over NATS.
pub(crate) const BEHIND: usize = 65_536;

/// A bus without a server, shared by its connections.
#[derive(Default)]
pub struct MemoryHub {
    state: Mutex<HubState>,
}

#[derive(Default)]
struct HubState {
    next: u64,
    subscriptions: Vec<(String, mpsc::Sender<Delivery>)>,
    endpoints: BTreeMap<u64, HubService>,
}

/// The subjects that one service answers.
struct HubService {
    patterns: Vec<String>,
    answering: Answering,
}

impl MemoryHub {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn state(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscribe(&self, pattern: &str) -> mpsc::Receiver<Delivery> {
        let (sender, receiver) = mpsc::channel(BEHIND);
        self.state()
            .subscriptions
            .push((pattern.to_owned(), sender));
        receiver
    }

    fn add(&self, patterns: Vec<String>, answering: Answering) -> u64 {
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        state.endpoints.insert(
            id,
            HubService {
                patterns,
                answering,
            },
        );
        id
    }

    fn remove(&self, endpoint: u64) {
        self.state().endpoints.remove(&endpoint);
    }

    /// Returns one of the services that answer a subject, chosen at random, or `None` if there is
    /// none.
    fn find(&self, subject: &str) -> Option<Answering> {
        let state = self.state();
        let who: Vec<&HubService> = state
            .endpoints
            .values()
            .filter(|endpoint| endpoint.patterns.iter().any(|p| matches(p, subject)))
            .collect();
        fastrand::choice(who).map(|endpoint| endpoint.answering.clone())
    }

    fn deliver(&self, subject: &str, payload: &Bytes) {
        self.state().subscriptions.retain(|(pattern, sender)| {
            if matches(pattern, subject) {
                let delivery = Delivery {
                    subject: subject.to_owned(),
                    payload: payload.clone(),
                };
                if sender.try_send(delivery).is_err() && !sender.is_closed() {
                    tracing::warn!(
                        subject,
                        "dropped a message: its subscription is read too slowly"
                    );
                }
            }
            !sender.is_closed()
        });
    }
}

impl Outlet for MemoryHub {
    fn link(&self) -> LinkStatus {
        LinkStatus {
            up: true,
            connects: 1,
        }
    }

    async fn link_changed(&self) {
        std::future::pending().await
    }

    async fn send(&self, subject: String, payload: Bytes) -> Result<(), BusError> {
        self.deliver(&subject, &payload);
        Ok(())
    }

    async fn flush(&self) -> Result<(), BusError> {
        Ok(())
    }
}

/// Returns whether a subject matches a pattern with NATS wildcards.
fn matches(pattern: &str, subject: &str) -> bool {
    let (mut pattern, mut subject) = (pattern.split('.'), subject.split('.'));
    loop {
        match (pattern.next(), subject.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some(want), Some(have)) if want == "*" || want == have => {}
            (Some(_), Some(_) | None) | (None, Some(_)) => return false,
        }
    }
}

// Records in memory, shared by their clones.

/// The number of hints that a watch holds. A watch that is read too slowly loses the newest.
const HINTS_BEHIND: usize = 65_536;

/// A bucket in memory, dropped with its last clone.
#[derive(Clone)]
pub struct MemoryRecords(Arc<Mutex<Bucket>>);

struct Bucket {
    began: Instant,
    last: u64,
    records: BTreeMap<String, MemoryRecord>,
    watches: Vec<MemoryWatch>,
}

struct MemoryRecord {
    revision: u64,
    value: Option<Bytes>,
    until: Option<Instant>,
}

struct MemoryWatch {
    pattern: String,
    hints: mpsc::Sender<Hint>,
}

impl Default for MemoryRecords {
    fn default() -> Self {
        let bucket = Bucket {
            began: Instant::now(),
            last: 0,
            records: BTreeMap::new(),
            watches: Vec::new(),
        };
        Self(Arc::new(Mutex::new(bucket)))
    }
}

impl MemoryRecords {
    fn bucket(&self) -> MutexGuard<'_, Bucket> {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bucket
            .records
            .retain(|_, stored| stored.until.is_none_or(|until| until > Instant::now()));
        bucket
    }
}

impl Bucket {
    fn find(&self, key: &str) -> Record {
        let stored = self.records.get(key);
        Record {
            key: key.into(),
            revision: stored.map_or(0, |stored| stored.revision),
            value: stored.and_then(|stored| stored.value.clone()),
        }
    }

    fn holds(&self, Condition { key, revision }: &Condition) -> bool {
        self.records.get(key).map_or(0, |stored| stored.revision) == *revision
    }

    fn store(&mut self, write: Write) {
        self.last += 1;
        let stored = MemoryRecord {
            revision: self.last,
            value: write.value,
            until: write
                .lasts
                .map(|time| Instant::now() + Duration::from_secs(time.as_secs())),
        };
        self.records.insert(write.key.clone(), stored);
        let record = self.find(&write.key);
        self.watches.retain(|watch| !watch.hints.is_closed());
        for watch in self
            .watches
            .iter()
            .filter(|watch| matches(&watch.pattern, &record.key))
        {
            let _too_slow = watch.hints.try_send(Hint::Changed(record.clone()));
        }
    }

    fn fitting(&self, pattern: &str) -> Vec<Record> {
        let keys = self.records.keys().filter(|key| matches(pattern, key));
        let mut records: Vec<Record> = keys.map(|key| self.find(key)).collect();
        records.sort_by_key(|record| record.revision);
        records
    }
}

#[async_trait]
impl Records for MemoryRecords {
    async fn open(&self) -> Result<Duration, RecordsError> {
        Ok(self.bucket().began.elapsed())
    }

    async fn read(&self, key: &str) -> Result<Record, RecordsError> {
        Ok(self.bucket().find(key))
    }

    async fn read_all(&self, pattern: &str) -> Result<Vec<Record>, RecordsError> {
        let records = self.bucket().fitting(pattern);
        Ok(records
            .into_iter()
            .filter(|record| record.value.is_some())
            .take(MOST)
            .collect())
    }

    async fn write(&self, writes: Vec<Write>) -> Result<u64, RecordsError> {
        let mut bucket = self.bucket();
        if !writes
            .iter()
            .filter_map(|write| write.only_if.as_ref())
            .all(|condition| bucket.holds(condition))
        {
            return Err(RecordsError::Refused);
        }
        for write in writes {
            bucket.store(write);
        }
        Ok(bucket.last)
    }

    fn watch(&self, pattern: &str) -> BoxStream<'static, Hint> {
        let mut bucket = self.bucket();
        let (sender, receiver) = mpsc::channel(HINTS_BEHIND);
        let now: Vec<Hint> = bucket
            .fitting(pattern)
            .into_iter()
            .map(Hint::Changed)
            .collect();
        bucket.watches.push(MemoryWatch {
            pattern: pattern.into(),
            hints: sender,
        });
        stream::iter([Hint::Restarted])
            .chain(stream::iter(now))
            .chain(ReceiverStream::new(receiver))
            .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        conformance::{World, suite},
        records::conformance::{cases, tests},
    };

    struct Memory(Arc<MemoryHub>);

    #[async_trait]
    impl World for Memory {
        async fn end(&self) -> Arc<dyn Bus> {
            Arc::new(MemoryBus::new(self.0.clone()))
        }
    }

    suite!(Memory(MemoryHub::new()));

    #[test]
    fn wildcards_match_as_in_nats() {
        for (pattern, subject, fits) in [
            ("agent.a", "agent.a", true),
            ("agent.*", "agent.a", true),
            ("agent.*", "agent.a.b", false),
            ("agent.>", "agent.a.b", true),
            ("agent.>", "agent", false),
            (">", "a", true),
            ("agent.a", "agent.b", false),
        ] {
            assert_eq!(matches(pattern, subject), fits, "{pattern} {subject}");
        }
    }

    struct SharedRecords(MemoryRecords);

    #[async_trait]
    impl crate::records::conformance::World for SharedRecords {
        async fn end(&self) -> Arc<dyn Records> {
            Arc::new(self.0.clone())
        }
    }

    cases!(tests, SharedRecords(MemoryRecords::default()));
}
