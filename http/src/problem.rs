//! Errors as problem details (RFC 9457), with the code of the protocol.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use planck_client::{ClientError, bus::BusError};
use planck_common::reply::{Code, Refusal};
use schemars::JsonSchema;
use serde::Serialize;

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Problem {
    /// `urn:planck:problem:` and the code.
    r#type: String,
    /// The reason phrase of the status.
    title: String,
    status: u16,
    /// The explanation: the mistake, and the way out.
    detail: String,
    /// The protocol's code, or the name of the status.
    code: String,
    /// Whether the same request may succeed later.
    retryable: bool,
}

impl Problem {
    /// Creates the problem with a status. Its code is the protocol's code with the number of the
    /// status, or the name of a status for which the protocol has no code.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        let name = title.to_lowercase().replace([' ', '-'], "_");
        let code = match status {
            StatusCode::SERVICE_UNAVAILABLE => code_name(Code::Unavailable),
            StatusCode::PAYLOAD_TOO_LARGE => code_name(Code::TooLarge),
            _ => name,
        };
        Self::with_code(status, &code, detail)
    }

    fn with_code(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        Self {
            r#type: format!("urn:planck:problem:{code}"),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            code: code.to_owned(),
            retryable: matches!(
                status,
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
            ),
        }
    }

    pub fn bad_request(detail: impl Into<String>) -> Self {
        Refusal::bad_request(detail).into()
    }

    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    pub fn denied(detail: impl Into<String>) -> Self {
        Refusal::new(Code::Denied, detail).into()
    }

    pub fn not_found(detail: impl Into<String>) -> Self {
        Refusal::not_found(detail).into()
    }

    /// Creates the problem that a request contradicts the state of the session.
    pub fn conflict(detail: impl Into<String>) -> Self {
        Refusal::new(Code::Exists, detail).into()
    }

    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    pub fn code(&self) -> &str {
        &self.code
    }

    pub fn is_retryable(&self) -> bool {
        self.retryable
    }
}

/// Returns the name of a code of the protocol.
fn code_name(code: Code) -> String {
    let name = serde_json::to_value(code).ok();
    let name = name.as_ref().and_then(|name| name.as_str());
    name.unwrap_or("internal").to_owned()
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let status = StatusCode::from_u16(refusal.code.number());
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self {
            retryable: refusal.retryable,
            ..Self::with_code(status, &code_name(refusal.code), refusal.message)
        }
    }
}

impl From<ClientError> for Problem {
    fn from(error: ClientError) -> Self {
        let status = match &error {
            ClientError::Refused(refusal) => return refusal.clone().into(),
            ClientError::Unreachable(
                BusError::NoResponders(_) | BusError::Away(_) | BusError::Ended,
            ) => StatusCode::SERVICE_UNAVAILABLE,
            ClientError::Unreachable(BusError::TimedOut { .. }) => StatusCode::GATEWAY_TIMEOUT,
            ClientError::Unreachable(BusError::TooLarge { .. }) => StatusCode::PAYLOAD_TOO_LARGE,
            ClientError::Unreachable(BusError::Denied(_) | BusError::Unfit(_))
            | ClientError::Malformed { .. } => StatusCode::BAD_GATEWAY,
        };
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let mut response = (status, axum::Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_a_status_is_that_of_the_protocol_if_it_has_one() {
        for (status, code) in [
            (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            (StatusCode::GATEWAY_TIMEOUT, "gateway_timeout"),
            (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
        ] {
            let problem = Problem::new(status, "no");
            assert_eq!(problem.code(), code);
            assert_eq!(problem.r#type, format!("urn:planck:problem:{code}"));
        }
    }
}
