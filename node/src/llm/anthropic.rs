//! Anthropic's Messages API, version 2023-06-01.

mod decode;
mod encode;

use reqwest::{
    Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};

use super::{
    Encoder, Head,
    catalogue::Entry,
    decode::{Decoder, Decoding},
    frames::Sse,
    wire::{Target, Wire, below},
};

#[derive(Debug)]
pub struct Anthropic;

impl Wire for Anthropic {
    /// Accepts a base URL with and without `/v1`; both are in use.
    fn url(&self, base: &Url, _: &str, _: &Target) -> Url {
        below(base, "/v1", "/messages")
    }

    fn key_header(&self, _: &Target) -> (HeaderName, &'static str) {
        (HeaderName::from_static("x-api-key"), "")
    }

    fn headers(&self) -> HeaderMap {
        HeaderMap::from_iter([(
            HeaderName::from_static("anthropic-version"),
            HeaderValue::from_static("2023-06-01"),
        )])
    }

    fn encoder(&self, head: Head, entry: &Entry, target: &Target) -> Box<dyn Encoder> {
        Box::new(encode::Messages::new(head, entry, target))
    }

    fn decoder(&self, target: &Target) -> Box<dyn Decoder> {
        Box::new(Decoding::<Sse, decode::Reply>::new(decode::Reply::of(
            target,
        )))
    }
}

#[cfg(test)]
mod tests;
