//! The wire format of OpenAI's Responses API. Requests ask the server to store nothing, so each
//! request contains the whole conversation and the encrypted reasoning in the form in which it was
//! received.

mod decode;
mod strict;

use std::borrow::Cow;

use reqwest::{Url, header::HeaderName};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json, value::RawValue};

use planck_agent::model::ToolSpec;
use planck_common::message::{MediaSource, MessageBody, Part};

use crate::{
    Encoder, RequestHead, WireRequest,
    call_ids::{CallIds, IdRule},
    catalogue::{ModelFacts, Thinking},
    decode::{Decoder, Decoding},
    encode::{
        NOTHING, Opts, Speaker, add_member, cannot_show, data_url, file_text, is_blank, legal_name,
        media_url, named_text, put, put_open, result_text, set, side_of,
    },
    frames::Sse,
    openai::{ChatCompletions, completions, effort},
    wire::{AddressStyle, ToolDemand, WireFormat, WireTarget, below, seal, unseal},
};

#[derive(Debug)]
pub struct Responses;

impl WireFormat for Responses {
    /// Returns the address of a request. With Azure's older addresses, the body of the request
    /// names the deployment. The path therefore does not contain the deployment, unlike the path
    /// for chat completions.
    fn url(&self, base: &Url, model: &str, target: &WireTarget) -> Url {
        let is_bare = base.path().trim_matches('/').is_empty();
        let names_version = base.query_pairs().any(|(name, _)| name == "api-version");
        match target.quirks.addresses {
            AddressStyle::Azure if is_bare && names_version => below(base, "/openai", "/responses"),
            AddressStyle::Azure | AddressStyle::Plain => {
                completions(base, model, target, "/responses")
            }
        }
    }

    fn key_header(&self, target: &WireTarget) -> (HeaderName, &'static str) {
        ChatCompletions.key_header(target)
    }

    fn encoder(
        &self,
        head: RequestHead,
        entry: &ModelFacts,
        target: &WireTarget,
    ) -> Box<dyn Encoder> {
        Box::new(InputItems::new(head, entry, target))
    }

    fn decoder(&self, target: &WireTarget) -> Box<dyn Decoder> {
        Box::new(Decoding::<Sse, decode::ResponsesReply>::new(
            decode::ResponsesReply::of(target),
        ))
    }
}

// Encodes a conversation as input items of the Responses API.

/// The end of a request whose last message is the assistant's. The API requires the last message to
/// be the user's.
const GO_ON: &[u8] =
    br#"{"type":"message","role":"user","content":[{"type":"input_text","text":"(go on)"}]}"#;

/// The smallest value of `max_output_tokens` that the API accepts.
const LEAST_OUTPUT: u64 = 16;

#[derive(Debug)]
struct InputItems {
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
    demand: ToolDemand,
    label: String,
}

