//! The decoders of what clients send, for the fuzzer under `fuzz/`.

use axum::http::HeaderMap;

use super::{
    ag_ui::{self, RunInput},
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

/// Decodes the bytes as the body of `POST /ag-ui/{team}`, and checks what follows from it.
pub fn run_body(bytes: &[u8]) {
    if let Ok(body) = body::parse::<RunInput>(bytes) {
        ag_ui::check(body);
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

    fn seeds(target: &str) -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds");
        let files = std::fs::read_dir(folder.join(target)).unwrap();
        files
            .map(|file| std::fs::read(file.unwrap().path()).unwrap())
            .collect()
    }

    #[test]
    fn seeds_are_requests() {
        for seed in seeds("chat") {
            assert!(body::parse::<ChatBody>(&seed).unwrap().read().is_ok());
        }
        for seed in seeds("ag_ui") {
            assert!(body::parse::<RunInput>(&seed).unwrap().read().is_ok());
        }
    }

    proptest! {
        #[test]
        fn damaged_body_breaks_nothing(
            seed in 0..3_usize, at in any::<prop::sample::Index>(), cut in 0..40_usize,
            put in prop::sample::select(vec!["", "\"", "{", "}", "null", "[]", "-1", "\\u0000", "_r9"]),
        ) {
            for (target, check) in [("chat", chat_body as fn(&[u8])), ("ag_ui", run_body)] {
                let mut bytes = seeds(target).swap_remove(seed);
                let at = at.index(bytes.len());
                let end = (at + cut).min(bytes.len());
                bytes.splice(at..end, put.bytes());
                check(&bytes);
            }
        }
    }
}
