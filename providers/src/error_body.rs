//! Parses the error bodies of providers, which have many shapes, and classifies the failure for the
//! agent.

use std::time::Duration;

use serde_json::Value;

use super::decode::bounded;
use planck_agent::model::{Failure, FailureKind};

/// The maximum length of a provider's error message in characters. Messages of validation errors may
/// quote whole requests.
const LONGEST: usize = 8_000;

/// An error as a provider reported it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProviderError {
    pub message: String,
    /// The type, the code and the status of the error, without those that are absent or not a
    /// string.
    pub words: Vec<String>,
    /// The HTTP status that the body contains as a numeric `code`. An error in a stream may have
    /// one, although the status of the response was 200.
    pub status: Option<u16>,
    /// How long the body asks the client to wait.
    pub retry_after: Option<Duration>,
}

/// Phrases that mean that the prompt does not fit into the context, in lower case.
const CONTEXT_FULL: &[&str] = &[
    "prompt is too long",
    "exceed context limit",
    "context_length_exceeded",
    "maximum context length",
    "exceeds the context window",
    "exceeds the context length",
    "context window exceeded",
    "exceeds the maximum number of tokens allowed",
    "exceeds the available context size",
    "exceed_context_size_error",
    "request_too_large",
    "request too large",
    "input is too large to process",
    "input is too long",
    "reduce the length of the messages",
    "contextwindowexceeded",
];

/// Phrases that mean that the key was refused, in lower case. They are needed for providers that
/// refuse a key with another status than 401 or 403.
const BAD_KEY: &[&str] = &[
    "api key not valid",
    "api_key_invalid",
    "invalid api key",
    "invalid x-api-key",
    "authentication_error",
    "invalid_api_key",
];

/// Phrases of refusals that look like a temporary overload but are permanent.
const NO_MONEY: &[&str] = &[
    "insufficient_quota",
    "credit balance is too low",
    "billing_hard_limit",
];

impl ProviderError {
    /// Parses an error body or an error event. Returns `None` if it contains no error message.
    pub fn read(body: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(body).ok()?;
        let value = value
            .as_array()
            .and_then(|array| array.first())
            .unwrap_or(&value);
        let error = value.get("error").filter(|error| !error.is_null());
        let detail = error.or_else(|| value.get("detail")).unwrap_or(value);
        let of_detail = |name: &str| detail.get(name)?.as_str();
        let message = detail
            .as_str()
            .or_else(|| of_detail("message"))
            .or_else(|| of_detail("error_message"))
            .or_else(|| of_detail("error_type"))?
            .to_owned();
        let words = WORDS
            .iter()
            .filter_map(|name| of_detail(name))
            .map(str::to_owned)
            .collect();
        let status_of = |value: &Value| {
            let mut names = STATUSES.iter();
            names.find_map(|name| status_in(value.get(name)?))
        };
        let status = status_of(detail).or_else(|| status_of(value));
        let retry_after = retry_info(detail).or_else(|| wait_in_words(&message));
        Some(Self {
            message,
            words,
            status,
            retry_after,
        })
    }

    /// Parses a chunk of a stream that has neither content nor a member `error`. Returns `None` if
    /// the chunk is no error. Some servers send errors as such chunks, with the members of an error
    /// beside those of a chunk.
    pub fn in_chunk(chunk: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(chunk).ok()?;
        let is_text = |name: &str| value.get(name).is_some_and(Value::is_string);
        let is_error = |name: &str| {
            let word = value.get(name).and_then(Value::as_str).unwrap_or_default();
            word.to_ascii_lowercase().contains("error")
        };
        let has_status = STATUSES
            .iter()
            .any(|name| value.get(name).and_then(status_in).is_some());
        let is_error = is_text("error_message")
            || is_text("error_type")
            || is_text("detail")
            || is_error("object")
            || is_error("type")
            || is_error("code")
            || has_status;
        is_error.then(|| Self::read(chunk))?
    }

    /// Returns the kind of failure. `status` is the HTTP status of the response, or `None` if it
    /// was 200.
    pub fn kind(&self, status: Option<u16>) -> FailureKind {
        let text = format!("{} {}", self.words.join(" "), self.message).to_lowercase();
        let says = |phrases: &[&str]| phrases.iter().any(|phrase| text.contains(phrase));
        if says(CONTEXT_FULL) {
            FailureKind::ContextFull
        } else if says(BAD_KEY) {
            FailureKind::Auth
        } else if says(NO_MONEY) {
            FailureKind::Refused
        } else {
            kind_of_status(status.or(self.status).or_else(|| self.status_of_words()))
        }
    }

    /// Returns the failure for an error event that arrived in a stream whose HTTP status was 200.
    pub fn midway(self) -> Failure {
        let public = Some("the provider sent an error in its stream".to_owned());
        Failure {
            kind: self.kind(None),
            retry_after: self.retry_after,
            message: self.text(),
            public,
        }
    }

    /// Returns whether the error means that the provider is overloaded, so that other requests must
    /// be delayed too.
    pub fn is_overload(&self) -> bool {
        matches!(
            self.status.or_else(|| self.status_of_words()),
            Some(429 | 503 | 529)
        )
    }

