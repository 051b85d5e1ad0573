//! The decoders of what clients send, for the fuzzer under `fuzz/`.

use axum::http::HeaderMap;

use super::{
    body,
    openai::{ChatRequest, ResponseId, ResponsesRequest, ToolCallId},
    ui::{self, ChatBody},
};

/// Decodes the bytes as the body of `POST /ui/chat`, and checks what follows from it.
pub fn chat_body(bytes: &[u8]) {
    if let Ok(body) = body::parse::<ChatBody>(bytes) {
        ui::check(body);
    }
}

/// Decodes the bytes as the bodies of OpenAI's wire, and as its ids.
pub fn openai_bodies(bytes: &[u8]) {
    if let Ok(request) = body::parse::<ChatRequest>(bytes) {
        let _ = request.ask(&HeaderMap::new());
    }
    if let Ok(request) = body::parse::<ResponsesRequest>(bytes) {
        let _ = request.ask(&HeaderMap::new());
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = ResponseId::parse(text).map(|id| id.to_string());
        let _ = ToolCallId::parse(text).map(|id| id.to_string());
    }
}
