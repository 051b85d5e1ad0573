//! Google's Gemini API, v1beta.

mod decode;
mod encode;
mod schema;

use reqwest::header::HeaderName;

use super::{
    Encoder, Head,
    catalogue::Entry,
    decode::{Decoder, Decoding},
    frames::Sse,
    wire::Wire,
};

/// The name under which its opaque tokens are kept.
const NAME: &str = "google";

#[derive(Debug)]
pub struct Google;

impl Wire for Google {
    /// The base may name the API's version or not; both are in use.
    fn url(&self, base: &str, model: &str) -> String {
        let version = if base.ends_with("/v1beta") || base.ends_with("/v1") { "" } else { "/v1beta" };
        let model = model.strip_prefix("models/").unwrap_or(model);
        // An agent names its model: what it writes stays within this one word of the path.
        let model: String = model.bytes().map(word).collect();
        format!("{base}{version}/models/{model}:streamGenerateContent?alt=sse")
    }

    fn key_header(&self) -> (HeaderName, &'static str) {
        (HeaderName::from_static("x-goog-api-key"), "")
    }

    fn encoder(&self, head: Head, entry: &Entry) -> Box<dyn Encoder> {
        Box::new(encode::Contents::new(head, entry))
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Decoding::<Sse, decode::Reply>::default())
    }
}

/// A byte of a word of a path, encoded where it would mean something in a URL.
fn word(byte: u8) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'@' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    }
}

#[cfg(test)]
mod tests;
