//! Decodes the events of Anthropic's streams, which are parsed without copying their strings.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use planck_agent::model::{Chunk, Failure, Finish, Names};
use planck_common::{message::StopReason, usage::Usage};

use crate::{
    answer_bounds::over,
    decode::{EventDecoder, PartKind, PartNumbers, broken, parse, stop_of},
    error_body::ProviderError,
    lenient::{BorrowedWord, LenientWord, count, is_placeholder},
    wire::{WireTarget, seal},
};

/// The maximum length of a thinking block's signature in bytes. A signature is buffered until its
/// block ends, and is counted towards the limits of the answer only then.
const LONGEST_SIGNATURE: usize = 8 << 20;

/// The state of a reply that is being decoded.
#[derive(Debug, Default)]
pub struct AnthropicReply {
    /// The label that [`seal`] stores with the signatures of this endpoint.
    label: String,
    is_vendor: bool,
    parts: PartNumbers,
    /// The blocks that are being read, each with its index. Anthropic sends one block after the
    /// other, while other servers interleave blocks.
    blocks: Vec<(usize, OpenBlock)>,
    calls: bool,
    usage: Usage,
    stop: Option<StopReason>,
    stopped: bool,
    names: Names,
}

#[derive(Debug)]
struct OpenBlock {
    kind: PartKind,
    /// The number of the part. A text block has `None` until its first text arrives, so an empty
    /// text block becomes no part.
    part: Option<usize>,
    signature: String,
    /// Whether no thinking or arguments have arrived yet. Text blocks do not use this field.
    is_bare: bool,
}

impl EventDecoder for AnthropicReply {
    fn event(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        let event: AnthropicEvent<'_> = parse(data)?;
        let index = event.index.number().unwrap_or_default();
        match &*event.kind {
            "content_block_delta" => {
                return self.delta(index, event.delta.unwrap_or_default(), chunks);
            }
            "content_block_start" => {
                self.start(index, event.content_block.unwrap_or_default(), chunks)
            }
            "content_block_stop" => self.end_block(index, chunks),
            "message_start" => self.count(event.message),
            "message_delta" => {
                self.stop = event
                    .delta
                    .and_then(|delta| delta.stop_reason)
                    .map(|reason| stop_reason(&reason.0))
                    .or(self.stop);
                self.count_usage(event.usage);
            }
            "message_stop" => {
                self.end_blocks(chunks);
                self.stopped = true;
            }
            "error" => {
                return Err(ProviderError::read(data)
                    .map_or_else(|| broken("an error without words"), ProviderError::midway));
            }
            // Ignores `ping`, and events that a later version of the API may send.
            _ => {}
        }
        Ok(())
    }

    fn document(&mut self, data: &[u8], chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        let document: Document<'_> = parse(data)?;
        if document.kind != "message" {
            return self.event(data, chunks);
        }
        self.names.note(document.id, document.model);
        for (index, block) in document.content.into_iter().enumerate() {
            self.start(index, block, chunks);
            self.end_block(index, chunks);
        }
        self.stop = document.stop_reason.map(|reason| stop_reason(&reason.0));
        self.count_usage(document.usage);
        self.stopped = true;
        Ok(())
    }

    fn end(&self) -> Option<Finish> {
        self.stopped.then(|| {
            Finish::new(
                stop_of(self.stop.unwrap_or(StopReason::End), self.calls),
                self.usage,
            )
        })
    }

    fn is_whole(&self) -> bool {
        self.stopped
    }

    fn names(&self) -> Names {
        self.names.clone()
    }
}

impl AnthropicReply {
    pub fn of(target: &WireTarget) -> Self {
        Self {
            label: target.label.clone(),
            is_vendor: target.is_vendor,
            ..Self::default()
        }
    }

    fn start(&mut self, index: usize, start: BlockStart<'_>, chunks: &mut Vec<Chunk>) {
        self.end_block(index, chunks);
        self.parts.close();
        let block = |kind, part| OpenBlock {
            kind,
            part,
            signature: String::new(),
            is_bare: true,
        };
        match &*start.kind {
            "text" => {
                self.blocks.push((index, block(PartKind::Text, None)));
                self.text(index, start.text, chunks);
            }
            "thinking" => {
                let part = self.parts.begin(PartKind::Thinking);
                let (signature, is_bare) = (
                    start.signature.unwrap_or_default(),
                    start.thinking.is_empty(),
                );
                let block = OpenBlock {
                    signature,
                    is_bare,
                    ..block(PartKind::Thinking, Some(part))
                };
                self.blocks.push((index, block));
                chunks.push(Chunk::Thinking {
                    part,
                    text: start.thinking,
                });
            }
            "redacted_thinking" => {
                let part = self.parts.begin(PartKind::Thinking);
                chunks.push(Chunk::Redacted {
                    part,
                    data: seal(&self.label, &start.data),
                });
            }
            "tool_use" => {
                let part = self.parts.begin(PartKind::Call);
                self.calls = true;
                self.blocks.push((index, block(PartKind::Call, Some(part))));
                chunks.push(Chunk::Call {
                    part,
                    id: start.id,
                    name: start.name,
                });
                let args = start.input.map(RawValue::get).unwrap_or_default();
                self.args(index, args.to_owned(), chunks);
            }
            _ => {}
        }
    }

