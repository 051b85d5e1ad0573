//! Records in a JetStream KV bucket. This module sends raw messages where the client library's
//! calls are not enough: the library's reads come from any replica and may be stale, and its writes
//! support neither conditions on other keys nor batches.

mod bucket;
mod reply;
mod watch;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use async_nats::{HeaderMap, header};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use planck_common::server_clock::ServerClock;
use serde_json::json;
use tokio::time::Instant;

use self::reply::{StreamMessage, WriteAck};
use super::{
    link::NatsLink,
    request::{LINK_PATIENCE, Outgoing, exchange},
};
use crate::{
    BusError,
    records::{DEADLINE, Hint, MOST, Record, Records, RecordsError, Write},
};

/// How long reading many records may take.
const READING: Duration = Duration::from_secs(10);

/// The header of a message that removes a key, as in every client of a KV bucket.
const OPERATION: &str = "KV-Operation";

/// The key of a test write that is always refused.
const TRIAL: &str = "trial";

/// A KV bucket over a connection.
#[derive(Clone)]
pub struct NatsRecords {
    link: Arc<NatsLink>,
    bucket: String,
    replicas: usize,
}

impl NatsRecords {
    pub(super) fn new(link: Arc<NatsLink>, bucket: String, replicas: usize) -> Self {
        Self {
            link,
            bucket,
            replicas,
        }
    }

    /// Tests whether a node could read and write the bucket, and changes nothing. Returns the clock
    /// of the server that leads the bucket, or `None` if there is no bucket yet.
    pub(super) async fn try_out(&self) -> Result<Option<ServerClock>, RecordsError> {
        self.link_up().await?;
        let Some(clock) = bucket::clock(self).await? else {
            return Ok(None);
        };
        // No key is ever at this revision, so the leader refuses the write. Only the leader can
        // check the condition.
        let write = Write::put(TRIAL, Bytes::new())
            .at(u64::MAX >> 1)
            .lasting(Duration::from_secs(1));
        match self.write(vec![write]).await {
            Err(RecordsError::Refused) => Ok(Some(clock)),
            Err(error) => Err(error),
            Ok(_) => Err(RecordsError::Unfit(format!(
                "bucket {} took a write whose condition does not hold",
                self.bucket
            ))),
        }
    }

    fn stream(&self) -> String {
        format!("KV_{}", self.bucket)
    }

    fn subject(&self, key: &str) -> String {
        format!("$KV.{}.{key}", self.bucket)
    }

    fn key(&self, subject: &str) -> Option<String> {
        Some(
            subject
                .strip_prefix("$KV.")?
                .strip_prefix(&self.bucket)?
                .strip_prefix('.')?
                .to_owned(),
        )
    }

    /// Sends a request about the bucket's stream to JetStream's API, and returns the reply.
    async fn ask(
        &self,
        verb: &str,
        body: Bytes,
        patience: Duration,
    ) -> Result<Bytes, RecordsError> {
        let subject = format!("$JS.API.STREAM.{verb}.{}", self.stream());
        let messages = [Outgoing {
            subject: subject.clone(),
            headers: None,
            body,
        }];
        self.exchange(&subject, &messages, patience)
            .await
            .map_err(|error| match error {
                BusError::NoResponders(_) => RecordsError::Away("there is no JetStream".into()),
                BusError::TimedOut { .. } | BusError::Away(_) | BusError::Ended => {
                    RecordsError::Away(error.to_string())
                }
                BusError::Denied(why) => RecordsError::Denied(why),
                BusError::TooLarge { .. } | BusError::Unfit(_) => {
                    RecordsError::Unfit(error.to_string())
                }
            })
    }

    /// Sends messages and returns the first reply that is not empty. The replies to all but the
    /// last message of a batch are empty.
    async fn exchange(
        &self,
        name: &str,
        messages: &[Outgoing],
        patience: Duration,
    ) -> Result<Bytes, BusError> {
        exchange(&self.link, messages, name, patience, |reply| {
            !reply.is_empty()
        })
        .await
    }

    /// Waits for the link, because a message sent over a link that is down would be written when
    /// the link is up again.
    async fn link_up(&self) -> Result<(), RecordsError> {
        let up = self.link.up_by(Instant::now() + LINK_PATIENCE).await;
        up.map_err(|error| RecordsError::Away(error.to_string()))
    }

    async fn find(
        &self,
        question: serde_json::Value,
        patience: Duration,
    ) -> Result<Option<StreamMessage>, RecordsError> {
        let answer = self
            .ask("MSG.GET", question.to_string().into(), patience)
            .await?;
        reply::found(&answer, &self.bucket)
    }

