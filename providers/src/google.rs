//! The wire format of Google's Gemini API, v1beta.

mod decode;
mod encode;
mod schema;

use reqwest::{Url, header::HeaderName};

use super::{
    Encoder, RequestHead,
    catalogue::ModelFacts,
    decode::{Decoder, Decoding},
    frames::Sse,
    wire::{WireFormat, WireTarget, below},
};

#[derive(Debug)]
pub struct Google;

impl WireFormat for Google {
    /// Returns the address of a request. The base URL may contain the version of the API or not,
    /// because users configure both.
    fn url(&self, base: &Url, model: &str, _: &WireTarget) -> Url {
        let version = if base.path().ends_with("/v1") {
            "/v1"
        } else {
            "/v1beta"
        };
        let model = model.strip_prefix("models/").unwrap_or(model);
        // An agent chooses the model's name, so the name is encoded to stay within one segment of
        // the path.
        let model: String = model.bytes().map(word).collect();
        let mut url = below(
            base,
            version,
            &format!("/models/{model}:streamGenerateContent"),
        );
        url.query_pairs_mut().append_pair("alt", "sse");
        url
    }

    fn key_header(&self, _: &WireTarget) -> (HeaderName, &'static str) {
        (HeaderName::from_static("x-goog-api-key"), "")
    }

    fn encoder(
        &self,
        head: RequestHead,
        entry: &ModelFacts,
        target: &WireTarget,
    ) -> Box<dyn Encoder> {
        Box::new(encode::GoogleContents::new(head, entry, target))
    }

    fn decoder(&self, target: &WireTarget) -> Box<dyn Decoder> {
        Box::new(Decoding::<Sse, decode::GoogleReply>::new(
            decode::GoogleReply::of(target),
        ))
    }
}

/// Returns the text of a byte in a path segment. All bytes except ASCII letters, digits and `-_.~@`
/// are percent-encoded.
fn word(byte: u8) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'@' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    }
}

#[cfg(test)]
mod tests;
