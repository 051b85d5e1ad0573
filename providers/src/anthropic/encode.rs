//! Encodes a conversation as Anthropic's messages. Consecutive messages of the same role are merged
//! into one turn, so the last turn is closed only when a request is built.

mod block;

use planck_common::message::MessageBody;
use reqwest::header::{HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};

use self::block::{ContentBlock, block};
use crate::{
    Encoder, RequestHead, WireRequest,
    call_ids::{CallIds, IdRule},
    catalogue::{ModelFacts, Thinking},
    encode::{NOTHING, Speaker, put, put_open, side_of},
    opts::{Cache, Opts, set},
    wire::WireTarget,
};
use planck_agent::model::ToolSpec;

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
pub struct AnthropicMessages {
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
    ids: CallIds,
    /// Whether the model accepts images.
    images: bool,
    label: String,
}

impl AnthropicMessages {
    pub fn new(head: RequestHead, entry: &ModelFacts, target: &WireTarget) -> Self {
        let opts = Opts::read(head.opts);
        let mark = mark(opts.cache);
        let settings = settings(head.model, opts, head.max_output, entry, target);
        let features = features(&settings, entry, target);
        Self {
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

    fn request(&self) -> WireRequest {
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
