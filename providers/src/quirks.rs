//! How servers deviate from the vendor whose wire format they use. [`super::preset`] assigns the
//! deviations to providers.

/// The deviations of one endpoint. The default describes an unknown server.
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
