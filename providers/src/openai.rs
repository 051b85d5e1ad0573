//! The wire format of OpenAI's chat completions. Most other vendors and servers use this format
//! too, each with its own deviations.

mod decode;
mod encode;
mod reasoning;
mod settings;
mod user_message;

use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderName},
};

use super::{
    Encoder, RequestHead,
    catalogue::ModelFacts,
    decode::{Decoder, Decoding},
    frames::Sse,
    quirks::AddressStyle,
    wire::{WireFormat, WireTarget, below},
};

pub use settings::effort;

/// Returns the address of an operation of OpenAI's API. A base URL without a path is the address of
/// a server, whose API is below `/v1`, or below `/openai/v1` on Azure. Azure's older addresses
/// state the version of the API in the query and the deployment in the path.
pub fn completions(base: &Url, model: &str, target: &WireTarget, path: &str) -> Url {
    let is_bare = base.path().trim_matches('/').is_empty();
    let names_version = base.query_pairs().any(|(name, _)| name == "api-version");
    match target.quirks.addresses {
        AddressStyle::Azure if is_bare && names_version => {
            let mut url = base.clone();
            // An agent chooses the model's name, so the name is encoded to stay within one segment
            // of the path.
            if let Ok(mut segments) = url.path_segments_mut() {
                segments.clear().extend(["openai", "deployments", model]);
            }
            below(&url, "", path)
        }
        AddressStyle::Azure if is_bare => below(base, "/openai/v1", path),
        AddressStyle::Plain if is_bare => below(base, "/v1", path),
        AddressStyle::Plain | AddressStyle::Azure => below(base, "", path),
    }
}

#[derive(Debug)]
pub struct ChatCompletions;

impl WireFormat for ChatCompletions {
    fn url(&self, base: &Url, model: &str, target: &WireTarget) -> Url {
        completions(base, model, target, "/chat/completions")
    }

    fn key_header(&self, target: &WireTarget) -> (HeaderName, &'static str) {
        match target.quirks.addresses {
            AddressStyle::Plain => (AUTHORIZATION, "Bearer "),
            AddressStyle::Azure => (HeaderName::from_static("api-key"), ""),
        }
    }

    fn encoder(
        &self,
        head: RequestHead,
        entry: &ModelFacts,
        target: &WireTarget,
    ) -> Box<dyn Encoder> {
        Box::new(encode::ChatMessages::new(head, entry, target))
    }

    fn decoder(&self, target: &WireTarget) -> Box<dyn Decoder> {
        Box::new(Decoding::<Sse, decode::ChatReply>::new(
            decode::ChatReply::of(target),
        ))
    }
}

#[cfg(test)]
mod tests;
