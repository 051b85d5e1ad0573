//! Replies: `{"v":1,"ok":{…}}` or `{"v":1,"error":{code,message,retryable}}`.

use std::fmt;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::event::json;

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Code {
    BadRequest,
    Denied,
    NotFound,
    Busy,
    Exists,
    StaleEpoch,
    TooLarge,
    Limit,
    Internal,
    OutcomeUnknown,
    Unavailable,
}

impl Code {
    /// Returns the number for the header `Nats-Service-Error-Code`, which is the status code of
    /// HTTP.
    pub const fn number(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Denied => 403,
            Self::NotFound => 404,
            Self::Busy | Self::Exists | Self::StaleEpoch => 409,
            Self::TooLarge => 413,
            Self::Limit => 429,
            Self::Internal | Self::OutcomeUnknown => 500,
            Self::Unavailable => 503,
        }
    }

    /// Returns whether the same request may succeed later.
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::Busy | Self::Unavailable => true,
            Self::BadRequest
            | Self::Denied
            | Self::NotFound
            | Self::Exists
            | Self::StaleEpoch
            | Self::TooLarge
            | Self::Limit
            | Self::Internal
            | Self::OutcomeUnknown => false,
        }
    }
}

/// A refusal: a code for the client, and a message for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Refusal {
    pub code: Code,
    pub message: String,
    pub retryable: bool,
}

impl Refusal {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            retryable: code.is_retryable(),
        }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Code::BadRequest, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Code::Unavailable, message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

/// A reply as it is received.
#[derive(Debug, Deserialize)]
struct WireReply<'a> {
    v: Option<u32>,
    #[serde(borrow)]
    ok: Option<&'a RawValue>,
    error: Option<Refusal>,
}

/// The reason why a reply has no result.
#[derive(Debug, thiserror::Error)]
pub enum ReplyError {
    /// The reply is not of this protocol; it may be a JetStream acknowledgement. Readers do not
    /// take it for an answer.
    #[error("a reply without `v`")]
    Foreign,
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("cannot read the reply: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Returns the JSON of a successful reply. `ok` is the JSON of the result.
pub fn ok_json(ok: &str) -> String {
    format!(r#"{{"v":1,"ok":{ok}}}"#)
}

/// Returns the JSON of a reply.
pub fn encode<T: Serialize>(result: &Result<T, Refusal>) -> String {
    match result {
        Ok(ok) => ok_json(&json(ok)),
        Err(refusal) => format!(r#"{{"v":1,"error":{}}}"#, json(refusal)),
    }
}

/// Reads the result from the JSON of a reply. A reply without `ok` and `error` counts as an empty
/// `ok`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ReplyError> {
    let wire: WireReply<'_> = serde_json::from_slice(bytes)?;
    match wire {
        WireReply { v: None, .. } => Err(ReplyError::Foreign),
        WireReply {
            error: Some(refusal),
            ..
        } => Err(refusal.into()),
        WireReply { ok, .. } => Ok(serde_json::from_str(ok.map_or("{}", RawValue::get))?),
    }
}

/// Returns the first 80 characters of a received text, for an error message about the text.
pub fn excerpt(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_is_read_as_it_was_written() {
        let text = encode(&Ok::<_, Refusal>(vec![1, 2]));
        assert_eq!(text, r#"{"v":1,"ok":[1,2]}"#);
        assert_eq!(decode::<Vec<i32>>(text.as_bytes()).unwrap(), [1, 2]);

        let text = encode(&Err::<(), _>(Refusal::unavailable("draining")));
        assert_eq!(
            text,
            r#"{"v":1,"error":{"code":"unavailable","message":"draining","retryable":true}}"#
        );
        assert!(
            matches!(decode::<()>(text.as_bytes()), Err(ReplyError::Refused(r)) if r.code == Code::Unavailable)
        );
    }

    #[test]
    fn acknowledgement_of_a_stream_is_not_a_reply() {
        assert!(matches!(
            decode::<()>(br#"{"stream":"X","seq":1}"#),
            Err(ReplyError::Foreign)
        ));
    }
}
