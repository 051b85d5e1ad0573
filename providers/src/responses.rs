//! The wire format of OpenAI's Responses API. Requests ask the server to store nothing, so each
//! request contains the whole conversation and the encrypted reasoning in the form in which it was
//! received.

mod decode;
mod encode;
mod event;
mod sealed;
mod strict;

use reqwest::{Url, header::HeaderName};

use super::{
    Encoder, RequestHead,
    catalogue::ModelFacts,
    decode::{Decoder, Decoding},
    frames::Sse,
    openai::{ChatCompletions, completions},
    quirks::AddressStyle,
    wire::{WireFormat, WireTarget, below},
};

#[derive(Debug)]
pub struct Responses;

impl WireFormat for Responses {
    /// Returns the address of a request. With Azure's older addresses, the body of the request
    /// names the deployment. The path therefore does not contain the deployment, unlike the path
    /// for chat completions.
    fn url(&self, base: &Url, model: &str, target: &WireTarget) -> Url {
        let is_bare = base.path().trim_matches('/').is_empty();
        let names_version = base.query_pairs().any(|(name, _)| name == "api-version");
        match target.quirks.addresses {
            AddressStyle::Azure if is_bare && names_version => below(base, "/openai", "/responses"),
            AddressStyle::Azure | AddressStyle::Plain => {
                completions(base, model, target, "/responses")
            }
        }
    }

    fn key_header(&self, target: &WireTarget) -> (HeaderName, &'static str) {
        ChatCompletions.key_header(target)
    }

    fn encoder(
        &self,
        head: RequestHead,
        entry: &ModelFacts,
        target: &WireTarget,
    ) -> Box<dyn Encoder> {
        Box::new(encode::Items::new(head, entry, target))
    }

    fn decoder(&self, target: &WireTarget) -> Box<dyn Decoder> {
        Box::new(Decoding::<Sse, decode::ResponsesReply>::new(
            decode::ResponsesReply::of(target),
        ))
    }
}

#[cfg(test)]
mod tests;
