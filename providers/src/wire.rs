//! The trait of wire formats: the address of a request, its encoding, and the decoding of its
//! answer. A format needs facts about the endpoint: how its server deviates from the vendor, and the
//! label of its opaque tokens.

use reqwest::{
    Url,
    header::{HeaderMap, HeaderName},
};
use serde_json::Value;

use crate::{
    Encoder, RequestHead, anthropic::Anthropic, catalogue::ModelFacts, decode::Decoder,
    google::Google, ollama::Ollama, openai::ChatCompletions, responses::Responses,
};

/// The facts about an endpoint that its wire format needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WireTarget {
    /// The label that [`seal`] stores with the endpoint's signatures, so that they are not
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

// Labels opaque tokens, such as signatures and encrypted reasoning, with the endpoint that issued
// them, so that after a change of model they are not sent to another endpoint.

/// Returns the token with its label, as it is stored. `provider` is the label of the endpoint.
pub fn seal(provider: &str, token: &str) -> String {
    format!("{provider}:{token}")
}

/// Returns the token without its label, or `None` if it belongs to another endpoint.
pub fn unseal<'a>(provider: &str, sealed: &'a str) -> Option<&'a str> {
    sealed.strip_prefix(provider)?.strip_prefix(':')
}

// How servers deviate from the vendor whose wire format they use. [`super::preset`] assigns the
// deviations to providers.

/// The deviations of one endpoint. The default describes an unknown server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quirks {
    pub reasoning: ReasoningReturn,
    pub thinking: ThinkingRequest,
    pub limit: Limit,
    pub call_ids: CallIdForm,
    pub demand: ToolDemand,
    pub addresses: AddressStyle,
}

/// Whether a model's reasoning is sent back to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReasoningReturn {
    /// Reasoning is sent back in the field and the form in which it arrived.
    #[default]
    AsItCame,
    /// Reasoning is never sent back, because the server refuses it.
    Never,
}

/// The request field that asks a server of chat completions to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThinkingRequest {
    /// `reasoning_effort`, whose value is a word such as `low`.
    #[default]
    Effort,
    /// `chat_template_kwargs.enable_thinking`, a boolean.
    Template,
    /// OpenRouter's `reasoning.max_tokens`, a number of tokens.
    Budget,
    /// `thinking.type`, as DeepSeek, Kimi and GLM define it.
    Switch,
}

/// The request field that limits the tokens of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Limit {
    /// `max_completion_tokens` for models whose name is that of an OpenAI model, and `max_tokens`
    /// for others.
    #[default]
    ByModel,
    MaxTokens,
    MaxCompletionTokens,
}

/// The form of call ids that a server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallIdForm {
    #[default]
    Any,
    /// Exactly nine letters and digits, as Mistral requires.
    Nine,
}

/// How a request on OpenAI's wires demands that the model calls a certain tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolDemand {
    /// `tool_choice` names the tool.
    #[default]
    Named,
    /// `tool_choice` is `required`, which every tool satisfies, because the server takes only words.
    Required,
    /// The request demands nothing. The server refuses a demand, at least while the model thinks.
    Never,
}

impl ToolDemand {
    /// Returns the `tool_choice` of a request, if there is one. `named` is the wire's form of a choice
    /// that names the tool.
    pub fn choice(self, named: Value) -> Option<Value> {
        match self {
            Self::Named => Some(named),
            Self::Required => Some("required".into()),
            Self::Never => None,
        }
    }
}

/// How the addresses of a server are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AddressStyle {
    /// The addresses of the vendor that defined the wire format.
    #[default]
    Plain,
    /// Azure's addresses: `/openai/v1/…`, or `/openai/deployments/<model>/…` with the version of
    /// the API in the query. The key is in the header `api-key`.
    Azure,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_opened_only_for_its_own_provider() {
        let sealed = seal("google", "a:b");
        assert_eq!(unseal("google", &sealed), Some("a:b"));
        assert_eq!(unseal("anthropic", &sealed), None);
        assert_eq!(unseal("goo", &sealed), None);
    }
}