impl InputItems {
    fn new(head: RequestHead, entry: &ModelFacts, target: &WireTarget) -> Self {
        Self {
            prefix: prefix(head, entry),
            items: Vec::new(),
            last: None,
            ids: CallIds::new(IdRule::Words { most: 64 }),
            images: entry.images,
            reasons: reasons(entry),
            demand: target.quirks.demand,
            label: label(target),
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

impl Encoder for InputItems {
    fn push(&mut self, message: &MessageBody) {
        match side_of(message) {
            Some(Speaker::User) => self.push_user(&message.content),
            Some(Speaker::Assistant) => self.push_assistant(message),
            Some(Speaker::Results) => self.push_results(&message.content),
            None => {}
        }
    }

    fn request(&self, demanded: Option<&str>) -> WireRequest {
        let mut out = Vec::with_capacity(self.prefix.len() + self.items.len() + GO_ON.len() + 3);
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(&self.items);
        if self.last == Some(Speaker::Assistant) {
            out.push(b',');
            out.extend_from_slice(GO_ON);
        }
        out.extend_from_slice(b"]}");
        let named = |name| json!({"type": "function", "name": name});
        if let Some(choice) = demanded.and_then(|name| self.demand.choice(named(name))) {
            add_member(&mut out, "tool_choice", &choice);
        }
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

// The input items and the tools of a request.

#[derive(Serialize)]
struct ResponsesTool<'a> {
    r#type: &'static str,
    name: &'a str,
    description: &'a str,
    parameters: Cow<'a, RawValue>,
    strict: bool,
}

impl<'a> From<&'a ToolSpec> for ResponsesTool<'a> {
    fn from(tool: &'a ToolSpec) -> Self {
        let (parameters, strict) = strict::parameters(&tool.parameters);
        Self {
            r#type: "function",
            name: &tool.name,
            description: &tool.description,
            parameters,
            strict,
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponsesItem<'a> {
    Message {
        role: &'static str,
        content: MessageText<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        phase: Option<String>,
    },
    Reasoning {
        id: String,
        summary: Vec<ReasoningText<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        content: Vec<ReasoningText<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
    },
    FunctionCall {
        call_id: Cow<'a, str>,
        name: Cow<'a, str>,
        arguments: &'a str,
    },
    FunctionCallOutput {
        call_id: String,
        output: Cow<'a, str>,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ReasoningText<'a> {
    SummaryText { text: &'a str },
    ReasoningText { text: &'a str },
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum ResponsesContent<'a> {
    #[serde(rename = "input_text")]
    Text { text: Cow<'a, str> },
    #[serde(rename = "input_image")]
    Image {
        image_url: Cow<'a, str>,
        detail: &'static str,
    },
    #[serde(rename = "input_file")]
    File {
        #[serde(flatten)]
        file: ResponsesFile<'a>,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum ResponsesFile<'a> {
    Data {
        filename: &'a str,
        file_data: String,
    },
    Url {
        file_url: &'a str,
    },
}

/// The content of a message: items for the user, and plain text for the assistant. For items of the
/// assistant, the API would require their ids, which exist only if the server stores them.
#[derive(Serialize)]
#[serde(untagged)]
enum MessageText<'a> {
    Text(&'a str),
    Items(Vec<ResponsesContent<'a>>),
}

impl ResponsesItem<'_> {
    fn is_reasoning(&self) -> bool {
        matches!(self, Self::Reasoning { .. })
    }
}

/// Encodes a part of an assistant message.
fn encode_assistant_part<'a>(
    part: &'a Part,
    ids: &mut CallIds,
    label: &str,
    reasons: bool,
) -> Option<ResponsesItem<'a>> {
    match part {
        Part::Text { .. } if is_blank(part) => None,
        Part::Text { text, signature } => {
            let phase =
                opened::<MessagePhase>(label, signature.as_deref()).map(|spoken| spoken.phase);
            Some(ResponsesItem::Message {
                role: "assistant",
                content: MessageText::Text(text),
                phase,
            })
        }
        Part::Thinking {
            text, signature, ..
        } if reasons => {
            let SealedReasoning {
                id,
                encrypted_content,
            } = opened(label, signature.as_deref())?;
            let thought = Some(text.as_str()).filter(|text| !text.trim().is_empty());
            let (summary, content) = match &encrypted_content {
                Some(_) => (
                    thought.map(|text| ReasoningText::SummaryText { text }),
                    None,
                ),
                None => (None, Some(ReasoningText::ReasoningText { text: thought? })),
            };
            let (summary, content) = (summary.into_iter().collect(), content.into_iter().collect());
            Some(ResponsesItem::Reasoning {
                id,
                summary,
                content,
                encrypted_content,
            })
        }
        Part::ToolCall {
            id,
            call_id,
            name,
            args,
            ..
        } => Some(ResponsesItem::FunctionCall {
            call_id: ids.of_call(id, call_id),
            name: legal_name(name),
            arguments: args.get(),
        }),
        Part::Thinking { .. }
        | Part::ToolResult { .. }
        | Part::Image { .. }
        | Part::File { .. } => None,
    }
}

/// Encodes a part of a user message.
fn encode_user_part(part: &Part, images: bool) -> Option<ResponsesContent<'_>> {
    match part {
        Part::Text { text, .. } => Some(ResponsesContent::Text { text: text.into() }),
        Part::Image { mime, source } if images => Some(ResponsesContent::Image {
            image_url: media_url(mime, source),
            detail: "auto",
        }),
        Part::Image { mime, source } => Some(ResponsesContent::Text {
            text: cannot_show("image", None, mime, source).into(),
        }),
        Part::File { mime, name, source } => Some(file(mime, name.as_deref(), source)),
        Part::Thinking { .. } | Part::ToolCall { .. } | Part::ToolResult { .. } => None,
    }
}

fn file<'a>(mime: &'a str, name: Option<&'a str>, source: &'a MediaSource) -> ResponsesContent<'a> {
    if let Some(text) = file_text(mime, source) {
        return ResponsesContent::Text {
            text: named_text(name, &text).into(),
        };
    }
    match source {
        MediaSource::Data(data) if mime == "application/pdf" => {
            let file_data = data_url(mime, data);
            ResponsesContent::File {
                file: ResponsesFile::Data {
                    filename: name.unwrap_or("file.pdf"),
                    file_data,
                },
            }
        }
        MediaSource::Url(file_url) if mime == "application/pdf" => ResponsesContent::File {
            file: ResponsesFile::Url { file_url },
        },
        MediaSource::Data(_) | MediaSource::Url(_) => ResponsesContent::Text {
            text: cannot_show("file", name, mime, source).into(),
        },
    }
}

// The fields of an item that are sent back with it and are not text. They are stored as JSON in
// the signature of the item's part.

/// The fields of a reasoning item.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SealedReasoning {
    id: String,
    /// The encrypted reasoning. Servers that show all of their reasoning do not send it, and
    /// require the text back instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encrypted_content: Option<String>,
}

/// The field of a message that tells commentary from the final answer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MessagePhase {
    phase: String,
}

/// Returns the label that is stored with the signatures of this wire format. It differs from the
/// label for chat completions: an endpoint may use chat completions for another of its models, and
/// that model must not receive these signatures.
fn label(target: &WireTarget) -> String {
    format!("{}/responses", target.label)
}

fn sealed<T: Serialize>(label: &str, of: &T) -> Option<String> {
    Some(seal(label, &serde_json::to_string(of).ok()?))
}

fn opened<T: DeserializeOwned>(label: &str, sealed: Option<&str>) -> Option<T> {
    serde_json::from_str(unseal(label, sealed?)?).ok()
}

#[cfg(test)]
mod tests;
