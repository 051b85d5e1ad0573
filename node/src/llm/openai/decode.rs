//! Chunks of a chat completion, read into borrowed structures.

use std::borrow::Cow;

use planck_common::{message::StopReason, usage::Usage};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    llm::{
        complaint::Complaint,
        decode::{self, Events, Kind, Parts, broken, garbled, parse, stop_of},
    },
    model::{Chunk, Failure, Finish},
};

/// A reply as far as it has come.
#[derive(Debug, Default)]
pub struct Reply {
    parts: Parts,
    calls: Vec<Call>,
    usage: Option<Usage>,
    /// What llama.cpp counted, where it sends no usage.
    timings: Usage,
    stop: Option<StopReason>,
    refused: bool,
    done: bool,
}

/// A call that began. Calls are interleaved by the provider's index.
#[derive(Debug)]
struct Call {
    index: usize,
    id: String,
    part: usize,
    has_args: bool,
}

impl Events for Reply {
    fn event(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        let event: Event<'_> = parse(data)?;
        if event.error.is_some_and(|error| error.get() != "null") {
            return Err(Complaint::read(data).map_or_else(|| broken("an error without words"), Complaint::midway));
        }
        self.usage = event.usage.map(Counts::usage).or(self.usage);
        if let Some(timings) = event.timings {
            self.timings = timings.usage();
        }
        match event.choices.into_iter().flatten().next() {
            Some(choice) => self.choice(choice, chunks),
            None => Ok(()),
        }
    }

    fn end(&self) -> Option<Finish> {
        let stop = if self.refused { StopReason::Refusal } else { stop_of(self.stop?, !self.calls.is_empty()) };
        Some(Finish { stop, usage: self.usage.unwrap_or(self.timings) })
    }

    fn is_whole(&self) -> bool {
        self.done
    }
}

impl Reply {
    fn choice(&mut self, choice: Choice<'_>, chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        if let Some(delta) = choice.delta {
            self.delta(delta, chunks);
        }
        if let Some(reason) = choice.finish_reason {
            self.stop = Some(stop_reason(&reason.0)?);
            self.complete_calls(chunks);
        }
        Ok(())
    }

    fn delta(&mut self, delta: Delta<'_>, chunks: &mut Vec<Chunk>) {
        if let Some(text) = delta.reasoning_content.or(delta.reasoning).filter(|text| !text.is_empty()) {
            chunks.push(Chunk::Thinking { part: self.parts.of(Kind::Thinking), text });
        }
        if let Some(text) = delta.content.filter(|text| !text.is_empty()) {
            chunks.push(Chunk::Text { part: self.parts.of(Kind::Text), text });
        }
        if let Some(text) = delta.refusal.filter(|text| !text.is_empty()) {
            self.refused = true;
            chunks.push(Chunk::Text { part: self.parts.of(Kind::Text), text });
        }
        for call in delta.tool_calls.into_iter().flatten() {
            self.call(call, chunks);
        }
    }

    fn call(&mut self, delta: CallDelta<'_>, chunks: &mut Vec<Chunk>) {
        let function = delta.function.unwrap_or_default();
        let id = delta.id.map(|id| id.0).unwrap_or_default();
        let at = self.find_or_begin(delta.index, &id, function.name.unwrap_or_default(), chunks);
        let Some(call) = self.calls.get_mut(at) else { return };
        if let Some(json) = function.arguments.filter(|json| !json.is_empty()) {
            call.has_args = true;
            chunks.push(Chunk::Args { part: call.part, json });
        }
    }

    /// The call a delta belongs to. Some servers number all calls 0 or not at all; then a new id begins a new call.
    fn find_or_begin(&mut self, index: Option<usize>, id: &str, name: String, chunks: &mut Vec<Chunk>) -> usize {
        let known = match index {
            Some(index) => self.calls.iter().rposition(|call| call.index == index),
            None => self.calls.len().checked_sub(1),
        };
        let same = |at: &usize| self.calls.get(*at).is_some_and(|call| id.is_empty() || call.id == id || name.is_empty());
        if let Some(at) = known.filter(same) {
            return at;
        }
        let part = self.parts.begin(Kind::Call);
        let index = index.unwrap_or(self.calls.len());
        chunks.push(Chunk::Call { part, id: id.to_owned(), name });
        self.calls.push(Call { index, id: id.to_owned(), part, has_args: false });
        self.calls.len() - 1
    }

    /// A call without arguments has empty ones.
    fn complete_calls(&mut self, chunks: &mut Vec<Chunk>) {
        for call in self.calls.iter_mut().filter(|call| !call.has_args) {
            call.has_args = true;
            chunks.push(Chunk::Args { part: call.part, json: "{}".to_owned() });
        }
    }
}

fn stop_reason(word: &str) -> Result<StopReason, Failure> {
    Ok(match word {
        "tool_calls" | "function_call" => StopReason::ToolUse,
        "length" => StopReason::Length,
        "content_filter" => StopReason::Refusal,
        "error" | "insufficient_system_resource" => return Err(garbled("the provider broke the reply off", word)),
        _ => StopReason::End,
    })
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(default)]
    usage: Option<Counts>,
    #[serde(default)]
    timings: Option<Timings>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<Word<'a>>,
}

/// serde borrows a `Cow` only where it stands by itself.
#[derive(Deserialize)]
struct Word<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Delta<'a> {
    content: Option<String>,
    refusal: Option<String>,
    /// DeepSeek, llama.cpp, vLLM.
    reasoning_content: Option<String>,
    /// OpenRouter, newer vLLM.
    reasoning: Option<String>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<CallDelta<'a>>>,
}

#[derive(Deserialize)]
struct CallDelta<'a> {
    index: Option<usize>,
    #[serde(borrow, default)]
    id: Option<Word<'a>>,
    function: Option<FunctionDelta>,
}

#[derive(Deserialize, Default)]
struct FunctionDelta {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Deserialize)]
struct Counts {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

impl Counts {
    fn usage(self) -> Usage {
        let cached = self.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0);
        decode::usage(self.prompt_tokens, cached, self.completion_tokens)
    }
}

/// llama.cpp: `prompt_n` are the tokens it read anew, `cache_n` those it had.
#[derive(Deserialize)]
struct Timings {
    #[serde(default)]
    prompt_n: u64,
    #[serde(default)]
    predicted_n: u64,
    #[serde(default)]
    cache_n: u64,
}

impl Timings {
    fn usage(self) -> Usage {
        decode::usage(self.prompt_n + self.cache_n, self.cache_n, self.predicted_n)
    }
}
