//! Ollama's own chat API, which sends a line of JSON for each piece of a reply.

mod decode;
mod encode;

use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderName},
};

use super::{
    Encoder, Head,
    catalogue::Entry,
    decode::{Decoder, Decoding},
    frames::Ndjson,
    wire::{Target, Wire, below},
};

#[derive(Debug)]
pub struct Ollama;

impl Wire for Ollama {
    fn url(&self, base: &Url, _: &str, _: &Target) -> Url {
        below(base, "/api", "/chat")
    }

    /// Returns the header of the key, for the hosted service and for a proxy that requires one.
    fn key_header(&self, _: &Target) -> (HeaderName, &'static str) {
        (AUTHORIZATION, "Bearer ")
    }

    fn encoder(&self, head: Head, entry: &Entry, _: &Target) -> Box<dyn Encoder> {
        Box::new(encode::Messages::new(head, entry))
    }

    fn decoder(&self, _: &Target) -> Box<dyn Decoder> {
        Box::new(Decoding::<Ndjson, decode::Reply>::new(
            decode::Reply::default(),
        ))
    }
}

#[cfg(test)]
mod tests;
