//! Anthropic's Messages API, version 2023-06-01.

mod decode;
mod encode;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::{
    Encoder, Head,
    catalogue::Entry,
    decode::{Decoder, Decoding},
    frames::Sse,
    wire::Wire,
};

/// The name under which its opaque tokens are kept.
const NAME: &str = "anthropic";

#[derive(Debug)]
pub struct Anthropic;

impl Wire for Anthropic {
    /// The base may end in `/v1` or not; both are in use.
    fn url(&self, base: &str, _model: &str) -> String {
        format!("{}/v1/messages", base.strip_suffix("/v1").unwrap_or(base))
    }

    fn key_header(&self) -> (HeaderName, &'static str) {
        (HeaderName::from_static("x-api-key"), "")
    }

    fn headers(&self) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static("anthropic-version"), HeaderValue::from_static("2023-06-01"))])
    }

    fn encoder(&self, head: Head, entry: &Entry) -> Box<dyn Encoder> {
        Box::new(encode::Messages::new(head, entry))
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Decoding::<Sse, decode::Reply>::default())
    }
}

#[cfg(test)]
mod tests;
