//! A provider's wire format: where a request goes, how it is written, how the reply is read.

use reqwest::header::{HeaderMap, HeaderName};

use super::{Encoder, Head, catalogue::Entry, decode::Decoder};

/// How a reply is framed, by which a body that is no stream is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    Sse,
    Ndjson,
}

/// One wire format.
pub trait Wire: Send + Sync {
    fn framing(&self) -> Framing {
        Framing::Sse
    }

    /// The address of a request, under a base URL without a trailing slash.
    fn url(&self, base: &str, model: &str) -> String;

    /// The header that carries the key, and what stands before the key in it.
    fn key_header(&self) -> (HeaderName, &'static str);

    /// Headers of every request.
    fn headers(&self) -> HeaderMap {
        HeaderMap::new()
    }

    fn encoder(&self, head: Head, entry: &Entry) -> Box<dyn Encoder>;
    fn decoder(&self) -> Box<dyn Decoder>;
}
