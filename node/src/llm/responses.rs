//! OpenAI's Responses API. The vendor stores nothing: each request carries the whole conversation,
//! and reasoning is sent back as the ciphertext that was received.

mod decode;
mod encode;
mod event;
mod sealed;
mod strict;

use reqwest::{Url, header::HeaderName};

use super::{
    Encoder, Head,
    catalogue::Entry,
    decode::{Decoder, Decoding},
    frames::Sse,
    openai::{ChatCompletions, completions},
    quirks::Addresses,
    wire::{Target, Wire, below},
};

#[derive(Debug)]
pub struct Responses;

impl Wire for Responses {
    /// On Azure's older addresses the body names the deployment, unlike for chat completions.
    fn url(&self, base: &Url, model: &str, target: &Target) -> Url {
        let is_bare = base.path().trim_matches('/').is_empty();
        let names_version = base.query_pairs().any(|(name, _)| name == "api-version");
        match target.quirks.addresses {
            Addresses::Azure if is_bare && names_version => below(base, "/openai", "/responses"),
            Addresses::Azure | Addresses::Plain => completions(base, model, target, "/responses"),
        }
    }

    fn key_header(&self, target: &Target) -> (HeaderName, &'static str) {
        ChatCompletions.key_header(target)
    }

    fn encoder(&self, head: Head, entry: &Entry, target: &Target) -> Box<dyn Encoder> {
        Box::new(encode::Items::new(head, entry, target))
    }

    fn decoder(&self, target: &Target) -> Box<dyn Decoder> {
        Box::new(Decoding::<Sse, decode::Reply>::new(decode::Reply::of(
            target,
        )))
    }
}

#[cfg(test)]
mod tests;