    fn delta(
        &mut self,
        index: usize,
        delta: BlockDelta<'_>,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), Failure> {
        match &*delta.kind {
            "text_delta" => self.text(index, delta.text, chunks),
            "input_json_delta" => self.args(index, delta.partial_json, chunks),
            "thinking_delta" => {
                let block = self
                    .block(index)
                    .filter(|block| block.kind == PartKind::Thinking && !delta.thinking.is_empty());
                if let Some((block, part)) =
                    block.and_then(|block| block.part.map(|part| (block, part)))
                {
                    block.is_bare = false;
                    chunks.push(Chunk::Thinking {
                        part,
                        text: delta.thinking,
                    });
                }
            }
            "signature_delta" => {
                let signature = delta.signature.unwrap_or_default();
                let Some(block) = self.block(index) else {
                    return Ok(());
                };
                // The signature becomes a chunk only at the end of its block, so this check is the
                // only limit on its size while it arrives.
                if block.signature.len() + signature.len() > LONGEST_SIGNATURE {
                    return Err(over("has a signature of many MiB"));
                }
                block.signature.push_str(&signature);
            }
            _ => {}
        }
        Ok(())
    }

    fn block(&mut self, index: usize) -> Option<&mut OpenBlock> {
        self.blocks
            .iter_mut()
            .find(|(at, _)| *at == index)
            .map(|(_, block)| block)
    }

    fn text(&mut self, index: usize, text: String, chunks: &mut Vec<Chunk>) {
        if text.is_empty() {
            return;
        }
        let known = self.block(index).and_then(|block| block.part);
        let part = known.unwrap_or_else(|| self.parts.of(PartKind::Text));
        if let Some(block) = self.block(index) {
            block.part = Some(part);
        }
        chunks.push(Chunk::Text { part, text });
    }

    fn args(&mut self, index: usize, json: String, chunks: &mut Vec<Chunk>) {
        let call = self.block(index).filter(|block| {
            block.kind == PartKind::Call && !(block.is_bare && is_placeholder(&json))
        });
        if let Some((call, part)) = call.and_then(|call| call.part.map(|part| (call, part))) {
            call.is_bare = false;
            chunks.push(Chunk::Args { part, json });
        }
    }

    fn end_blocks(&mut self, chunks: &mut Vec<Chunk>) {
        while let Some(index) = self.blocks.first().map(|(index, _)| *index) {
            self.end_block(index, chunks);
        }
    }

    fn end_block(&mut self, index: usize, chunks: &mut Vec<Chunk>) {
        let Some(at) = self.blocks.iter().position(|(known, _)| *known == index) else {
            return;
        };
        let (_, block) = self.blocks.remove(at);
        let Some(part) = block.part else { return };
        if block.kind == PartKind::Call && block.is_bare {
            chunks.push(Chunk::Args {
                part,
                json: "{}".to_owned(),
            });
        }
        // Other servers that use this wire format may send thinking without a signature, but still
        // require the thinking in later requests.
        let goes_back_unsigned = !self.is_vendor && !block.is_bare;
        if block.kind == PartKind::Thinking && (goes_back_unsigned || !block.signature.is_empty()) {
            chunks.push(Chunk::Signature {
                part,
                signature: seal(&self.label, &block.signature),
            });
        }
    }

    fn count(&mut self, message: Option<AnthropicMessage<'_>>) {
        let Some(AnthropicMessage { id, model, usage }) = message else {
            return;
        };
        self.names.note(id, model);
        self.count_usage(usage);
    }

    /// Stores token counts. Each event reports totals, and may leave out those that did not change.
    fn count_usage(&mut self, usage: Option<Value>) {
        let Some(usage) = usage else { return };
        let set = |total: &mut u64, name: &str| {
            if usage.get(name).is_some_and(Value::is_number) {
                *total = count(&usage, &[name]);
            }
        };
        set(&mut self.usage.input_tokens, "input_tokens");
        set(&mut self.usage.output_tokens, "output_tokens");
        set(&mut self.usage.cache_read_tokens, "cache_read_input_tokens");
        set(
            &mut self.usage.cache_write_tokens,
            "cache_creation_input_tokens",
        );
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
struct AnthropicEvent<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(default)]
    index: LenientWord,
    #[serde(borrow)]
    delta: Option<BlockDelta<'a>>,
    #[serde(borrow)]
    content_block: Option<BlockStart<'a>>,
    #[serde(borrow)]
    message: Option<AnthropicMessage<'a>>,
    usage: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct BlockDelta<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    text: String,
    thinking: String,
    signature: Option<String>,
    partial_json: String,
    #[serde(borrow)]
    stop_reason: Option<BorrowedWord<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct BlockStart<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    text: String,
    thinking: String,
    signature: Option<String>,
    data: String,
    id: String,
    name: String,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct AnthropicMessage<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    usage: Option<Value>,
}

/// A complete message that a server sent instead of a stream.
#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Vec<BlockStart<'a>>,
    #[serde(borrow, default)]
    stop_reason: Option<BorrowedWord<'a>>,
    #[serde(default)]
    usage: Option<Value>,
}
