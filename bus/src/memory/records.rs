//! Records in memory, shared by their clones.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;

use super::hub::matches;
use crate::records::{Condition, Hint, MOST, Record, Records, RecordsError, Write};

/// The number of hints that a watch holds. A watch that is read too slowly loses the newest.
const BEHIND: usize = 65_536;

/// A bucket in memory, dropped with its last clone.
#[derive(Clone)]
pub struct MemoryRecords(Arc<Mutex<Bucket>>);

struct Bucket {
    began: Instant,
    last: u64,
    records: BTreeMap<String, StoredRecord>,
    watches: Vec<MemoryWatch>,
}

struct StoredRecord {
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
        let stored = StoredRecord {
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
        let (sender, receiver) = mpsc::channel(BEHIND);
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
    use crate::records::conformance::{cases, tests};

    struct Memory(MemoryRecords);

    #[async_trait]
    impl crate::records::conformance::World for Memory {
        async fn end(&self) -> Arc<dyn Records> {
            Arc::new(self.0.clone())
        }
    }

    cases!(tests, Memory(MemoryRecords::default()));
}
