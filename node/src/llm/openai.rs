//! OpenAI's chat completions, and the servers that speak the same: llama.cpp, scripted models, and others under a base URL.

mod decode;
mod encode;

use reqwest::header::{AUTHORIZATION, HeaderName};

use super::{
    Encoder, Head,
    catalogue::Entry,
    decode::{Decoder, Decoding},
    frames::Sse,
    wire::Wire,
};

/// Whose chat completions these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    OpenAi,
    LlamaCpp,
}

#[derive(Debug)]
pub struct ChatCompletions(pub Dialect);

impl Wire for ChatCompletions {
    /// A base without a path is a server's address; completions are under `/v1` then.
    fn url(&self, base: &str, _model: &str) -> String {
        let host = base.split_once("://").map_or(base, |(_, rest)| rest);
        let version = if host.contains('/') { "" } else { "/v1" };
        format!("{base}{version}/chat/completions")
    }

    fn key_header(&self) -> (HeaderName, &'static str) {
        (AUTHORIZATION, "Bearer ")
    }

    fn encoder(&self, head: Head, entry: &Entry) -> Box<dyn Encoder> {
        Box::new(encode::Messages::new(head, entry, self.0))
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Decoding::<Sse, decode::Reply>::default())
    }
}

#[cfg(test)]
mod tests;
