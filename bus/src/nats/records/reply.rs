//! Reads JetStream's replies, and maps its error codes.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::{Deserialize, de::DeserializeOwned};

use super::OPERATION;
use crate::records::RecordsError;

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
pub(super) struct StreamMessage {
    pub subject: String,
    pub seq: u64,
    /// The value, or `None` if the message removes the key.
    pub value: Option<Bytes>,
}

/// The confirmation of a write.
#[derive(Deserialize)]
pub(super) struct WriteAck {
    pub seq: u64,
}

#[derive(Deserialize)]
struct Failed {
    error: ErrorReply,
}

#[derive(Deserialize)]
struct ErrorReply {
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

pub(super) fn stored(answer: &[u8], bucket: &str) -> Result<WriteAck, RecordsError> {
    parse(answer, bucket).map_err(JetStreamError::into_error)
}

/// Reads a reply with a message of the stream. Returns `None` if there is no such message.
pub(super) fn found(answer: &[u8], bucket: &str) -> Result<Option<StreamMessage>, RecordsError> {
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
pub(super) fn parse<T: DeserializeOwned>(answer: &[u8], bucket: &str) -> Result<T, JetStreamError> {
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
pub(super) struct JetStreamError {
    code: u64,
    error: RecordsError,
}

impl JetStreamError {
    fn of(
        ErrorReply {
            code,
            err_code,
            description,
        }: ErrorReply,
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

    pub(super) fn into_error(self) -> RecordsError {
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
