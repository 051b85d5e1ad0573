//! Decodes the lines of Ollama's stream, which are parsed without copying their strings. A call
//! arrives whole.

use planck_common::message::StopReason;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    decode::{EventDecoder, PartKind, PartNumbers, broken, parse, stop_of, usage},
    error_body::ProviderError,
    lenient::{BorrowedWord, count},
};
use planck_agent::model::{Chunk, Failure, Finish, Names};

/// The state of a reply that is being decoded.
#[derive(Debug, Default)]
pub struct OllamaReply {
    parts: PartNumbers,
    calls: bool,
    end: Option<Finish>,
    names: Names,
}

impl EventDecoder for OllamaReply {
    fn event(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        let line: OllamaLine<'_> = parse(data)?;
        if line.error.is_some() {
            return Err(ProviderError::read(data)
                .map_or_else(|| broken("an error without words"), ProviderError::midway));
        }
        self.names.note(None, line.model);
        if let Some(message) = line.message {
            self.message(message, chunks);
        }
        if line.done {
            let stop = line
                .done_reason
                .map_or(StopReason::End, |reason| stop_reason(&reason.0));
            // `prompt_eval_count` is absent if the whole prompt was cached.
            let usage = usage(
                count(&line.prompt_eval_count, &[]),
                0,
                count(&line.eval_count, &[]),
            );
            self.end = Some(Finish::new(stop_of(stop, self.calls), usage));
        }
        Ok(())
    }

    fn end(&self) -> Option<Finish> {
        self.end.clone()
    }

    fn is_whole(&self) -> bool {
        self.end.is_some()
    }

    fn names(&self) -> Names {
        self.names.clone()
    }
}

impl OllamaReply {
    fn message(&mut self, message: OllamaMessage<'_>, chunks: &mut Vec<Chunk>) {
        if let Some(text) = message.thinking.filter(|text| !text.is_empty()) {
            chunks.push(Chunk::Thinking {
                part: self.parts.of(PartKind::Thinking),
                text,
            });
        }
        if let Some(text) = message.content.filter(|text| !text.is_empty()) {
            chunks.push(Chunk::Text {
                part: self.parts.of(PartKind::Text),
                text,
            });
        }
        for call in message.tool_calls.into_iter().flatten() {
            self.calls = true;
            let part = self.parts.begin(PartKind::Call);
            let json = call.function.arguments.map_or("{}", RawValue::get);
            chunks.push(Chunk::Call {
                part,
                id: call.id.unwrap_or_default(),
                name: call.function.name,
            });
            chunks.push(Chunk::Args {
                part,
                json: if json == "null" { "{}" } else { json }.to_owned(),
            });
        }
    }
}

fn stop_reason(word: &str) -> StopReason {
    if word == "length" {
        StopReason::Length
    } else {
        StopReason::End
    }
}

#[derive(Deserialize)]
struct OllamaLine<'a> {
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    message: Option<OllamaMessage<'a>>,
    #[serde(default)]
    done: bool,
    #[serde(borrow, default)]
    done_reason: Option<BorrowedWord<'a>>,
    #[serde(default)]
    prompt_eval_count: Value,
    #[serde(default)]
    eval_count: Value,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct OllamaMessage<'a> {
    content: Option<String>,
    thinking: Option<String>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<OllamaCall<'a>>>,
}

#[derive(Deserialize)]
struct OllamaCall<'a> {
    id: Option<String>,
    #[serde(borrow)]
    function: OllamaFunction<'a>,
}

#[derive(Deserialize)]
struct OllamaFunction<'a> {
    name: String,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}
