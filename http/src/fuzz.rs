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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn seeds() -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/chat");
        let files = std::fs::read_dir(folder).unwrap();
        files
            .map(|file| std::fs::read(file.unwrap().path()).unwrap())
            .collect()
    }

    #[test]
    fn seeds_are_requests() {
        for seed in seeds() {
            assert!(body::parse::<ChatBody>(&seed).unwrap().read().is_ok());
        }
    }

    proptest! {
        #[test]
        fn damaged_body_breaks_nothing(
            seed in 0..3_usize, at in any::<prop::sample::Index>(), cut in 0..40_usize,
            put in prop::sample::select(vec!["", "\"", "{", "}", "null", "[]", "-1", "\\u0000", "_r9"]),
        ) {
            let mut bytes = seeds().swap_remove(seed);
            let at = at.index(bytes.len());
            let end = (at + cut).min(bytes.len());
            bytes.splice(at..end, put.bytes());
            chat_body(&bytes);
        }
    }
}
