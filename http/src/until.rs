//! Until when an answer is open.

use axum::http::{HeaderMap, HeaderName};
pub use planck_client::turn::Until;

use super::problem::Problem;

/// The header with which a caller says until when the answer is open. All wires of ready-made
/// clients have it.
pub const HEADER: HeaderName = HeaderName::from_static("x-planck-until");

/// What the header means, for the description of the routes that take it.
pub const MEANING: &str = "Until when the answer is open: `work`, which is the default, or `turn`, the orchestrator's first turn.";

/// Reads the header of a request. A header without a value has no effect.
pub fn read(headers: &HeaderMap) -> Result<Until, Problem> {
    match headers.get(HEADER).map(|value| value.as_bytes()) {
        None | Some(b"" | b"work") => Ok(Until::Work),
        Some(b"turn") => Ok(Until::Turn),
        Some(_) => Err(Problem::bad_request(format!(
            "the header `{HEADER}` must be `work` or `turn`"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn header_says_until_when_an_answer_is_open() {
        for (value, expected) in [
            (None, Some(Until::Work)),
            (Some(""), Some(Until::Work)),
            (Some("work"), Some(Until::Work)),
            (Some("turn"), Some(Until::Turn)),
            (Some("Turn"), None),
            (Some("never"), None),
        ] {
            let headers = value.map(|value| (HEADER, HeaderValue::from_static(value)));
            let headers = HeaderMap::from_iter(headers);
            assert_eq!(read(&headers).ok(), expected, "{value:?}");
        }
    }
}
