//! Records in a JetStream KV bucket. This module sends raw messages where the client library's
//! calls are not enough: the library's reads come from any replica and may be stale, and its writes
//! support neither conditions on other keys nor batches.

mod bucket;

use std::{sync::Arc, time::Duration};

use async_nats::{
    HeaderMap, header,
    jetstream::{
        self,
        kv::{Entry, Operation, Watch},
    },
};
use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use planck_common::server_clock::ServerClock;

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
        found(&answer, &self.bucket)
    }

    async fn publish(&self, writes: &[Outgoing]) -> Result<u64, RecordsError> {
        match self.exchange("the registry", writes, DEADLINE).await {
            Ok(answer) => stored(&answer, &self.bucket).map(|WriteAck { seq }| seq),
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
        hints(self.clone(), pattern.to_owned())
    }
}

// Reads JetStream's replies, and maps its error codes.

const WRONG_LAST_SEQUENCE: u64 = 10_071;
/// The code for a wrong last sequence number in a batch, and wherever else the server does not
/// report the correct number.
const WRONG_LAST_SEQUENCE_CONSTANT: u64 = 10_164;
/// The code for a write while other writes to the key are in progress. Nothing was written.
const NOT_READY: u64 = 10_163;
/// The code for a batch of which a message was lost. Nothing was written.
const INCOMPLETE_BATCH: u64 = 10_176;
const STREAM_NOT_FOUND: u64 = 10_059;
const NO_MESSAGE_FOUND: u64 = 10_037;
/// The code if JetStream or its stream has no leader.
const UNAVAILABLE: u64 = 503;

/// A message of the stream.
struct StreamMessage {
    subject: String,
    seq: u64,
    /// The value, or `None` if the message removes the key.
    value: Option<Bytes>,
}

/// The confirmation of a write.
#[derive(Deserialize)]
struct WriteAck {
    seq: u64,
}

#[derive(Deserialize)]
struct Failed {
    error: JetStreamRefusal,
}

#[derive(Deserialize)]
struct JetStreamRefusal {
    code: u64,
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

#[derive(Deserialize)]
struct MessageReply {
    message: RawMessage,
}

#[derive(Deserialize)]
struct RawMessage {
    subject: String,
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

fn stored(answer: &[u8], bucket: &str) -> Result<WriteAck, RecordsError> {
    parse(answer, bucket).map_err(JetStreamError::into_error)
}

/// Reads a reply with a message of the stream. Returns `None` if there is no such message.
fn found(answer: &[u8], bucket: &str) -> Result<Option<StreamMessage>, RecordsError> {
    match parse::<MessageReply>(answer, bucket) {
        Ok(MessageReply { message }) => message.read().map(Some),
        Err(JetStreamError {
            code: NO_MESSAGE_FOUND,
            ..
        }) => Ok(None),
        Err(failure) => Err(failure.into_error()),
    }
}

/// Parses a reply of the API. Fails with the error that the reply contains, or if the reply cannot
/// be parsed.
fn parse<T: DeserializeOwned>(answer: &[u8], bucket: &str) -> Result<T, JetStreamError> {
    if let Ok(Failed { error }) = serde_json::from_slice(answer) {
        return Err(JetStreamError::of(error, bucket));
    }
    let foreign = |error: serde_json::Error| JetStreamError {
        code: 0,
        error: RecordsError::Unfit(format!(
            "cannot read JetStream's answer about bucket {bucket}: {error}"
        )),
    };
    serde_json::from_slice(answer).map_err(foreign)
}

/// An error code of JetStream, and its meaning.
struct JetStreamError {
    code: u64,
    error: RecordsError,
}

impl JetStreamError {
    fn of(
        JetStreamRefusal {
            code,
            err_code,
            description,
        }: JetStreamRefusal,
        bucket: &str,
    ) -> Self {
        let error = match (err_code, code) {
            (WRONG_LAST_SEQUENCE | WRONG_LAST_SEQUENCE_CONSTANT, _) => RecordsError::Refused,
            (STREAM_NOT_FOUND, _) => RecordsError::Missing(bucket.into()),
            (NOT_READY | INCOMPLETE_BATCH, _) | (_, UNAVAILABLE) => RecordsError::Away(description),
            _ => RecordsError::Unfit(format!(
                "JetStream refuses bucket {bucket} something: {description} ({err_code})"
            )),
        };
        Self {
            code: err_code,
            error,
        }
    }

