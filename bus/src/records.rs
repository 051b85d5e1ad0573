//! A bucket of small records that all nodes share. Reads come from the bucket's leader, and writes
//! may have conditions. Each value has a revision that rises with every write to the bucket, so a
//! condition on a revision is a fence.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;

/// The maximum duration of one request to the bucket's server, except the request that creates the
/// bucket. A call may need several requests.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// The maximum number of records that one call returns. If there are more, the NATS bucket fails,
/// and the memory bucket leaves them out.
pub const MOST: usize = 10_000;

/// A bucket. Its revisions may go back when its server loses data, so do not store them elsewhere.
#[async_trait]
pub trait Records: Send + Sync {
    /// Creates the bucket if it does not exist, checks its settings, and returns its age.
    async fn open(&self) -> Result<Duration, RecordsError>;

    /// Returns the record under a key, as the leader has it.
    async fn read(&self, key: &str) -> Result<Record, RecordsError>;

    /// Returns the records under all keys that match a pattern, as the leader has them, ordered by
    /// revision. Removed records are left out.
    async fn read_all(&self, pattern: &str) -> Result<Vec<Record>, RecordsError>;

    /// Writes all or nothing, and returns the revision of the last write. All keys must differ, and
    /// a condition must not refer to a key that an earlier write of the call changes.
    async fn write(&self, writes: Vec<Write>) -> Result<u64, RecordsError>;

    /// Watches the keys that match a pattern. The changes are hints: values may be missing or late.
    /// The stream never ends.
    fn watch(&self, pattern: &str) -> BoxStream<'static, Hint>;
}

/// A key with its revision and its value, if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub key: String,
    /// The revision; 0 if the key was never written.
    pub revision: u64,
    /// The value; `None` if the key was never written or was removed.
    pub value: Option<Bytes>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub key: String,
    /// The new value; `None` removes the record.
    pub value: Option<Bytes>,
    pub only_if: Option<Condition>,
    /// The time after which the record expires, rounded down to whole seconds; over NATS at least
    /// one second.
    pub lasts: Option<Duration>,
}

/// The condition that the last write to a key has this revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub key: String,
    /// The revision; 0 if the key was never written.
    pub revision: u64,
}

impl Write {
    pub fn put(key: impl Into<String>, value: impl Into<Bytes>) -> Self {
        Self {
            key: key.into(),
            value: Some(value.into()),
            only_if: None,
            lasts: None,
        }
    }

    pub fn remove(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            value: None,
            only_if: None,
            lasts: None,
        }
    }

    /// Sets the condition of the write: the written key is at this revision.
    pub fn at(self, revision: u64) -> Self {
        let key = self.key.clone();
        self.while_at(key, revision)
    }

    /// Sets the condition of the write: another key is at this revision.
    pub fn while_at(self, key: impl Into<String>, revision: u64) -> Self {
        Self {
            only_if: Some(Condition {
                key: key.into(),
                revision,
            }),
            ..self
        }
    }

    pub fn lasting(self, time: Duration) -> Self {
        Self {
            lasts: Some(time),
            ..self
        }
    }
}

/// An item of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// The watch started or was restarted. The present values follow. Earlier changes may be
    /// missing.
    Restarted,
    Changed(Record),
}

/// The reason why a record was not read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordsError {
    /// A condition did not hold. Nothing was written.
    #[error("another write came first")]
    Refused,
    /// The record may have been written, or may be written later.
    #[error("it is unknown whether the write succeeded: {0}")]
    Unknown(String),
    /// No answer came in time, or the bucket has no leader. No record was written.
    #[error("the registry does not answer: {0}")]
    Away(String),
    #[error("there is no bucket {0}; it was removed, or its server lost it")]
    Missing(String),
    #[error("{0}")]
    Denied(String),
    /// The bucket or its server cannot be used until an operator changes its settings.
    #[error("{0}")]
    Unfit(String),
}
