//! The wire format of Anthropic's Messages API, version 2023-06-01.

mod decode;
mod encode;

use reqwest::{
    Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};

use super::{
    Encoder, RequestHead,
    catalogue::ModelFacts,
    decode::{Decoder, Decoding},
    frames::Sse,
    wire::{WireFormat, WireTarget, below},
};

#[derive(Debug)]
pub struct Anthropic;

impl WireFormat for Anthropic {
    /// Returns the address of a request. The base URL may end in `/v1` or not, because users
    /// configure both.
    fn url(&self, base: &Url, _: &str, _: &WireTarget) -> Url {
        below(base, "/v1", "/messages")
    }

    fn key_header(&self, _: &WireTarget) -> (HeaderName, &'static str) {
        (HeaderName::from_static("x-api-key"), "")
    }

    fn headers(&self) -> HeaderMap {
        HeaderMap::from_iter([(
            HeaderName::from_static("anthropic-version"),
            HeaderValue::from_static("2023-06-01"),
        )])
    }

    fn encoder(
        &self,
        head: RequestHead,
        entry: &ModelFacts,
        target: &WireTarget,
    ) -> Box<dyn Encoder> {
        Box::new(encode::AnthropicMessages::new(head, entry, target))
    }

    fn decoder(&self, target: &WireTarget) -> Box<dyn Decoder> {
        Box::new(Decoding::<Sse, decode::AnthropicReply>::new(
            decode::AnthropicReply::of(target),
        ))
    }
}

#[cfg(test)]
mod tests;
