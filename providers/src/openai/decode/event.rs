//! One chunk of a chat completion, with the fields of all servers.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::lenient::{LenientContent, LenientWord};

#[derive(Deserialize)]
pub struct ChatEvent<'a> {
    #[serde(borrow, default)]
    pub id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub choices: Option<Vec<ChatChoice<'a>>>,
    #[serde(borrow, default)]
    pub usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub timings: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub x_groq: Option<GroqFacts<'a>>,
}

/// The member in which Groq sends the token counts and errors of a stream.
#[derive(Deserialize, Default, Clone, Copy)]
pub struct GroqFacts<'a> {
    #[serde(borrow, default)]
    pub usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub struct ChatChoice<'a> {
    #[serde(borrow, default)]
    pub delta: Option<ChatDelta<'a>>,
    #[serde(borrow, default)]
    pub message: Option<ChatDelta<'a>>,
    #[serde(default)]
    pub finish_reason: LenientWord,
    /// The token counts of Moonshot's streams.
    #[serde(borrow, default)]
    pub usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub error: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
pub struct ChatDelta<'a> {
    #[serde(default)]
    pub content: LenientContent,
    #[serde(default)]
    pub refusal: LenientWord,
    /// The field in which DeepSeek, Kimi, GLM, llama.cpp and vLLM send reasoning.
    #[serde(default)]
    pub reasoning_content: LenientWord,
    /// The field in which OpenRouter, Groq and newer versions of vLLM send reasoning.
    #[serde(default)]
    pub reasoning: LenientWord,
    /// The field in which OpenRouter sends reasoning with its structure.
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
    pub index: LenientWord,
    #[serde(default)]
    pub id: LenientWord,
    #[serde(borrow, default)]
    pub function: Option<FunctionDelta<'a>>,
    #[serde(borrow, default)]
    pub extra_content: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
pub struct FunctionDelta<'a> {
    #[serde(default)]
    pub name: LenientWord,
    #[serde(borrow, default)]
    pub arguments: Option<&'a RawValue>,
}
