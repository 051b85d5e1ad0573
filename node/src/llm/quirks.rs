//! How servers deviate from the vendor whose wire format they speak. Pure data; [`super::preset`]
//! says who has which.

/// The deviations of one endpoint. The default is a server of which nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quirks {
    pub reasoning: Reasoning,
    pub thinking: AskToThink,
    pub limit: Limit,
    pub call_ids: CallIds,
    pub addresses: Addresses,
}

/// Whether a model's reasoning goes back to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reasoning {
    /// Under the name and in the form in which it came.
    #[default]
    AsItCame,
    /// The server refuses it.
    Never,
}

/// How a server of chat completions is asked to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AskToThink {
    /// `reasoning_effort`, a word.
    #[default]
    Effort,
    /// `chat_template_kwargs.enable_thinking`.
    Template,
    /// OpenRouter's `reasoning.max_tokens`.
    Budget,
    /// `thinking.type`, as DeepSeek, Kimi and GLM have it.
    Switch,
}

/// The member that limits an answer's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Limit {
    /// `max_completion_tokens` for models that bear the name of one of OpenAI's, else `max_tokens`.
    #[default]
    ByModel,
    MaxTokens,
    MaxCompletionTokens,
}

/// Which ids of calls a server takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallIds {
    #[default]
    Any,
    /// Nine letters and digits: Mistral.
    Nine,
}

/// How a server's addresses are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Addresses {
    /// As the wire format's own vendor makes them.
    #[default]
    Plain,
    /// Azure: `/openai/v1/…`, and with a version of the API `/openai/deployments/<model>/…`. The
    /// key is the header `api-key`.
    Azure,
}
