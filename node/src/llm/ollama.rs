//! Ollama's own chat API: a line of JSON for each piece of a reply.

mod decode;
mod encode;

use reqwest::header::{AUTHORIZATION, HeaderName};

use super::{
    Encoder, Head,
    catalogue::Entry,
    decode::{Decoder, Decoding},
    frames::Ndjson,
    wire::{Framing, Wire},
};

#[derive(Debug)]
pub struct Ollama;

impl Wire for Ollama {
    fn framing(&self) -> Framing {
        Framing::Ndjson
    }

    fn url(&self, base: &str, _model: &str) -> String {
        format!("{}/api/chat", base.strip_suffix("/api").unwrap_or(base))
    }

    /// For a server behind a proxy that wants one, and for the hosted service.
    fn key_header(&self) -> (HeaderName, &'static str) {
        (AUTHORIZATION, "Bearer ")
    }

    fn encoder(&self, head: Head, entry: &Entry) -> Box<dyn Encoder> {
        Box::new(encode::Messages::new(head, entry))
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Decoding::<Ndjson, decode::Reply>::default())
    }
}

#[cfg(test)]
mod tests;
