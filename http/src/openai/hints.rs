//! Headers in which a client says what OpenAI's wire has no field for. A client such as Open WebUI
//! sends fixed headers, in which it fills in names.

use axum::http::{HeaderMap, HeaderName};

use super::error::ApiError;

/// Names what the client asks beside the conversation of a person, for example a title for it. A
/// client whose template has no name for a request sends the header without a value.
const TASK: HeaderName = HeaderName::from_static("x-planck-task");
/// Says what happens to the turn if the client closes the connection.
const ON_DISCONNECT: HeaderName = HeaderName::from_static("x-planck-on-disconnect");

/// Returns the name of the task that a request is for, or `None` for a conversation.
pub fn task(headers: &HeaderMap) -> Option<String> {
    let name = headers.get(TASK)?.to_str().ok()?.trim();
    (!name.is_empty()).then(|| name.chars().take(80).collect())
}

/// Returns whether the turn is aborted if the client closes the connection.
pub fn aborts_on_disconnect(headers: &HeaderMap) -> Result<bool, ApiError> {
    match headers.get(ON_DISCONNECT).map(|value| value.as_bytes()) {
        None | Some(b"" | b"continue") => Ok(false),
        Some(b"abort") => Ok(true),
        Some(_) => Err(ApiError::parameter(
            "x-planck-on-disconnect",
            "the header `x-planck-on-disconnect` must be `abort` or `continue`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn headers_say_what_the_wire_cannot() {
        for (name, value, expected_task, aborts) in [
            (
                TASK,
                "title_generation",
                Some("title_generation"),
                Some(false),
            ),
            (TASK, "", None, Some(false)),
            (TASK, "  ", None, Some(false)),
            (ON_DISCONNECT, "abort", None, Some(true)),
            (ON_DISCONNECT, "continue", None, Some(false)),
            (ON_DISCONNECT, "explode", None, None),
        ] {
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
            assert_eq!(task(&headers).as_deref(), expected_task, "{headers:?}");
            assert_eq!(aborts_on_disconnect(&headers).ok(), aborts, "{headers:?}");
        }
    }
}
