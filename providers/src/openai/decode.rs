//! Decodes the chunks of a chat completion. The decoder is lenient, because servers deviate from
//! the format.

mod calls;
mod snapshots;

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use planck_agent::model::{Chunk, Failure, FailureKind, Finish, Names};
use planck_common::{message::StopReason, usage::Usage};

use self::{calls::PartialCall, snapshots::Messages};
use super::reasoning::{Details, ReasoningMember};
use crate::{
    decode::{self, EventDecoder, PartKind, PartNumbers, broken, garbled, parse, stop_of},
    error_body::ProviderError,
    lenient::{ContentPiece, LenientContent, LenientWord, count, is_there},
    wire::{WireTarget, seal},
};

/// The state of a reply that is being decoded.
#[derive(Debug, Default)]
pub struct ChatReply {
    /// The label that [`seal`] stores with the signatures of this endpoint.
    label: String,
    parts: PartNumbers,
    calls: Vec<PartialCall>,
    /// The number of the latest thinking part, and the form in which its reasoning arrived.
    carried: Option<(usize, ReasoningMember)>,
    usage: Option<Usage>,
    /// llama.cpp's own token counts. They are used if the server sends no `usage`.
    timings: Usage,
    stop: Option<StopReason>,
    has_content: bool,
    messages: Messages,
    done: bool,
    is_document: bool,
    facts: ReplyFacts,
}

/// The facts about a reply that are not content.
#[derive(Debug, Default)]
struct ReplyFacts {
    has_choices: bool,
    refused: bool,
    deviations: Vec<&'static str>,
    names: Names,
}

impl EventDecoder for ChatReply {
    fn event(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        if data.trim_ascii() == b"[DONE]" {
            self.finish_parts(chunks);
            self.done = true;
            return Ok(());
        }
        let event: ChatEvent<'_> = parse(data)?;
        if event.error.filter(is_there).is_some() {
            return Err(error_body(data));
        }
        self.facts.names.note(event.id, event.model);
        let of_groq = event.x_groq.unwrap_or_default();
        self.count(of_groq.usage, None);
        self.count(event.usage, event.timings);
        match event.choices.into_iter().flatten().next() {
            Some(choice) => self.choice(choice, chunks),
            None if of_groq.error.filter(is_there).is_some() => Err(error_body(
                of_groq.error.map_or("", RawValue::get).as_bytes(),
            )),
            None => ProviderError::in_chunk(data).map_or(Ok(()), |error| Err(error.midway())),
        }
    }

    fn document(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        self.is_document = true;
        self.event(data, chunks)?;
        self.finish_parts(chunks);
        self.done = true;
        Ok(())
    }

    fn end(&self) -> Option<Finish> {
        let mut deviations = self.facts.deviations.clone();
        let stop = match self.stop {
            Some(stop) => stop,
            // The stream ended without a finish reason, but the reply is complete.
            None if self.done
                && self.has_content
                && self.calls.iter().all(PartialCall::is_whole) =>
            {
                deviations.push("it sent no finish_reason");
                StopReason::End
            }
            None => return None,
        };
        let stop = if self.facts.refused {
            StopReason::Refusal
        } else {
            stop_of(stop, !self.calls.is_empty())
        };
        Some(Finish {
            deviations,
            ..Finish::new(stop, self.usage.unwrap_or(self.timings))
        })
    }

    fn unfinished(&self) -> Failure {
        if self.done && !self.facts.has_choices {
            // The same request would get the same answer: servers answer so if the prompt does not
            // fit into their context, for example.
            let what = "the server ended its answer before any of it, without an error; its log may say why (a prompt that is longer than its context, for example)";
            return Failure::new(FailureKind::Refused, what);
        }
        decode::unfinished()
    }

    fn is_whole(&self) -> bool {
        self.done
    }

    fn names(&self) -> Names {
        self.facts.names.clone()
    }
}

impl ChatReply {
    pub fn of(target: &WireTarget) -> Self {
        Self {
            label: target.label.clone(),
            ..Self::default()
        }
    }

    fn salvage(&mut self, what: &'static str) {
        if !self.facts.deviations.contains(&what) {
            self.facts.deviations.push(what);
        }
    }

