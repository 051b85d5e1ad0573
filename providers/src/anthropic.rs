//! The wire format of Anthropic's Messages API, version 2023-06-01: the addresses of requests, and the
//! encoding of a conversation.

mod decode;

use std::borrow::Cow;

use reqwest::{
    Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};

use planck_agent::model::ToolSpec;
use planck_common::message::{MediaSource, MessageBody, Part};

use crate::{
    Encoder, RequestHead, WireRequest,
    call_ids::{CallIds, IdRule},
    catalogue::{ModelFacts, Thinking},
    decode::{Decoder, Decoding},
    encode::{
        Cache, NOTHING, Opts, Speaker, add_member, cannot_show, file_text, is_blank, legal_name,
        named_text, put, put_open, set, side_of,
    },
    frames::Sse,
    wire::{WireFormat, WireTarget, below, unseal},
};

#[derive(Debug)]
pub struct Anthropic;

impl WireFormat for Anthropic {
    /// Returns the address of a request. The base URL may end in `/v1` or not, because users
    /// configure both.
    fn url(&self, base: &Url, _: &str, _: &WireTarget) -> Url {
        below(base, "/v1", "/messages")
    }

    fn key_header(&self, _: &WireTarget) -> (HeaderName, &'static str) {
        (HeaderName::from_static("x-api-key"), "")
    }

    fn headers(&self) -> HeaderMap {
        HeaderMap::from_iter([(
            HeaderName::from_static("anthropic-version"),
            HeaderValue::from_static("2023-06-01"),
        )])
    }

    fn encoder(
        &self,
        head: RequestHead,
        entry: &ModelFacts,
        target: &WireTarget,
    ) -> Box<dyn Encoder> {
        Box::new(AnthropicMessages::new(head, entry, target))
    }

    fn decoder(&self, target: &WireTarget) -> Box<dyn Decoder> {
        Box::new(Decoding::<Sse, decode::AnthropicReply>::new(
            decode::AnthropicReply::of(target),
        ))
    }
}

// Encodes a conversation as Anthropic's messages. Consecutive messages of the same role are merged
// into one turn, so the last turn is closed only when a request is built.

/// The cache mark that is inserted before the closing brace of a block. The provider caches the
/// prompt up to that block. A request may have four marks.
const FIVE_MINUTES: &[u8] = br#","cache_control":{"type":"ephemeral"}"#;
const ONE_HOUR: &[u8] = br#","cache_control":{"type":"ephemeral","ttl":"1h"}"#;

/// The header that lists the beta features of a request. Without this header, the server would
/// refuse the body or interpret it differently.
const FEATURES: HeaderName = HeaderName::from_static("anthropic-beta");
/// The beta feature that `thinking.block_binding` needs.
const BINDING: &str = "thinking-binding-controls-2026-08-01";
/// The beta feature that lets models think between their tool calls.
const INTERLEAVED: &str = "interleaved-thinking-2025-05-14";

/// The end of a request whose last message is the assistant's. The API requires the last message to
/// be the user's.
const GO_ON: &[u8] = br#"]},{"role":"user","content":[{"type":"text","text":"(go on)"}]}]}"#;

/// The smallest thinking budget that the API accepts, in tokens.
const LEAST_THINKING: u64 = 1024;

#[derive(Debug)]
struct AnthropicMessages {
    /// The start of the body, up to and including `"messages":[`.
    prefix: Vec<u8>,
    /// The encoded turns. The last one lacks its closing `]}`.
    turns: Vec<u8>,
    open: Option<Speaker>,
    /// The position of the closing brace of the last block in the user's turn before the latest
    /// turn of the assistant. An earlier request ended with that block, so the provider has cached
    /// the prompt up to it.
    earlier: Option<usize>,
    mark: &'static [u8],
    features: Option<&'static str>,
    /// Whether the API takes a tool that the model must call. It does not beside thinking.
    can_demand: bool,
    ids: CallIds,
    /// Whether the model accepts images.
    images: bool,
    label: String,
}

