//! Anthropic's events, read into borrowed structures.

use std::borrow::Cow;

use planck_common::{message::StopReason, usage::Usage};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::NAME;
use crate::{
    llm::{
        allowance::over,
        complaint::Complaint,
        decode::{Events, Kind, Parts, broken, parse, stop_of},
        seal,
    },
    model::{Chunk, Failure, Finish},
};

/// The longest signature of a thought, in bytes. It is held back until its block ends, where the answer's bounds count it.
const LONGEST_SIGNATURE: usize = 8 << 20;

/// A reply as far as it has come.
#[derive(Debug, Default)]
pub struct Reply {
    parts: Parts,
    block: Block,
    calls: bool,
    usage: Usage,
    stop: Option<StopReason>,
    stopped: bool,
}

/// The block that is being read; blocks come one after the other.
#[derive(Debug, Default)]
struct Block {
    part: Option<usize>,
    signature: String,
    /// A call whose arguments have not come yet.
    bare_call: bool,
}

impl Events for Reply {
    fn event(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        let event: Event<'_> = parse(data)?;
        match &*event.kind {
            "content_block_delta" => return self.delta(event.delta.unwrap_or_default(), chunks),
            "content_block_start" => self.start(event.content_block.unwrap_or_default(), chunks),
            "content_block_stop" => self.end_block(chunks),
            "message_start" => self.count(event.message.unwrap_or_default().usage.unwrap_or_default()),
            "message_delta" => {
                self.stop = event.delta.and_then(|delta| delta.stop_reason).map(|reason| stop_reason(&reason.0)).or(self.stop);
                self.count(event.usage.unwrap_or_default());
            }
            "message_stop" => self.stopped = true,
            "error" => return Err(Complaint::read(data).map_or_else(|| broken("an error without words"), Complaint::midway)),
            // `ping`, and what a later version of the API may send.
            _ => {}
        }
        Ok(())
    }

    fn end(&self) -> Option<Finish> {
        self.stopped.then(|| Finish { stop: stop_of(self.stop.unwrap_or(StopReason::End), self.calls), usage: self.usage })
    }

    fn is_whole(&self) -> bool {
        self.stopped
    }
}

impl Reply {
    fn start(&mut self, start: Start<'_>, chunks: &mut Vec<Chunk>) {
        self.block = Block::default();
        self.parts.close();
        match &*start.kind {
            "text" => self.text(start.text, chunks),
            "thinking" => {
                let part = self.parts.begin(Kind::Thinking);
                self.block = Block { part: Some(part), signature: start.signature, bare_call: false };
                chunks.push(Chunk::Thinking { part, text: start.thinking });
            }
            "redacted_thinking" => {
                let part = self.parts.begin(Kind::Thinking);
                chunks.push(Chunk::Redacted { part, data: seal::seal(NAME, &start.data) });
            }
            "tool_use" => {
                let part = self.parts.begin(Kind::Call);
                self.calls = true;
                self.block = Block { part: Some(part), signature: String::new(), bare_call: true };
                chunks.push(Chunk::Call { part, id: start.id, name: start.name });
                self.args(start.input.map(RawValue::get).filter(|input| *input != "{}").unwrap_or_default().to_owned(), chunks);
            }
            _ => {}
        }
    }

    fn delta(&mut self, delta: Delta<'_>, chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        match &*delta.kind {
            "text_delta" => self.text(delta.text, chunks),
            "input_json_delta" => self.args(delta.partial_json, chunks),
            "thinking_delta" => {
                if let Some(part) = self.block.part.filter(|_| !delta.thinking.is_empty()) {
                    chunks.push(Chunk::Thinking { part, text: delta.thinking });
                }
            }
            // It becomes a chunk only at the block's end, so nothing else bounds it.
            "signature_delta" if self.block.signature.len() + delta.signature.len() > LONGEST_SIGNATURE => {
                return Err(over("has a signature of many MiB"));
            }
            "signature_delta" => self.block.signature.push_str(&delta.signature),
            _ => {}
        }
        Ok(())
    }

    /// A text block without text is no part: there is nothing to keep.
    fn text(&mut self, text: String, chunks: &mut Vec<Chunk>) {
        if !text.is_empty() {
            chunks.push(Chunk::Text { part: self.parts.of(Kind::Text), text });
        }
    }

    fn args(&mut self, json: String, chunks: &mut Vec<Chunk>) {
        if let Some(part) = self.block.part.filter(|_| !json.is_empty()) {
            self.block.bare_call = false;
            chunks.push(Chunk::Args { part, json });
        }
    }

    fn end_block(&mut self, chunks: &mut Vec<Chunk>) {
        let block = std::mem::take(&mut self.block);
        let Some(part) = block.part else { return };
        if block.bare_call {
            chunks.push(Chunk::Args { part, json: "{}".to_owned() });
        }
        if !block.signature.is_empty() {
            chunks.push(Chunk::Signature { part, signature: seal::seal(NAME, &block.signature) });
        }
    }

    /// Counts are cumulative, and later ones may leave out what they do not change.
    fn count(&mut self, counts: Counts) {
        let set = |total: &mut u64, count: Option<u64>| *total = count.unwrap_or(*total);
        set(&mut self.usage.input_tokens, counts.input_tokens);
        set(&mut self.usage.output_tokens, counts.output_tokens);
        set(&mut self.usage.cache_read_tokens, counts.cache_read_input_tokens);
        set(&mut self.usage.cache_write_tokens, counts.cache_creation_input_tokens);
    }
}

fn stop_reason(word: &str) -> StopReason {
    match word {
        "tool_use" => StopReason::ToolUse,
        "max_tokens" | "model_context_window_exceeded" => StopReason::Length,
        "refusal" => StopReason::Refusal,
        _ => StopReason::End,
    }
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    #[serde(borrow)]
    content_block: Option<Start<'a>>,
    message: Option<Message>,
    usage: Option<Counts>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Delta<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    text: String,
    thinking: String,
    signature: String,
    partial_json: String,
    #[serde(borrow)]
    stop_reason: Option<Word<'a>>,
}

/// serde borrows a `Cow` only where it stands by itself.
#[derive(Deserialize)]
struct Word<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize, Default)]
#[serde(default)]
struct Start<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    text: String,
    thinking: String,
    signature: String,
    data: String,
    id: String,
    name: String,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Message {
    usage: Option<Counts>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Counts {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}
