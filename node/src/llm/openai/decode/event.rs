//! A chunk in all the forms in which servers send it.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::llm::loose::{Content, Word};

#[derive(Deserialize)]
pub struct Event<'a> {
    #[serde(borrow, default)]
    pub id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub choices: Option<Vec<Choice<'a>>>,
    #[serde(borrow, default)]
    pub usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub timings: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub struct Choice<'a> {
    #[serde(borrow, default)]
    pub delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    pub message: Option<Delta<'a>>,
    #[serde(default)]
    pub finish_reason: Word,
}

#[derive(Deserialize)]
pub struct Delta<'a> {
    #[serde(default)]
    pub content: Content,
    #[serde(default)]
    pub refusal: Word,
    /// Sent by DeepSeek, Kimi, GLM, llama.cpp and vLLM.
    #[serde(default)]
    pub reasoning_content: Word,
    /// Sent by OpenRouter, Groq and newer vLLM.
    #[serde(default)]
    pub reasoning: Word,
    /// Sent by OpenRouter.
    #[serde(borrow, default)]
    pub reasoning_details: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub tool_calls: Option<Vec<CallDelta<'a>>>,
    #[serde(borrow, default)]
    pub extra_content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub struct CallDelta<'a> {
    #[serde(default)]
    pub index: Word,
    #[serde(default)]
    pub id: Word,
    #[serde(borrow, default)]
    pub function: Option<FunctionDelta<'a>>,
    #[serde(borrow, default)]
    pub extra_content: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
pub struct FunctionDelta<'a> {
    #[serde(default)]
    pub name: Word,
    #[serde(borrow, default)]
    pub arguments: Option<&'a RawValue>,
}