impl AnthropicMessages {
    fn new(head: RequestHead, entry: &ModelFacts, target: &WireTarget) -> Self {
        let opts = Opts::read(head.opts);
        let mark = mark(opts.cache);
        let settings = settings(head.model, opts, head.max_output, entry, target);
        let features = features(&settings, entry, target);
        let can_demand = !settings.contains_key("thinking");
        Self {
            can_demand,
            prefix: prefix(&settings, &head.system_prompt, &head.tools, mark),
            turns: Vec::new(),
            open: None,
            earlier: None,
            mark,
            features,
            ids: CallIds::new(IdRule::Words { most: 64 }),
            images: entry.images,
            label: target.label.clone(),
        }
    }

    fn begin(&mut self, side: Speaker) {
        if self.open == Some(side) {
            self.turns.push(b',');
            return;
        }
        if self.open == Some(Speaker::User) {
            self.earlier = self.turns.len().checked_sub(1);
        }
        if self.open.is_some() {
            self.turns.extend_from_slice(b"]},");
        }
        let role = if side == Speaker::Assistant {
            "assistant"
        } else {
            "user"
        };
        self.turns
            .extend_from_slice(format!(r#"{{"role":"{role}","content":["#).as_bytes());
        self.open = Some(side);
    }

    fn push_blocks(&mut self, side: Speaker, blocks: &[ContentBlock<'_>]) {
        self.begin(side);
        put_items(&mut self.turns, blocks);
    }
}

impl Encoder for AnthropicMessages {
    fn push(&mut self, message: &MessageBody) {
        let Some(side) = side_of(message) else { return };
        let Self {
            ids, label, images, ..
        } = self;
        let mut blocks: Vec<ContentBlock<'_>> = message
            .content
            .iter()
            .filter_map(|part| block(part, *images, label, ids))
            .collect();
        match side {
            Speaker::Assistant => {
                // The API refuses a turn that ends in thinking. Only an interrupted turn ends in
                // thinking.
                while blocks.last().is_some_and(ContentBlock::is_thinking) {
                    blocks.pop();
                }
                if !blocks.is_empty() {
                    self.push_blocks(Speaker::Assistant, &blocks);
                }
            }
            Speaker::User | Speaker::Results => {
                if blocks.is_empty() {
                    blocks.push(ContentBlock::Text {
                        text: NOTHING.into(),
                    });
                }
                self.push_blocks(Speaker::User, &blocks);
            }
        }
    }

    fn request(&self, demanded: Option<&str>) -> WireRequest {
        let mut out =
            Vec::with_capacity(self.prefix.len() + self.turns.len() + 2 * self.mark.len() + 8);
        out.extend_from_slice(&self.prefix);
        let mut rest = self.turns.as_slice();
        if let Some((before, after)) = self.earlier.and_then(|brace| rest.split_at_checked(brace)) {
            out.extend_from_slice(before);
            out.extend_from_slice(self.mark);
            rest = after;
        }
        match (self.open, rest.split_last()) {
            (Some(Speaker::User), Some((brace, before))) => {
                out.extend_from_slice(before);
                out.extend_from_slice(self.mark);
                out.push(*brace);
            }
            (Some(_) | None, _) => out.extend_from_slice(rest),
        }
        out.extend_from_slice(match self.open {
            Some(Speaker::Assistant) => GO_ON,
            Some(Speaker::User | Speaker::Results) => b"]}]}",
            None => b"]}",
        });
        if let Some(name) = demanded.filter(|_| self.can_demand) {
            add_member(
                &mut out,
                "tool_choice",
                &json!({"type": "tool", "name": name}),
            );
        }
        let features = self
            .features
            .map(|features| (FEATURES, HeaderValue::from_static(features)));
        WireRequest {
            body: out.into(),
            headers: features.into_iter().collect(),
        }
    }
}

fn put_items<T: Serialize>(out: &mut Vec<u8>, items: &[T]) {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        put(out, item);
    }
}

fn prefix(
    settings: &Map<String, Value>,
    system_prompt: &str,
    tools: &[ToolSpec],
    mark: &[u8],
) -> Vec<u8> {
    let mut out = Vec::new();
    put_open(&mut out, settings);
    if !system_prompt.trim().is_empty() {
        out.extend_from_slice(br#","system":["#);
        put(
            &mut out,
            &ContentBlock::Text {
                text: system_prompt.into(),
            },
        );
        mark_last(&mut out, mark);
        out.push(b']');
    }
    if !tools.is_empty() {
        out.extend_from_slice(br#","tools":["#);
        put_items(
            &mut out,
            &tools.iter().map(AnthropicTool::from).collect::<Vec<_>>(),
        );
        mark_last(&mut out, mark);
        out.push(b']');
    }
    out.extend_from_slice(br#","messages":["#);
    out
}

fn mark_last(out: &mut Vec<u8>, mark: &[u8]) {
    out.pop();
    out.extend_from_slice(mark);
    out.push(b'}');
}

fn mark(cache: Cache) -> &'static [u8] {
    match cache {
        Cache::FiveMinutes => FIVE_MINUTES,
        Cache::OneHour => ONE_HOUR,
        Cache::Off => b"",
    }
}

/// Returns the beta features that a body uses, or `None` if it uses none. Only the vendor's server
/// supports the feature for thinking between calls.
fn features(
    settings: &Map<String, Value>,
    entry: &ModelFacts,
    target: &WireTarget,
) -> Option<&'static str> {
    let thinking = settings.get("thinking")?;
    if thinking.get("block_binding").is_some() {
        return Some(BINDING);
    }
    let asked = thinking.get("type") == Some(&json!("enabled"));
    (asked && entry.thinking == Thinking::Budget && target.is_vendor).then_some(INTERLEAVED)
}

fn settings(
    model: String,
    opts: Opts,
    max_output: u64,
    entry: &ModelFacts,
    target: &WireTarget,
) -> Map<String, Value> {
    let max_tokens = opts.max_output_tokens.unwrap_or(max_output).max(1);
    let mut members = opts.rest;
    if let Some(thinking) = thinking(opts.thinking_budget, max_tokens, entry.thinking, target) {
        members.entry("thinking").or_insert(thinking);
    }
    let thinks = members
        .get("thinking")
        .is_some_and(|thinking| thinking.get("type") != Some(&json!("disabled")));
    let samples = !thinks && !matches!(entry.thinking, Thinking::Adaptive | Thinking::Bound);
    if samples {
        set(&mut members, "temperature", opts.temperature);
        set(&mut members, "top_p", opts.top_p);
    } else if opts.temperature.is_some() || opts.top_p.is_some() {
        tracing::warn!(%model, "left out temperature and top_p: they cannot be set for a model that thinks");
    }
    members.insert("model".into(), model.into());
    members.insert("max_tokens".into(), max_tokens.into());
    members.insert("stream".into(), true.into());
    set(
        &mut members,
        "stop_sequences",
        (!opts.stop.is_empty()).then_some(opts.stop),
    );
    members
}

/// Returns the `thinking` field, or `None` if the model is not asked to think. A budget is raised
/// to [`LEAST_THINKING`], and reduced so that it leaves room for the reply. For
/// [`Thinking::Bound`], the field asks the vendor to drop invalid thinking instead of refusing the
/// request. A compaction or a change of tools makes earlier thinking invalid. Other servers refuse
/// that option.
fn thinking(
    budget: Option<u64>,
    max_tokens: u64,
    ability: Thinking,
    target: &WireTarget,
) -> Option<Value> {
    let budget = budget.unwrap_or(0);
    let display = if budget > 0 { "summarized" } else { "omitted" };
    match ability {
        Thinking::None => None,
        Thinking::Bound if target.is_vendor => {
            let block_binding = json!({"prefix_mismatch_behavior": "drop_block"});
            Some(json!({"type": "adaptive", "display": display, "block_binding": block_binding}))
        }
        Thinking::Adaptive | Thinking::Bound => {
            (budget > 0).then(|| json!({"type": "adaptive", "display": display}))
        }
        Thinking::Budget if budget == 0 || max_tokens <= LEAST_THINKING => None,
        Thinking::Budget => Some(
            json!({"type": "enabled", "budget_tokens": budget.clamp(LEAST_THINKING, max_tokens - 1)}),
        ),
    }
}

#[derive(Serialize)]
struct AnthropicTool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a RawValue,
}

impl<'a> From<&'a ToolSpec> for AnthropicTool<'a> {
    fn from(tool: &'a ToolSpec) -> Self {
        Self {
            name: &tool.name,
            description: &tool.description,
            input_schema: &tool.parameters,
        }
    }
}

// The content blocks of a message.

/// A content block. Every block is serialised as an object, so a cache mark can be inserted before
/// the closing `}`.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentBlock<'a> {
    Text {
        text: Cow<'a, str>,
    },
    Thinking {
        thinking: &'a str,
        /// The signature. It is empty if the server, which need not be Anthropic's, sent none.
        signature: &'a str,
    },
    RedactedThinking {
        data: &'a str,
    },
    ToolUse {
        id: Cow<'a, str>,
        name: Cow<'a, str>,
        input: &'a RawValue,
    },
    ToolResult {
        tool_use_id: Cow<'a, str>,
        content: &'a str,
        is_error: bool,
    },
    Image {
        source: ContentSource<'a>,
    },
    Document {
        source: ContentSource<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<&'a str>,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentSource<'a> {
    Base64 { media_type: &'a str, data: &'a str },
    Url { url: &'a str },
}

impl ContentBlock<'_> {
    fn is_thinking(&self) -> bool {
        matches!(self, Self::Thinking { .. } | Self::RedactedThinking { .. })
    }
}

fn block<'a>(
    part: &'a Part,
    images: bool,
    label: &str,
    ids: &mut CallIds,
) -> Option<ContentBlock<'a>> {
    match part {
        Part::Text { .. } if is_blank(part) => None,
        Part::Text { text, .. } => Some(ContentBlock::Text { text: text.into() }),
        Part::Thinking {
            text,
            signature,
            redacted,
        } => {
            let signature = unseal(label, signature.as_deref()?)?;
            Some(if *redacted {
                ContentBlock::RedactedThinking { data: signature }
            } else {
                ContentBlock::Thinking {
                    thinking: text,
                    signature,
                }
            })
        }
        Part::ToolCall {
            id,
            call_id,
            name,
            args,
            ..
        } => Some(ContentBlock::ToolUse {
            id: ids.of_call(id, call_id),
            name: legal_name(name),
            input: args,
        }),
        Part::ToolResult {
            id,
            call_id,
            text,
            error,
        } => {
            let tool_use_id = ids.of_result(id, call_id).to_owned().into();
            Some(ContentBlock::ToolResult {
                tool_use_id,
                content: text,
                is_error: *error,
            })
        }
        Part::Image { mime, source } if images => Some(ContentBlock::Image {
            source: origin(mime, source),
        }),
        Part::Image { mime, source } => Some(ContentBlock::Text {
            text: cannot_show("image", None, mime, source).into(),
        }),
        Part::File { mime, name, source } => Some(file(mime, name.as_deref(), source)),
    }
}

fn file<'a>(mime: &'a str, name: Option<&'a str>, source: &'a MediaSource) -> ContentBlock<'a> {
    if mime == "application/pdf" {
        return ContentBlock::Document {
            source: origin(mime, source),
            title: name,
        };
    }
    let text = file_text(mime, source).map(|text| named_text(name, &text));
    ContentBlock::Text {
        text: text
            .unwrap_or_else(|| cannot_show("file", name, mime, source))
            .into(),
    }
}

fn origin<'a>(mime: &'a str, source: &'a MediaSource) -> ContentSource<'a> {
    match source {
        MediaSource::Data(data) => ContentSource::Base64 {
            media_type: mime,
            data,
        },
        MediaSource::Url(url) => ContentSource::Url { url },
    }
}

#[cfg(test)]
mod tests;