    fn into_error(self) -> RecordsError {
        self.error
    }
}

impl RawMessage {
    fn read(self) -> Result<StreamMessage, RecordsError> {
        let broken =
            |error| RecordsError::Unfit(format!("cannot read a message of JetStream: {error}"));
        let (headers, data) = (
            BASE64_STANDARD.decode(&self.hdrs),
            BASE64_STANDARD.decode(&self.data),
        );
        let (headers, data) = (headers.map_err(broken)?, data.map_err(broken)?);
        let value = (!removes(&String::from_utf8_lossy(&headers))).then(|| data.into());
        Ok(StreamMessage {
            subject: self.subject,
            seq: self.seq,
            value,
        })
    }
}

/// Returns whether the headers mark a message that removes its key. A client writes such a message
/// to remove the key, and the server when a record expires.
fn removes(headers: &str) -> bool {
    let mut names = headers.lines().filter_map(|line| line.split(':').next());
    names.any(|name| name == OPERATION || name == "Nats-Marker-Reason")
}

// A watch that is restarted whenever it breaks. The client library's own watch continues after
// some of its errors and stays silent after others, so this module restarts the watch after any
// error.

/// The pause after a failed attempt to start a watch.
const PAUSE: Duration = Duration::from_millis(500);

struct WatchTask {
    records: NatsRecords,
    pattern: String,
    watch: Option<Watch>,
}

fn hints(records: NatsRecords, pattern: String) -> BoxStream<'static, Hint> {
    let watching = WatchTask {
        records,
        pattern,
        watch: None,
    };
    stream::unfold(watching, |mut watching| async move {
        Some((watching.next().await, watching))
    })
    .boxed()
}

impl WatchTask {
    async fn next(&mut self) -> Hint {
        loop {
            match &mut self.watch {
                Some(watch) => match watch.next().await {
                    Some(Ok(entry)) => return changed(entry),
                    Some(Err(error)) => self.broke(&error.to_string()),
                    None => self.broke("it ended"),
                },
                None => match timeout(DEADLINE, begin(&self.records, &self.pattern)).await {
                    Ok(Ok(watch)) => {
                        self.watch = Some(watch);
                        return Hint::Restarted;
                    }
                    Ok(Err(error)) => pause(&self.records.bucket, &error).await,
                    Err(_) => pause(&self.records.bucket, "no answer").await,
                },
            }
        }
    }

    fn broke(&mut self, why: &str) {
        tracing::debug!(
            bucket = self.records.bucket,
            why,
            "restarting a watch of the registry"
        );
        self.watch = None;
    }
}

async fn begin(records: &NatsRecords, pattern: &str) -> Result<Watch, String> {
    let client = records.link.client.clone();
    let jetstream = jetstream::context::ContextBuilder::new()
        .timeout(DEADLINE)
        .build(client);
    let bucket = jetstream
        .get_key_value(&records.bucket)
        .await
        .map_err(|error| error.to_string())?;
    bucket
        .watch_with_history(pattern)
        .await
        .map_err(|error| error.to_string())
}

async fn pause(bucket: &str, why: &str) {
    tracing::debug!(bucket, why, "cannot watch the registry");
    sleep(PAUSE).await;
}

fn changed(entry: Entry) -> Hint {
    let value = match entry.operation {
        Operation::Put => Some(entry.value),
        Operation::Delete | Operation::Purge => None,
    };
    Hint::Changed(Record {
        key: entry.key,
        revision: entry.revision,
        value,
    })
}

#[cfg(test)]
mod tests;
