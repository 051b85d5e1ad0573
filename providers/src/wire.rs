//! The trait of wire formats: the address of a request, its encoding, and the decoding of its
//! answer.

use reqwest::{
    Url,
    header::{HeaderMap, HeaderName},
};

use super::{
    Encoder, RequestHead, anthropic::Anthropic, catalogue::ModelFacts, decode::Decoder,
    google::Google, ollama::Ollama, openai::ChatCompletions, quirks::Quirks, responses::Responses,
};

/// The facts about an endpoint that its wire format needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WireTarget {
    /// The label that [`super::seal`] stores with the endpoint's signatures, so that they are not
    /// sent to another endpoint.
    pub label: String,
    /// Whether this is the vendor's own address. Only the vendor accepts the newest request fields.
    pub is_vendor: bool,
    pub quirks: Quirks,
}

/// One wire format.
pub trait WireFormat: Send + Sync {
    /// Returns the address of a request below a base URL. The query of the base URL is kept.
    fn url(&self, base: &Url, model: &str, target: &WireTarget) -> Url;

    /// Returns the header that carries the key, and the prefix of the key in it, such as `Bearer `.
    fn key_header(&self, target: &WireTarget) -> (HeaderName, &'static str);

    /// Returns the headers that every request of this wire format has.
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

/// Returns the URL with `path` appended to the path of `base`. The API version is inserted unless
/// the path of `base` already ends with it.
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
