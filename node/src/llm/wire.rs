//! A wire format: the address of a request, how the request is written, and how its answer is read.

use reqwest::{
    Url,
    header::{HeaderMap, HeaderName},
};

use super::{
    Encoder, RequestHead, anthropic::Anthropic, catalogue::ModelFacts, decode::Decoder,
    google::Google, ollama::Ollama, openai::ChatCompletions, quirks::Quirks, responses::Responses,
};

/// The facts about an endpoint that a wire format needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WireTarget {
    /// The label under which the endpoint's opaque tokens are stored, so that they are sent to no
    /// other endpoint.
    pub label: String,
    /// Whether this is the vendor's own address: only the vendor accepts the newest members.
    pub is_vendor: bool,
    pub quirks: Quirks,
}

/// One wire format.
pub trait WireFormat: Send + Sync {
    /// Returns the address of a request below a base URL, whose query is kept.
    fn url(&self, base: &Url, model: &str, target: &WireTarget) -> Url;

    /// Returns the header that carries the key, and the text that precedes the key in it.
    fn key_header(&self, target: &WireTarget) -> (HeaderName, &'static str);

    /// Returns the headers of every request.
    fn headers(&self) -> HeaderMap {
        HeaderMap::new()
    }

    fn encoder(
        &self,
        head: RequestHead,
        entry: &ModelFacts,
        target: &WireTarget,
    ) -> Box<dyn Encoder>;
    fn decoder(&self, target: &WireTarget) -> Box<dyn Decoder>;
}

/// The wire formats by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireKind {
    /// OpenAI's chat completions, which most servers speak.
    Chat,
    /// OpenAI's Responses API.
    Responses,
    /// Anthropic's Messages API.
    Anthropic,
    /// Google's Gemini API.
    Google,
    /// Ollama's own chat API.
    Ollama,
}

impl WireKind {
    pub fn wire(self) -> &'static dyn WireFormat {
        match self {
            Self::Chat => &ChatCompletions,
            Self::Responses => &Responses,
            Self::Anthropic => &Anthropic,
            Self::Google => &Google,
            Self::Ollama => &Ollama,
        }
    }
}

/// Returns `path` below the path of `base`. The version of the API is added unless `base` already
/// ends in it.
pub fn below(base: &Url, version: &str, path: &str) -> Url {
    let mut url = base.clone();
    let folder = url.path().trim_end_matches('/').to_owned();
    let missing = if folder.ends_with(version) {
        ""
    } else {
        version
    };
    url.set_path(&format!("{folder}{missing}{path}"));
    url
}