    fn count(&mut self, usage: Option<&RawValue>, timings: Option<&RawValue>) {
        let read = |raw: Option<&RawValue>| {
            raw.and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok())
        };
        if let Some(usage) = read(usage).filter(|usage| !usage.is_null()) {
            if !usage.is_object() {
                self.salvage("its usage cannot be read");
            }
            let cached = count(&usage, &["prompt_tokens_details", "cached_tokens"]);
            let cached = cached.max(count(&usage, &["prompt_cache_hit_tokens"]));
            self.usage = Some(decode::usage(
                count(&usage, &["prompt_tokens"]),
                cached,
                count(&usage, &["completion_tokens"]),
            ));
        }
        // `prompt_n` counts the tokens that llama.cpp processed, and `cache_n` those that were in
        // its cache.
        if let Some(timings) = read(timings) {
            let cached = count(&timings, &["cache_n"]);
            self.timings = decode::usage(
                count(&timings, &["prompt_n"]).saturating_add(cached),
                cached,
                count(&timings, &["predicted_n"]),
            );
        }
    }

    fn choice(&mut self, choice: StreamChoice<'_>, chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        self.facts.has_choices = true;
        if let Some(error) = choice.error.filter(is_there) {
            return Err(error_body(error.get().as_bytes()));
        }
        self.count(choice.usage, None);
        if let Some(delta) = choice.delta {
            self.messages.came.note(&delta);
            self.delta(delta, chunks);
        }
        if let Some(message) = choice.message {
            if self.is_document {
                self.delta(message, chunks);
            } else {
                self.message(message, choice.finish_reason.0.is_some(), chunks)?;
            }
        }
        if let Some(reason) = choice.finish_reason.0 {
            self.stop = Some(stop_reason(&reason)?);
            self.finish_parts(chunks);
        }
        Ok(())
    }

    fn delta(&mut self, delta: ChatDelta<'_>, chunks: &mut Vec<Chunk>) {
        let details = delta.reasoning_details.and_then(Details::read);
        let text = match (delta.reasoning_content.0, delta.reasoning.0) {
            (Some(text), _) => Some((text, ReasoningMember::ReasoningContent)),
            (None, Some(text)) => Some((text, ReasoningMember::Reasoning)),
            (None, None) => None,
        };
        match (text, details) {
            (Some((text, _)), Some(details)) => {
                self.think(text, ReasoningMember::Details(details), chunks)
            }
            (None, Some(details)) => {
                self.think(details.text(), ReasoningMember::Details(details), chunks)
            }
            (Some((text, carried)), None) => self.think(text, carried, chunks),
            (None, None) => {}
        }
        for piece in delta.content.0 {
            match piece {
                ContentPiece::Text(text) => self.say(text, chunks),
                ContentPiece::Thought(text) => self.think(text, ReasoningMember::List, chunks),
            }
        }
        if let Some(text) = delta.refusal.0 {
            self.facts.refused = true;
            self.say(text, chunks);
        }
        for call in delta.tool_calls.into_iter().flatten() {
            let piece = self.piece(call);
            self.call(piece, chunks);
        }
        if let Some(token) = delta.extra_content.and_then(thought_signature) {
            self.sign(PartKind::Text, &token, chunks);
        }
    }

    fn say(&mut self, text: String, chunks: &mut Vec<Chunk>) {
        self.has_content = true;
        self.end_thinking(chunks);
        chunks.push(Chunk::Text {
            part: self.parts.of(PartKind::Text),
            text,
        });
    }

    /// Adds reasoning. Reasoning is sent back in the field and the form in which it arrived, so the
    /// form is stored with the part. The name of a field is stored immediately, so that an
    /// interrupted reply has the name too. `reasoning_details` are stored when they are complete.
    fn think(&mut self, text: String, carried: ReasoningMember, chunks: &mut Vec<Chunk>) {
        let begins = !self.parts.is_last(PartKind::Thinking);
        let part = self.parts.of(PartKind::Thinking);
        chunks.push(Chunk::Thinking { part, text });
        match &mut self.carried {
            Some((_, known)) if !begins => known.add(carried),
            Some(_) | None => {
                if !carried.grows() {
                    let signature = seal(&self.label, &carried.token());
                    chunks.push(Chunk::Signature { part, signature });
                }
                self.carried = Some((part, carried));
            }
        }
    }

    fn end_thinking(&mut self, chunks: &mut Vec<Chunk>) {
        if let Some((part, carried)) = self.carried.take().filter(|(_, carried)| carried.grows()) {
            chunks.push(Chunk::Signature {
                part,
                signature: seal(&self.label, &carried.token()),
            });
        }
    }

    /// Adds Gemini's thought signature to the last part. If the last part is of another kind, the
    /// signature is added to a new part.
    fn sign(&mut self, kind: PartKind, token: &str, chunks: &mut Vec<Chunk>) {
        let is_new = !self.parts.is_last(kind);
        let part = self.parts.of(kind);
        if is_new {
            chunks.push(Chunk::Text {
                part,
                text: String::new(),
            });
        }
        chunks.push(Chunk::Signature {
            part,
            signature: seal(&self.label, token),
        });
    }

    /// Completes the parts. A call without arguments gets an empty object, and the collected
    /// reasoning details are emitted.
    fn finish_parts(&mut self, chunks: &mut Vec<Chunk>) {
        self.finish_messages(chunks);
        self.end_thinking(chunks);
        for call in &mut self.calls {
            chunks.extend(call.finish().map(|json| Chunk::Args {
                part: call.part,
                json,
            }));
        }
    }
}

