//! How servers deviate from the vendor whose wire format they speak. Plain data; [`super::preset`]
//! assigns them.

/// The deviations of one endpoint. The default is that of an unknown server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quirks {
    pub reasoning: ReasoningReturn,
    pub thinking: ThinkingRequest,
    pub limit: Limit,
    pub call_ids: CallIdForm,
    pub addresses: AddressStyle,
}

/// Whether a model's reasoning is sent back to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReasoningReturn {
    /// Under the name and in the form in which it arrived.
    #[default]
    AsItCame,
    /// Never, because the server refuses it.
    Never,
}

/// How a request asks a server of chat completions to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThinkingRequest {
    /// `reasoning_effort`, which is a word.
    #[default]
    Effort,
    /// `chat_template_kwargs.enable_thinking`.
    Template,
    /// OpenRouter's `reasoning.max_tokens`.
    Budget,
    /// `thinking.type`, as DeepSeek, Kimi and GLM define it.
    Switch,
}

/// The member that limits the tokens of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Limit {
    /// `max_completion_tokens` for models with the name of an OpenAI model, and `max_tokens` for
    /// others.
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
    /// Nine letters and digits, as Mistral requires.
    Nine,
}

/// How the addresses of a server are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AddressStyle {
    /// As the vendor of the wire format builds them.
    #[default]
    Plain,
    /// As Azure builds them: `/openai/v1/…`, or `/openai/deployments/<model>/…` with a version of
    /// the API. The key is in the header `api-key`.
    Azure,
}
