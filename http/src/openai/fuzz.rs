//! Reads bytes as the bodies of requests, for the fuzzer.

use axum::http::HeaderMap;

use super::{chat::ChatRequest, ids, responses::ResponsesRequest};
use crate::body;

/// Passes the bytes to every decoder of this wire.
pub fn bodies(bytes: &[u8]) {
    if let Ok(request) = body::parse::<ChatRequest>(bytes) {
        let _ = request.ask(&HeaderMap::new());
    }
    if let Ok(request) = body::parse::<ResponsesRequest>(bytes) {
        let _ = request.ask(&HeaderMap::new());
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = ids::ResponseId::parse(text).map(|id| id.to_string());
        let _ = ids::ToolCallId::parse(text).map(|id| id.to_string());
    }
}