fn error_body(data: &[u8]) -> Failure {
    ProviderError::read(data)
        .map_or_else(|| broken("an error without words"), ProviderError::midway)
}

fn stop_reason(word: &str) -> Result<StopReason, Failure> {
    Ok(match word {
        "tool_calls" | "function_call" => StopReason::ToolUse,
        "length" => StopReason::Length,
        "content_filter" => StopReason::Refusal,
        "error" | "insufficient_system_resource" => {
            return Err(garbled("the provider broke the reply off", word));
        }
        _ => StopReason::End,
    })
}

/// Reads the thought signature from `{"google":{"thought_signature":…}}`.
fn thought_signature(extra: &RawValue) -> Option<String> {
    let extra: Value = serde_json::from_str(extra.get()).ok()?;
    Some(
        extra
            .get("google")?
            .get("thought_signature")?
            .as_str()?
            .to_owned(),
    )
}

// One chunk of a chat completion, with the fields of all servers.

#[derive(Deserialize)]
struct ChatEvent<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    choices: Option<Vec<StreamChoice<'a>>>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    timings: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    x_groq: Option<GroqFacts<'a>>,
}

/// The member in which Groq sends the token counts and errors of a stream.
#[derive(Deserialize, Default, Clone, Copy)]
struct GroqFacts<'a> {
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct StreamChoice<'a> {
    #[serde(borrow, default)]
    delta: Option<ChatDelta<'a>>,
    #[serde(borrow, default)]
    message: Option<ChatDelta<'a>>,
    #[serde(default)]
    finish_reason: LenientWord,
    /// The token counts of Moonshot's streams.
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
struct ChatDelta<'a> {
    #[serde(default)]
    content: LenientContent,
    #[serde(default)]
    refusal: LenientWord,
    /// The field in which DeepSeek, Kimi, GLM, llama.cpp and vLLM send reasoning.
    #[serde(default)]
    reasoning_content: LenientWord,
    /// The field in which OpenRouter, Groq and newer versions of vLLM send reasoning.
    #[serde(default)]
    reasoning: LenientWord,
    /// The field in which OpenRouter sends reasoning with its structure.
    #[serde(borrow, default)]
    reasoning_details: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<CallDelta<'a>>>,
    #[serde(borrow, default)]
    extra_content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct CallDelta<'a> {
    #[serde(default)]
    index: LenientWord,
    #[serde(default)]
    id: LenientWord,
    #[serde(borrow, default)]
    function: Option<FunctionDelta<'a>>,
    #[serde(borrow, default)]
    extra_content: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
struct FunctionDelta<'a> {
    #[serde(default)]
    name: LenientWord,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}
