//! The wire format of Ollama's own chat API, which sends each piece of a reply as a line of JSON.

mod decode;
mod encode;

use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderName},
};

use super::{
    Encoder, RequestHead,
    catalogue::ModelFacts,
    decode::{Decoder, Decoding},
    frames::Ndjson,
    wire::{WireFormat, WireTarget, below},
};

#[derive(Debug)]
pub struct Ollama;

impl WireFormat for Ollama {
    fn url(&self, base: &Url, _: &str, _: &WireTarget) -> Url {
        below(base, "/api", "/chat")
    }

    /// Returns the header for the key. Ollama's hosted service needs a key, and so do some proxies.
    fn key_header(&self, _: &WireTarget) -> (HeaderName, &'static str) {
        (AUTHORIZATION, "Bearer ")
    }

    fn encoder(&self, head: RequestHead, entry: &ModelFacts, _: &WireTarget) -> Box<dyn Encoder> {
        Box::new(encode::OllamaMessages::new(head, entry))
    }

    fn decoder(&self, _: &WireTarget) -> Box<dyn Decoder> {
        Box::new(Decoding::<Ndjson, decode::OllamaReply>::new(
            decode::OllamaReply::default(),
        ))
    }
}

#[cfg(test)]
mod tests;