    async fn publish(&self, writes: &[Outgoing]) -> Result<u64, RecordsError> {
        match self.exchange("the registry", writes, DEADLINE).await {
            Ok(answer) => reply::stored(&answer, &self.bucket).map(|WriteAck { seq }| seq),
            Err(BusError::NoResponders(_)) => Err(self.why_nobody().await),
            Err(BusError::Denied(why)) => Err(RecordsError::Denied(why)),
            Err(error @ (BusError::TimedOut { .. } | BusError::Away(_) | BusError::Ended)) => {
                Err(RecordsError::Unknown(error.to_string()))
            }
            Err(error @ (BusError::TooLarge { .. } | BusError::Unfit(_))) => {
                Err(RecordsError::Unfit(error.to_string()))
            }
        }
    }

    /// Returns the error for a write that had no responders: the bucket does not exist, or it has
    /// no leader.
    async fn why_nobody(&self) -> RecordsError {
        match self
            .find(json!({ "last_by_subj": self.subject("store") }), DEADLINE)
            .await
        {
            Err(error) => error,
            Ok(_) => RecordsError::Away("JetStream was electing the bucket's leader".into()),
        }
    }

    fn outgoing(&self, writes: Vec<Write>) -> Vec<Outgoing> {
        let (count, batch) = (writes.len(), self.link.client.new_inbox());
        let one = |(number, write): (usize, Write)| {
            let mut headers = self.headers(&write);
            if count > 1 {
                headers.insert(
                    header::NATS_BATCH_ID,
                    batch.rsplit('.').next().unwrap_or_default(),
                );
                headers.insert(header::NATS_BATCH_SEQUENCE, number.to_string());
            }
            if count > 1 && number == count {
                headers.insert(header::NATS_BATCH_COMMIT, header::NATS_BATCH_COMMIT_FINAL);
            }
            Outgoing {
                subject: self.subject(&write.key),
                headers: Some(headers),
                body: write.value.unwrap_or_default(),
            }
        };
        (1..).zip(writes).map(one).collect()
    }

    fn headers(&self, write: &Write) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(condition) = &write.only_if {
            headers.insert(
                header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE,
                condition.revision.to_string(),
            );
            if condition.key != write.key {
                headers.insert(EXPECTED_SUBJECT, self.subject(&condition.key));
            }
        }
        if let Some(time) = write.lasts {
            headers.insert(
                header::NATS_MESSAGE_TTL,
                format!("{}s", time.as_secs().max(1)),
            );
        }
        if write.value.is_none() {
            headers.insert(OPERATION, "PURGE");
        }
        headers
    }
}

/// The header with the key of a condition, if the condition is about another key than the written
/// one.
const EXPECTED_SUBJECT: &str = "Nats-Expected-Last-Subject-Sequence-Subject";

#[async_trait]
impl Records for NatsRecords {
    async fn open(&self) -> Result<Duration, RecordsError> {
        self.link_up().await?;
        bucket::open(self).await
    }

    async fn read(&self, key: &str) -> Result<Record, RecordsError> {
        self.link_up().await?;
        let found = self
            .find(json!({ "last_by_subj": self.subject(key) }), DEADLINE)
            .await?;
        let nothing = || Record {
            key: key.to_owned(),
            revision: 0,
            value: None,
        };
        Ok(found.map_or_else(nothing, |found| Record {
            key: key.to_owned(),
            revision: found.seq,
            value: found.value,
        }))
    }

    async fn read_all(&self, pattern: &str) -> Result<Vec<Record>, RecordsError> {
        self.link_up().await?;
        let (deadline, subject) = (Instant::now() + READING, self.subject(pattern));
        let (mut records, mut from) = (Vec::new(), 1);
        while Instant::now() < deadline {
            let question = json!({ "seq": from, "next_by_subj": subject });
            let Some(StreamMessage {
                subject,
                seq,
                value,
            }) = self.find(question, DEADLINE).await?
            else {
                return Ok(records);
            };
            from = seq + 1;
            if let (Some(key), Some(value)) = (self.key(&subject), value) {
                records.push(Record {
                    key,
                    revision: seq,
                    value: Some(value),
                });
            }
            if records.len() > MOST {
                return Err(RecordsError::Unfit(format!(
                    "bucket {} has more than {MOST} records {pattern}",
                    self.bucket
                )));
            }
        }
        Err(RecordsError::Away(format!(
            "records {pattern} were not read within {READING:?}"
        )))
    }

    async fn write(&self, writes: Vec<Write>) -> Result<u64, RecordsError> {
        self.link_up().await?;
        self.publish(&self.outgoing(writes)).await
    }

    fn watch(&self, pattern: &str) -> BoxStream<'static, Hint> {
        watch::hints(self.clone(), pattern.to_owned())
    }
}
