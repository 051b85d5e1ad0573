//! The contents of the events in a response's stream.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    decode::{PartKind, parse},
    lenient::LenientWord,
};
use planck_agent::model::Failure;

/// One event. The fields that only some events have are parsed only where they are needed, because
/// another event may use the same name for a different value.
#[derive(Deserialize)]
pub struct ResponsesEvent<'a> {
    #[serde(default, rename = "type")]
    pub kind: LenientWord,
    #[serde(default)]
    pub output_index: LenientWord,
    #[serde(default)]
    pub content_index: LenientWord,
    #[serde(borrow, default)]
    pub delta: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub item: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub response: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub error: Option<&'a RawValue>,
}

impl<'a> ResponsesEvent<'a> {
    pub fn response(&self) -> Result<ResponseFacts<'a>, Failure> {
        self.response.map_or_else(
            || Ok(ResponseFacts::default()),
            |raw| parse(raw.get().as_bytes()),
        )
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct ResponseFacts<'a> {
    #[serde(borrow)]
    pub id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub model: Option<&'a RawValue>,
    pub status: LenientWord,
    #[serde(borrow)]
    pub output: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    pub error: Option<&'a RawValue>,
    pub incomplete_details: Option<IncompleteDetails>,
    #[serde(borrow)]
    pub usage: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct IncompleteDetails {
    pub reason: LenientWord,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct OutputItem {
    #[serde(rename = "type")]
    pub kind: LenientWord,
    pub id: LenientWord,
    pub call_id: LenientWord,
    pub name: LenientWord,
    pub arguments: Option<Box<RawValue>>,
    pub phase: LenientWord,
    pub content: Option<Vec<EventContent>>,
    pub summary: Option<Vec<EventContent>>,
    pub encrypted_content: LenientWord,
}

impl OutputItem {
    pub fn kind(&self) -> Option<PartKind> {
        match self.kind.0.as_deref()? {
            "message" => Some(PartKind::Text),
            "reasoning" => Some(PartKind::Thinking),
            "function_call" => Some(PartKind::Call),
            _ => None,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct EventContent {
    pub text: LenientWord,
    pub refusal: LenientWord,
}
