//! Errors in the form that OpenAI's clients read.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use planck_client::ClientError;
use planck_common::event::OUTPUT_INVALID;
use schemars::JsonSchema;
use serde::Serialize;

use crate::problem::Problem;

/// Why a request was refused, or why a turn failed.
#[derive(Debug, Clone)]
pub struct OpenAiError {
    status: StatusCode,
    may_retry: bool,
    error: ErrorBody,
}

/// An error, as clients read it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ErrorReply {
    error: ErrorBody,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ErrorBody {
    pub message: String,
    pub r#type: &'static str,
    pub param: Option<&'static str>,
    pub code: Option<String>,
}

impl OpenAiError {
    fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            may_retry: matches!(
                status,
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
            ),
            error: ErrorBody {
                message: message.into(),
                r#type: kind(status),
                param: None,
                code: Some(code.to_owned()),
            },
        }
    }

    /// Creates the error that a parameter has a value with which the request cannot be served.
    pub fn parameter(param: &'static str, message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::BAD_REQUEST, "invalid_value", message);
        error.error.param = Some(param);
        error
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// Creates the error that a request contradicts what the session has become. Sending it again
    /// does not help.
    pub fn conflict(code: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    /// Creates the error that a turn failed. Another try of the same request would read the same
    /// failure. A turn whose answers were repaired in vain has a status after which no client tries
    /// again by itself: some do not read `x-should-retry`, and each of their tries is a new turn.
    pub fn turn(code: &str, message: &str) -> Self {
        let status = match code {
            OUTPUT_INVALID => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::BAD_GATEWAY,
        };
        Self::new(status, code, message)
    }

    /// Creates the error that a stream was cut off because the client reads too slowly.
    pub fn slow() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too_slow",
            "the stream was cut off, because it was read too slowly; the turn goes on",
        )
    }

    /// Creates the error that a node did not answer in time.
    pub fn late() -> Self {
        Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "timeout",
            "the log of the session could not be read in time; try again",
        )
    }

    /// Returns the object that clients read, for a stream that has begun.
    pub fn body(&self) -> &ErrorBody {
        &self.error
    }

    pub fn reply(&self) -> ErrorReply {
        ErrorReply {
            error: self.error.clone(),
        }
    }
}

const fn kind(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}

impl From<Problem> for OpenAiError {
    fn from(problem: Problem) -> Self {
        Self {
            may_retry: problem.is_retryable(),
            ..Self::new(problem.status(), problem.code(), problem.detail())
        }
    }
}

impl From<ClientError> for OpenAiError {
    fn from(error: ClientError) -> Self {
        Problem::from(error).into()
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        let body = Json(self.reply());
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        // The SDKs send a request again after 408, 409, 429 and every 5xx unless this header says
        // otherwise.
        let again = if self.may_retry { "true" } else { "false" };
        headers.insert("x-should-retry", HeaderValue::from_static(again));
        if self.may_retry {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The AI SDK tries again after each of these statuses, whatever the headers say.
    #[test]
    fn turn_without_an_answer_in_its_shape_is_not_tried_again() {
        let is_retried = |code| {
            let status = OpenAiError::turn(code, "why").into_response().status();
            matches!(status.as_u16(), 408 | 409 | 429 | 500..)
        };
        assert_eq!(
            (is_retried(OUTPUT_INVALID), is_retried("provider")),
            (false, true)
        );
    }
}