    /// Returns the error message, preceded by the type of the error, or else by its code or status.
    pub fn text(&self) -> String {
        let text = match self.words.first() {
            Some(word) if *word != self.message => format!("{word}: {}", self.message),
            Some(_) | None => self.message.clone(),
        };
        bounded(&text, LONGEST)
    }

    fn status_of_words(&self) -> Option<u16> {
        self.words.iter().find_map(|word| match word.as_str() {
            "invalid_request_error" | "INVALID_ARGUMENT" | "FAILED_PRECONDITION" => Some(400),
            "authentication_error" | "UNAUTHENTICATED" => Some(401),
            "billing_error" => Some(402),
            "permission_error" | "PERMISSION_DENIED" => Some(403),
            "not_found_error" | "NOT_FOUND" => Some(404),
            "rate_limit_error" | "rate_limit_exceeded" | "RESOURCE_EXHAUSTED" => Some(429),
            "api_error" | "server_error" | "INTERNAL" => Some(500),
            "UNAVAILABLE" => Some(503),
            "timeout_error" | "DEADLINE_EXCEEDED" => Some(504),
            "vector_store_timeout" => Some(504),
            "server_is_overloaded" | "slow_down" => Some(503),
            "overloaded_error" => Some(529),
            // The names of exceptions that servers in Python send.
            "BadRequestError" | "UnprocessableEntityError" => Some(400),
            "AuthenticationError" => Some(401),
            "PermissionDeniedError" => Some(403),
            "NotFoundError" => Some(404),
            "RateLimitError" => Some(429),
            "InternalServerError" => Some(500),
            "ServiceUnavailableError" => Some(503),
            // Matches `invalid_prompt`, `invalid_image_url`, `image_too_large`,
            // `unsupported_image_media_type` and similar error codes.
            _ if ["invalid_", "image_", "unsupported_"]
                .iter()
                .any(|start| word.starts_with(start)) =>
            {
                Some(400)
            }
            _ => None,
        })
    }
}

/// The members that have the type, the code or the status of an error. DeepInfra's streams name them
/// `error_…`.
const WORDS: &[&str] = &["type", "code", "status", "error_type", "error_code"];

/// The members that may have an HTTP status.
const STATUSES: &[&str] = &["code", "status", "error_code", "status_code"];

/// Reads the HTTP status of an error, which is a number, or a text that holds one.
fn status_in(value: &Value) -> Option<u16> {
    let status = match value {
        Value::Number(number) => number.as_u64()?,
        Value::String(text) => text.parse().ok()?,
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    u16::try_from(status)
        .ok()
        .filter(|status| (400..600).contains(status))
}

/// Returns the kind of failure that an HTTP status means. Without a status the error came in a
/// stream, and the failure is transient.
pub fn kind_of_status(status: Option<u16>) -> FailureKind {
    match status {
        None | Some(408 | 409 | 425 | 429 | 500..) => FailureKind::Transient,
        Some(401 | 403) => FailureKind::Auth,
        Some(413) => FailureKind::ContextFull,
        Some(_) => FailureKind::Refused,
    }
}

/// Reads the retry delay from an error body of Google: `{"@type": "…RetryInfo", "retryDelay":
/// "17s"}`.
fn retry_info(error: &Value) -> Option<Duration> {
    let details = error.get("details")?.as_array()?;
    let delay = details
        .iter()
        .find_map(|detail| detail.get("retryDelay")?.as_str())?;
    Duration::try_from_secs_f64(delay.strip_suffix('s')?.parse().ok()?).ok()
}

/// Phrases that precede a retry delay in an error message, in lower case.
const WAITS: &[&str] = &["try again in ", "retry after ", "retry in "];

/// Reads the retry delay that OpenAI, Groq and Azure write into the error message: `Please try
/// again in 1m2.5s.`, `Please retry after 10 seconds.`
fn wait_in_words(message: &str) -> Option<Duration> {
    let text = message.to_ascii_lowercase();
    let (_, wait) = WAITS.iter().find_map(|phrase| text.split_once(phrase))?;
    let (mut seconds, mut rest) = (None, wait);
    while let Some((number, after)) = leading_number(rest) {
        let after = after.trim_start();
        let unit_end = after
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(after.len());
        let (unit, left) = after.split_at(unit_end);
        let Some(factor) = seconds_of(unit) else {
            break;
        };
        seconds = Some(seconds.unwrap_or(0.0) + number * factor);
        rest = left;
    }
    Duration::try_from_secs_f64(seconds?).ok()
}

fn leading_number(text: &str) -> Option<(f64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    Some((number.parse().ok()?, rest))
}

fn seconds_of(unit: &str) -> Option<f64> {
    Some(match unit {
        "ms" | "millisecond" | "milliseconds" => 0.001,
        "s" | "sec" | "second" | "seconds" => 1.0,
        "m" | "min" | "minute" | "minutes" => 60.0,
        "h" | "hour" | "hours" => 3_600.0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
