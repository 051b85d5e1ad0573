//! Encodes a conversation as input items of the Responses API.

mod item;

use planck_common::message::{MessageBody, Part};
use serde_json::{Map, Value, json};

use self::item::{
    MessageText, ResponsesContent, ResponsesItem, ResponsesTool, encode_assistant_part,
    encode_user_part,
};
use super::sealed::{self};
use crate::{
    Encoder, RequestHead, WireRequest,
    call_ids::{CallIds, IdRule},
    catalogue::{ModelFacts, Thinking},
    encode::{NOTHING, Speaker, is_blank, put, put_open, result_text, side_of},
    openai::effort,
    opts::{Opts, set},
    wire::WireTarget,
};

/// The end of a request whose last message is the assistant's. The API requires the last message to
/// be the user's.
const GO_ON: &[u8] =
    br#"{"type":"message","role":"user","content":[{"type":"input_text","text":"(go on)"}]}"#;

/// The smallest value of `max_output_tokens` that the API accepts.
const LEAST_OUTPUT: u64 = 16;

#[derive(Debug)]
pub struct Items {
    /// The start of the body, up to and including `"input":[`.
    prefix: Vec<u8>,
    /// The encoded items, separated by commas.
    items: Vec<u8>,
    last: Option<Speaker>,
    ids: CallIds,
    images: bool,
    /// Whether the model reasons. If the model does not reason, the reasoning of other models is
    /// left out.
    reasons: bool,
    label: String,
}

impl Items {
    pub fn new(head: RequestHead, entry: &ModelFacts, target: &WireTarget) -> Self {
        Self {
            prefix: prefix(head, entry),
            items: Vec::new(),
            last: None,
            ids: CallIds::new(IdRule::Words { most: 64 }),
            images: entry.images,
            reasons: reasons(entry),
            label: sealed::label(target),
        }
    }

    fn put(&mut self, side: Speaker, item: &ResponsesItem<'_>) {
        if self.last.is_some() {
            self.items.push(b',');
        }
        self.last = Some(side);
        put(&mut self.items, item);
    }

    fn push_user(&mut self, parts: &[Part]) {
        let shown = parts.iter().filter(|part| !is_blank(part));
        let mut content: Vec<ResponsesContent<'_>> = shown
            .filter_map(|part| encode_user_part(part, self.images))
            .collect();
        if content.is_empty() {
            content.push(ResponsesContent::Text {
                text: NOTHING.into(),
            });
        }
        self.put(
            Speaker::User,
            &ResponsesItem::Message {
                role: "user",
                content: MessageText::Items(content),
                phase: None,
            },
        );
    }

    fn push_assistant(&mut self, message: &MessageBody) {
        let Self {
            ids,
            label,
            reasons,
            ..
        } = self;
        let encoded = message
            .content
            .iter()
            .filter_map(|part| encode_assistant_part(part, ids, label, *reasons));
        let mut items: Vec<ResponsesItem<'_>> = encoded.collect();
        // The API requires that a reasoning item is followed by the item that followed it
        // originally. That item may be missing, because the log does not contain the calls of an
        // interrupted reply.
        let has_gaps = message.metadata.interrupted || message.content.iter().any(is_blank);
        let follows: Vec<bool> = items
            .iter()
            .skip(1)
            .map(|item| !(has_gaps && item.is_reasoning()))
            .chain([true])
            .collect();
        let mut follows = follows.into_iter();
        items.retain(|item| follows.next().unwrap_or(true) || !item.is_reasoning());
        while items.last().is_some_and(ResponsesItem::is_reasoning) {
            items.pop();
        }
        for item in &items {
            self.put(Speaker::Assistant, item);
        }
    }

    fn push_results(&mut self, parts: &[Part]) {
        for part in parts {
            if let Part::ToolResult {
                id,
                call_id,
                text,
                error,
            } = part
            {
                let call_id = self.ids.of_result(id, call_id).to_owned();
                self.put(
                    Speaker::Results,
                    &ResponsesItem::FunctionCallOutput {
                        call_id,
                        output: result_text(text, *error),
                    },
                );
            }
        }
    }
}

impl Encoder for Items {
    fn push(&mut self, message: &MessageBody) {
        match side_of(message) {
            Some(Speaker::User) => self.push_user(&message.content),
            Some(Speaker::Assistant) => self.push_assistant(message),
            Some(Speaker::Results) => self.push_results(&message.content),
            None => {}
        }
    }

    fn request(&self) -> WireRequest {
        let mut out = Vec::with_capacity(self.prefix.len() + self.items.len() + GO_ON.len() + 3);
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(&self.items);
        if self.last == Some(Speaker::Assistant) {
            out.push(b',');
            out.extend_from_slice(GO_ON);
        }
        out.extend_from_slice(b"]}");
        out.into()
    }
}

fn reasons(entry: &ModelFacts) -> bool {
    entry.thinking != Thinking::None
}

fn prefix(head: RequestHead, entry: &ModelFacts) -> Vec<u8> {
    let mut out = Vec::new();
    put_open(
        &mut out,
        &settings(head.model, Opts::read(head.opts), entry),
    );
    if !head.system_prompt.trim().is_empty() {
        out.extend_from_slice(br#","instructions":"#);
        put(&mut out, &*head.system_prompt);
    }
    if !head.tools.is_empty() {
        out.extend_from_slice(br#","tools":"#);
        put(
            &mut out,
            &head
                .tools
                .iter()
                .map(ResponsesTool::from)
                .collect::<Vec<_>>(),
        );
    }
    out.extend_from_slice(br#","input":["#);
    out
}

fn settings(model: String, opts: Opts, entry: &ModelFacts) -> Map<String, Value> {
    let mut members = opts.rest;
    ask_to_think(&mut members, opts.thinking_budget, entry);
    let is_off = members
        .get("reasoning")
        .and_then(|reasoning| reasoning.get("effort"))
        == Some(&json!("none"));
    if !reasons(entry) || is_off {
        set(&mut members, "temperature", opts.temperature);
        set(&mut members, "top_p", opts.top_p);
    } else if opts.temperature.is_some() || opts.top_p.is_some() {
        tracing::warn!(%model, "left out temperature and top_p: they cannot be set for a model that thinks");
    }
    if !opts.stop.is_empty() {
        tracing::warn!(%model, "left out `stop`: the Responses API does not support it");
    }
    set(
        &mut members,
        "max_output_tokens",
        opts.max_output_tokens.map(|most| most.max(LEAST_OUTPUT)),
    );
    members.insert("model".into(), model.into());
    members.insert("stream".into(), true.into());
    members.insert("store".into(), false.into());
    if reasons(entry) {
        members.insert("include".into(), json!(["reasoning.encrypted_content"]));
    }
    members
}

/// Sets the reasoning effort. An effort in `reasoning` takes precedence, then `reasoning_effort`,
/// then the budget.
fn ask_to_think(members: &mut Map<String, Value>, budget: Option<u64>, entry: &ModelFacts) {
    let by_budget = budget
        .filter(|_| reasons(entry))
        .map(|budget| effort(budget).into());
    let Some(effort) = members
        .remove("reasoning_effort")
        .filter(|word| !word.is_null())
        .or(by_budget)
    else {
        return;
    };
    match members.get_mut("reasoning") {
        Some(Value::Object(reasoning)) => {
            reasoning.entry("effort").or_insert(effort);
        }
        Some(_) => {}
        None => {
            let is_off = effort == json!("none");
            let reasoning = if is_off {
                json!({"effort": effort})
            } else {
                json!({"effort": effort, "summary": "auto"})
            };
            members.insert("reasoning".into(), reasoning);
        }
    }
}
