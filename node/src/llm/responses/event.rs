//! The contents of the events of a response.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    llm::{
        decode::{Kind, parse},
        loose::Word,
    },
    model::Failure,
};

/// The members that some events have. They are parsed only where they matter, because another event
/// may use the same name for something else.
#[derive(Deserialize)]
pub struct Event<'a> {
    #[serde(default, rename = "type")]
    pub kind: Word,
    #[serde(default)]
    pub output_index: Word,
    #[serde(default)]
    pub content_index: Word,
    #[serde(borrow, default)]
    pub delta: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub item: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub response: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub error: Option<&'a RawValue>,
}

impl<'a> Event<'a> {
    pub fn response(&self) -> Result<Response<'a>, Failure> {
        self.response.map_or_else(
            || Ok(Response::default()),
            |raw| parse(raw.get().as_bytes()),
        )
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Response<'a> {
    #[serde(borrow)]
    pub id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub model: Option<&'a RawValue>,
    pub status: Word,
    #[serde(borrow)]
    pub output: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    pub error: Option<&'a RawValue>,
    pub incomplete_details: Option<Incomplete>,
    #[serde(borrow)]
    pub usage: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Incomplete {
    pub reason: Word,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct OutputItem {
    #[serde(rename = "type")]
    pub kind: Word,
    pub id: Word,
    pub call_id: Word,
    pub name: Word,
    pub arguments: Option<Box<RawValue>>,
    pub phase: Word,
    pub content: Option<Vec<Content>>,
    pub summary: Option<Vec<Content>>,
    pub encrypted_content: Word,
}

impl OutputItem {
    pub fn kind(&self) -> Option<Kind> {
        match self.kind.0.as_deref()? {
            "message" => Some(Kind::Text),
            "reasoning" => Some(Kind::Thinking),
            "function_call" => Some(Kind::Call),
            _ => None,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Content {
    pub text: Word,
    pub refusal: Word,
}
