//! The wire format of OpenAI's chat completions. Most other vendors and servers use this format
//! too, each with its own deviations.

mod decode;
mod encode;
mod reasoning;

use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderName},
};
use serde_json::{Map, Value, json};

use crate::{
    Encoder, RequestHead,
    catalogue::{ModelFacts, Thinking},
    decode::{Decoder, Decoding},
    encode::{Opts, set},
    frames::Sse,
    wire::{AddressStyle, Limit, Quirks, ThinkingRequest, WireFormat, WireTarget, below},
};

/// Returns the address of an operation of OpenAI's API. A base URL without a path is the address of
/// a server, whose API is below `/v1`, or below `/openai/v1` on Azure. Azure's older addresses
/// state the version of the API in the query and the deployment in the path.
pub fn completions(base: &Url, model: &str, target: &WireTarget, path: &str) -> Url {
    let is_bare = base.path().trim_matches('/').is_empty();
    let names_version = base.query_pairs().any(|(name, _)| name == "api-version");
    match target.quirks.addresses {
        AddressStyle::Azure if is_bare && names_version => {
            let mut url = base.clone();
            // An agent chooses the model's name, so the name is encoded to stay within one segment
            // of the path.
            if let Ok(mut segments) = url.path_segments_mut() {
                segments.clear().extend(["openai", "deployments", model]);
            }
            below(&url, "", path)
        }
        AddressStyle::Azure if is_bare => below(base, "/openai/v1", path),
        AddressStyle::Plain if is_bare => below(base, "/v1", path),
        AddressStyle::Plain | AddressStyle::Azure => below(base, "", path),
    }
}

#[derive(Debug)]
pub struct ChatCompletions;

impl WireFormat for ChatCompletions {
    fn url(&self, base: &Url, model: &str, target: &WireTarget) -> Url {
        completions(base, model, target, "/chat/completions")
    }

    fn key_header(&self, target: &WireTarget) -> (HeaderName, &'static str) {
        match target.quirks.addresses {
            AddressStyle::Plain => (AUTHORIZATION, "Bearer "),
            AddressStyle::Azure => (HeaderName::from_static("api-key"), ""),
        }
    }

    fn encoder(
        &self,
        head: RequestHead,
        entry: &ModelFacts,
        target: &WireTarget,
    ) -> Box<dyn Encoder> {
        Box::new(encode::CompletionMessages::new(head, entry, target))
    }

    fn decoder(&self, target: &WireTarget) -> Box<dyn Decoder> {
        Box::new(Decoding::<Sse, decode::ChatReply>::new(
            decode::ChatReply::of(target),
        ))
    }
}

// The fields of a chat completion request other than messages and tools.

fn settings(model: String, opts: Opts, entry: &ModelFacts, quirks: Quirks) -> Map<String, Value> {
    let mut members = opts.rest;
    if let Some(budget) = opts.thinking_budget {
        ask_to_think(&mut members, budget, entry, quirks);
    }
    let limit = if has_new_limit(&model, quirks) {
        "max_completion_tokens"
    } else {
        "max_tokens"
    };
    set(&mut members, limit, opts.max_output_tokens);
    if !matches!(entry.thinking, Thinking::Adaptive | Thinking::Bound) {
        set(&mut members, "temperature", opts.temperature);
        set(&mut members, "top_p", opts.top_p);
    } else if opts.temperature.is_some() || opts.top_p.is_some() {
        tracing::warn!(%model, "left out temperature and top_p: they cannot be set for a model that thinks");
    }
    set(
        &mut members,
        "stop",
        (!opts.stop.is_empty()).then_some(opts.stop),
    );
    members.insert("model".into(), model.into());
    members.insert("stream".into(), true.into());
    members.insert("stream_options".into(), json!({"include_usage": true}));
    members
}

/// Returns whether the limit is sent as `max_completion_tokens`. If `quirks` do not decide, the
/// name of the model does: OpenAI's reasoning models refuse `max_tokens`, and other servers often
/// accept only `max_tokens`.
fn has_new_limit(model: &str, quirks: Quirks) -> bool {
    let name = model.strip_prefix("openai/").unwrap_or(model);
    let reasoning = name
        .strip_prefix('o')
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let own = reasoning
        || (name.starts_with("gpt-") && !name.starts_with("gpt-oss"))
        || name.starts_with("chatgpt-");
    match quirks.limit {
        Limit::ByModel => own,
        Limit::MaxTokens => false,
        Limit::MaxCompletionTokens => true,
    }
}

fn ask_to_think(members: &mut Map<String, Value>, budget: u64, entry: &ModelFacts, quirks: Quirks) {
    let (name, value) = match quirks.thinking {
        ThinkingRequest::Template => (
            "chat_template_kwargs",
            json!({"enable_thinking": budget > 0}),
        ),
        ThinkingRequest::Switch => (
            "thinking",
            json!({"type": if budget > 0 { "enabled" } else { "disabled" }}),
        ),
        ThinkingRequest::Effort | ThinkingRequest::Budget if entry.thinking == Thinking::None => {
            return;
        }
        ThinkingRequest::Budget => ("reasoning", json!({"max_tokens": budget})),
        ThinkingRequest::Effort => ("reasoning_effort", effort(budget).into()),
    };
    members.entry(name).or_insert(value);
}

/// Converts a token budget into a value of `reasoning_effort`.
pub fn effort(budget: u64) -> &'static str {
    match budget {
        0..=2_048 => "low",
        2_049..=8_192 => "medium",
        8_193.. => "high",
    }
}

#[cfg(test)]
mod tests;
