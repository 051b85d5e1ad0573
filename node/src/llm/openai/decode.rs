//! Decodes the chunks of a chat completion. The decoder is lenient, because servers deviate from
//! the format.

mod event;

use planck_common::{message::StopReason, usage::Usage};
use serde_json::{Value, value::RawValue};

use self::event::{CallDelta, ChatChoice, ChatDelta, ChatEvent};
use super::reasoning::{Details, ReasoningMember};
use crate::{
    llm::{
        complaint::Complaint,
        decode::{self, EventDecoder, PartKind, PartNumbers, broken, garbled, parse, stop_of},
        loose::{Arguments, Balance, ContentPiece, arguments, count},
        seal,
        wire::WireTarget,
    },
    model::{Chunk, Failure, Finish, Names},
};

/// The state of a reply that is being decoded.
#[derive(Debug, Default)]
pub struct ChatReply {
    /// The label that [`seal`] stores with the signatures of this endpoint.
    label: String,
    parts: PartNumbers,
    calls: Vec<OpenCall>,
    /// The number of the latest thinking part, and the form in which its reasoning arrived.
    carried: Option<(usize, ReasoningMember)>,
    usage: Option<Usage>,
    /// llama.cpp's own token counts. They are used if the server sends no `usage`.
    timings: Usage,
    stop: Option<StopReason>,
    refused: bool,
    has_content: bool,
    done: bool,
    is_document: bool,
    facts: ReplyFacts,
}

/// The facts about a reply that are not content.
#[derive(Debug, Default)]
struct ReplyFacts {
    salvaged: Vec<&'static str>,
    names: Names,
}

/// A call whose first piece has arrived. The pieces of several calls may be interleaved. Their
/// index or id tells them apart.
#[derive(Debug)]
struct OpenCall {
    index: Option<usize>,
    id: String,
    name: String,
    part: usize,
    args: Balance,
    has_args: bool,
}

impl EventDecoder for ChatReply {
    fn event(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        if data.trim_ascii() == b"[DONE]" {
            self.finish_parts(chunks);
            self.done = true;
            return Ok(());
        }
        let event: ChatEvent<'_> = parse(data)?;
        if event.error.is_some_and(|error| error.get() != "null") {
            return Err(Complaint::read(data)
                .map_or_else(|| broken("an error without words"), Complaint::midway));
        }
        self.facts.names.note(event.id, event.model);
        self.count(event.usage, event.timings);
        match event.choices.into_iter().flatten().next() {
            Some(choice) => self.choice(choice, chunks),
            None => Ok(()),
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
        let mut salvaged = self.facts.salvaged.clone();
        let stop = match self.stop {
            Some(stop) => stop,
            // The stream ended without a finish reason, but the reply is complete.
            None if self.done && self.has_content && self.calls.iter().all(OpenCall::is_whole) => {
                salvaged.push("it sent no finish_reason");
                StopReason::End
            }
            None => return None,
        };
        let stop = if self.refused {
            StopReason::Refusal
        } else {
            stop_of(stop, !self.calls.is_empty())
        };
        Some(Finish {
            salvaged,
            ..Finish::new(stop, self.usage.unwrap_or(self.timings))
        })
    }

    fn is_whole(&self) -> bool {
        self.done
    }

    fn names(&self) -> Names {
        self.facts.names.clone()
    }
}

impl OpenCall {
    fn is_whole(&self) -> bool {
        !self.has_args || self.args.is_complete()
    }

    /// Returns whether a delta with this id and function name begins another call rather than
    /// continuing `self`. Some servers give all calls of an answer the same index and no ids;
    /// others repeat the name in every piece of one call.
    fn is_over(&self, id: &str, name: &str) -> bool {
        let is_other = !id.is_empty() && !self.id.is_empty() && id != self.id;
        let has_no_id = id.is_empty() || self.id.is_empty();
        !name.is_empty()
            && (is_other
                || (has_no_id
                    && (self.args.is_complete() || (!self.has_args && self.name != name))))
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
        if !self.facts.salvaged.contains(&what) {
            self.facts.salvaged.push(what);
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
                count(&timings, &["prompt_n"]) + cached,
                cached,
                count(&timings, &["predicted_n"]),
            );
        }
    }

    fn choice(&mut self, choice: ChatChoice<'_>, chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        if let Some(delta) = choice.delta {
            self.delta(delta, chunks);
        }
        if let Some(message) = choice.message {
            if !self.is_document {
                self.salvage("it sent `message` in place of `delta`");
            }
            self.delta(message, chunks);
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
            self.refused = true;
            self.say(text, chunks);
        }
        for call in delta.tool_calls.into_iter().flatten() {
            self.call(call, chunks);
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
                    let signature = seal::seal(&self.label, &carried.token());
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
                signature: seal::seal(&self.label, &carried.token()),
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
            signature: seal::seal(&self.label, token),
        });
    }

    fn call(&mut self, delta: CallDelta<'_>, chunks: &mut Vec<Chunk>) {
        self.has_content = true;
        let function = delta.function.unwrap_or_default();
        let id = delta.id.text();
        let at = self.find_or_begin(delta.index.number(), &id, function.name.text(), chunks);
        let json = match function.arguments.map(arguments) {
            Some(Arguments::Json(json)) => {
                self.salvage("it sent arguments as JSON where text that holds JSON was due");
                json
            }
            Some(Arguments::Text(text)) => text,
            None => String::new(),
        };
        let token = delta.extra_content.and_then(thought_signature);
        let Some(call) = self.calls.get_mut(at) else {
            return;
        };
        if !json.is_empty() {
            call.has_args = true;
            call.args.feed(&json);
            chunks.push(Chunk::Args {
                part: call.part,
                json,
            });
        }
        if let Some(token) = token {
            chunks.push(Chunk::Signature {
                part: call.part,
                signature: seal::seal(&self.label, &token),
            });
        }
    }

    /// Returns the position of the call that a delta belongs to, and begins one if there is none.
    fn find_or_begin(
        &mut self,
        index: Option<usize>,
        id: &str,
        name: String,
        chunks: &mut Vec<Chunk>,
    ) -> usize {
        let by_index = |call: &OpenCall| call.index == index;
        let by_id = |call: &OpenCall| !id.is_empty() && call.id == id;
        let known = match index {
            Some(_) => self.calls.iter().rposition(by_index),
            None => self
                .calls
                .iter()
                .rposition(by_id)
                .or(self.calls.len().checked_sub(1)),
        };
        let goes_on = |at: &usize| {
            self.calls
                .get(*at)
                .is_some_and(|call| !call.is_over(id, &name))
        };
        if let Some(at) = known.filter(goes_on) {
            return at;
        }
        self.end_thinking(chunks);
        let part = self.parts.begin(PartKind::Call);
        chunks.push(Chunk::Call {
            part,
            id: id.to_owned(),
            name: name.clone(),
        });
        self.calls.push(OpenCall {
            index,
            id: id.to_owned(),
            name,
            part,
            args: Balance::default(),
            has_args: false,
        });
        self.calls.len() - 1
    }

    /// Completes the parts. A call without arguments gets an empty object, and the collected
    /// reasoning details are emitted.
    fn finish_parts(&mut self, chunks: &mut Vec<Chunk>) {
        self.end_thinking(chunks);
        for call in self.calls.iter_mut().filter(|call| !call.has_args) {
            call.has_args = true;
            call.args.feed("{}");
            chunks.push(Chunk::Args {
                part: call.part,
                json: "{}".to_owned(),
            });
        }
    }
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
