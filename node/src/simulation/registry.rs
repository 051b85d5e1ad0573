//! The records of a simulated node: a bucket in memory that all nodes share, with delays, outages, lost
//! answers and late hints. Its server can lose the last writes, or all of them.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{
    FutureExt as _, StreamExt as _,
    stream::{self, BoxStream},
};
use planck_common::{
    NodeId,
    registry::{Key, NodeRecord, NodeStanding},
};
use tokio::time::sleep;

use super::world::SimWorld;
use crate::bus::{
    MemoryRecords, Records,
    records::{DEADLINE, Hint, Record, RecordsError, Write},
};

/// Of 1,000 writes of a node without NATS, how many arrive when it has NATS again.
const LATE: u32 = 700;
/// How often a write that is late is tried, and the time between two tries.
const TRIES: u32 = 100;
const TRIED_EVERY: Duration = Duration::from_millis(50);

/// The bucket of all nodes. Its clones share it.
#[derive(Clone, Default)]
pub(super) struct SimBucket(Arc<Mutex<StoredBucket>>);

#[derive(Default)]
struct StoredBucket {
    records: MemoryRecords,
    /// The accepted writes, each with its time.
    written: Vec<(u64, Vec<Write>)>,
    /// When the bucket was created, or `None` if there is none.
    created: Option<u64>,
}

impl SimBucket {
    fn lock(&self) -> MutexGuard<'_, StoredBucket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the bucket if there is none. Returns when it was created.
    fn open(&self, now: u64) -> u64 {
        *self.lock().created.get_or_insert(now)
    }

    fn records(&self) -> Result<MemoryRecords, RecordsError> {
        let bucket = self.lock();
        let missing = || RecordsError::Missing("simulated".into());
        bucket.created.ok_or_else(missing)?;
        Ok(bucket.records.clone())
    }

    fn write(&self, writes: Vec<Write>, now: u64) -> Result<u64, RecordsError> {
        let records = self.records()?;
        let written = records.write(writes.clone()).now_or_never().unwrap();
        if written.is_ok() {
            self.lock().written.push((now, writes));
        }
        written
    }

    fn watch(&self, pattern: &str) -> BoxStream<'static, Hint> {
        self.lock().records.watch(pattern)
    }

    /// Loses the writes since a time, or the whole bucket. Later writes get the lost revisions again.
    pub(super) fn lose(&self, since: Option<u64>) {
        let mut bucket = self.lock();
        bucket.records = MemoryRecords::default();
        match since {
            Some(since) => bucket.written.retain(|(at, _)| *at < since),
            None => (bucket.written, bucket.created) = (Vec::new(), None),
        }
        for (_, writes) in &bucket.written {
            let _ = bucket.records.write(writes.clone()).now_or_never();
        }
    }

    /// Returns the standing of a node, if there is a record of it.
    pub(super) fn standing(&self, node: &NodeId) -> Option<NodeStanding> {
        let records = self.records().ok()?;
        let key = Key::Node(node.clone()).to_string();
        let value = records.read(&key).now_or_never()?.ok()?.value?;
        Some(serde_json::from_slice::<NodeRecord>(&value).ok()?.state)
    }
}

#[derive(Clone)]
pub(super) struct SimRecords {
    pub world: Arc<SimWorld>,
    pub node: NodeId,
    pub bucket: SimBucket,
}

impl SimRecords {
    fn is_reached(&self) -> bool {
        let outages = self.world.outages(&self.node);
        outages.registry.max(outages.nats) <= self.world.millis()
    }

    /// Waits as long as a request takes. Returns whether the server is reached.
    async fn reach(&self) -> bool {
        self.world.while_running(&self.node).await;
        self.world.pause(1..4).await;
        self.world.slowly(&self.node).await;
        self.world.while_running(&self.node).await;
        self.is_reached()
    }

    async fn no_answer<T>(&self, error: RecordsError) -> Result<T, RecordsError> {
        sleep(DEADLINE).await;
        self.world.while_running(&self.node).await;
        Err(error)
    }

    /// Returns whether the answer is lost.
    async fn is_lost(&self) -> bool {
        self.world.pause(0..3).await;
        self.world.while_running(&self.node).await;
        !self.is_reached() || self.world.is_lost(&self.node)
    }

    async fn read_with<T: Send>(
        &self,
        read: impl FnOnce(&MemoryRecords) -> Option<Result<T, RecordsError>> + Send,
    ) -> Result<T, RecordsError> {
        let away = || RecordsError::Away("no answer".into());
        if !self.reach().await {
            return self.no_answer(away()).await;
        }
        let found = read(&self.bucket.records()?).unwrap();
        if self.is_lost().await {
            return Err(away());
        }
        found
    }

    /// Writes now. `sent` is when the node asked for it.
    fn write_sent(&self, writes: Vec<Write>, sent: u64) -> Result<u64, RecordsError> {
        let written = self.bucket.write(writes.clone(), self.world.millis());
        if written.is_ok() {
            self.world.registry_wrote(&self.node, &writes, sent);
        }
        written
    }

    /// Writes once the node has NATS again, although the node no longer waits for it. A client of
    /// NATS keeps what it could not send.
    async fn write_late(self, writes: Vec<Write>, sent: u64) {
        for _ in 0..TRIES {
            sleep(TRIED_EVERY).await;
            if self.is_reached() && self.world.is_running(&self.node) {
                let _ = self.write_sent(writes, sent);
                return;
            }
        }
    }
}

#[async_trait]
impl Records for SimRecords {
    async fn open(&self) -> Result<Duration, RecordsError> {
        if !self.reach().await {
            return self.no_answer(RecordsError::Away("no answer".into())).await;
        }
        let now = self.world.millis();
        let created = self.bucket.open(now);
        Ok(Duration::from_millis(now - created))
    }

    async fn read(&self, key: &str) -> Result<Record, RecordsError> {
        self.read_with(|records| records.read(key).now_or_never())
            .await
    }

    async fn read_all(&self, pattern: &str) -> Result<Vec<Record>, RecordsError> {
        self.read_with(|records| records.read_all(pattern).now_or_never())
            .await
    }

    async fn write(&self, writes: Vec<Write>) -> Result<u64, RecordsError> {
        let sent = self.world.millis();
        if !self.reach().await {
            if self.world.has_nats(&self.node) || !self.world.chance(LATE) {
                return self.no_answer(RecordsError::Away("no answer".into())).await;
            }
            tokio::spawn(self.clone().write_late(writes, sent));
            return self
                .no_answer(RecordsError::Unknown("no answer".into()))
                .await;
        }
        let written = self.write_sent(writes, sent);
        if self.is_lost().await {
            return Err(RecordsError::Unknown("the answer was lost".into()));
        }
        written
    }

    fn watch(&self, pattern: &str) -> BoxStream<'static, Hint> {
        let (bucket, pattern) = (self.bucket.clone(), pattern.to_owned());
        // A bucket that was lost ends its watches.
        let hints = stream::repeat_with(move || bucket.watch(&pattern)).flatten();
        let own = self.clone();
        let heard = move |hint| {
            let own = own.clone();
            async move {
                let is_heard = own.is_reached();
                let now = own.world.millis();
                let late = own.world.outages(&own.node).watches.saturating_sub(now);
                sleep(Duration::from_millis(late)).await;
                own.world.while_running(&own.node).await;
                is_heard.then_some(hint)
            }
        };
        hints.filter_map(heard).boxed()
    }
}
