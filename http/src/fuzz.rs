//! The decoders of what clients send, for the fuzzer under `fuzz/`.

pub use super::openai::fuzz::bodies as openai_bodies;

use super::{
    body,
    ui::{self, ChatBody},
};

/// Decodes the bytes as the body of `POST /ui/chat`, and checks what follows from it.
pub fn chat_body(bytes: &[u8]) {
    if let Ok(body) = body::parse::<ChatBody>(bytes) {
        ui::check(body);
    }
}
