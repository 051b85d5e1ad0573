//! A bucket of small records that all nodes share: read from its leader, written on conditions.
//! What is written under a key carries a revision that grows with every write to the bucket, so a
//! condition on it is a fence.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;

/// What every call takes at most, but for the first [`open`](Records::open) of a bucket and the
/// reading of many records.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// What one reading of many records gives at most.
pub const MOST: usize = 10_000;

/// A bucket. Revisions may go back when its server lost what it had, so they are kept in no other
/// place.
#[async_trait]
pub trait Records: Send + Sync {
    /// Makes the bucket unless it is there, checks that its settings are the right ones, and gives
    /// its age.
    async fn open(&self) -> Result<Duration, RecordsError>;

    /// What stands under a key, as the leader has it.
    async fn read(&self, key: &str) -> Result<Record, RecordsError>;

    /// What stands under all keys that fit a pattern, as the leader has it, in the order of their
    /// revisions. What was removed is left out.
    async fn read_all(&self, pattern: &str) -> Result<Vec<Record>, RecordsError>;

    /// Writes all or nothing, and gives the last one's revision. The keys are different ones, and
    /// no condition is on a key that is written before it.
    async fn write(&self, writes: Vec<Write>) -> Result<u64, RecordsError>;

    /// What changes under keys that fit a pattern. A hint: values may be left out, and come late.
    /// It never ends.
    fn watch(&self, pattern: &str) -> BoxStream<'static, Hint>;
}

/// What stands under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub key: String,
    /// 0: nothing was ever written.
    pub revision: u64,
    /// `None`: nothing, or it was removed.
    pub value: Option<Bytes>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub key: String,
    /// `None` removes the record.
    pub value: Option<Bytes>,
    pub only_if: Option<Condition>,
    /// After which what is written vanishes; whole seconds.
    pub lasts: Option<Duration>,
}

/// That the last write to a key is this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub key: String,
    /// 0: nothing was ever written.
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

    /// On the condition that its own key is at this revision.
    pub fn at(self, revision: u64) -> Self {
        let key = self.key.clone();
        self.while_at(key, revision)
    }

    /// On the condition that another key is at this revision.
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

/// What a watch tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// The watch began, or began anew: what stands there now follows, and what happened before may
    /// never be told.
    LookAgain,
    Changed(Record),
}

/// Why a record was not read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordsError {
    /// A condition did not hold: nothing was written.
    #[error("another write came first")]
    Refused,
    /// It may have been written, now or later.
    #[error("nobody knows whether it was written: {0}")]
    Unknown(String),
    /// Nothing was done.
    #[error("the registry does not answer: {0}")]
    Away(String),
    #[error("there is no bucket {0}; it was removed, or its server lost it")]
    Missing(String),
    #[error("{0}")]
    Denied(String),
    /// A person must help.
    #[error("{0}")]
    Unfit(String),
}
