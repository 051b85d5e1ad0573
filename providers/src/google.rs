//! The wire format of Google's Gemini API, v1beta: the addresses of requests, and the encoding of a
//! conversation.

mod decode;
mod schema;

use std::{borrow::Cow, collections::HashMap};

use reqwest::{Url, header::HeaderName};
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};

use planck_common::message::{MediaSource, MessageBody, Part};

use crate::{
    Encoder, RequestHead, WireRequest,
    catalogue::{ModelFacts, Thinking},
    decode::{Decoder, Decoding},
    encode::{
        NOTHING, Opts, Speaker, add_member, cannot_show, file_text, is_blank, legal_name,
        named_text, put, put_open, set, side_of,
    },
    frames::Sse,
    wire::{WireFormat, WireTarget, below, unseal},
};

#[derive(Debug)]
pub struct Google;

impl WireFormat for Google {
    /// Returns the address of a request. The base URL may contain the version of the API or not,
    /// because users configure both.
    fn url(&self, base: &Url, model: &str, _: &WireTarget) -> Url {
        let version = if base.path().ends_with("/v1") {
            "/v1"
        } else {
            "/v1beta"
        };
        let model = model.strip_prefix("models/").unwrap_or(model);
        // An agent chooses the model's name, so the name is encoded to stay within one segment of
        // the path.
        let model: String = model.bytes().map(word).collect();
        let mut url = below(
            base,
            version,
            &format!("/models/{model}:streamGenerateContent"),
        );
        url.query_pairs_mut().append_pair("alt", "sse");
        url
    }

    fn key_header(&self, _: &WireTarget) -> (HeaderName, &'static str) {
        (HeaderName::from_static("x-goog-api-key"), "")
    }

    fn encoder(
        &self,
        head: RequestHead,
        entry: &ModelFacts,
        target: &WireTarget,
    ) -> Box<dyn Encoder> {
        Box::new(GoogleContents::new(head, entry, target))
    }

    fn decoder(&self, target: &WireTarget) -> Box<dyn Decoder> {
        Box::new(Decoding::<Sse, decode::GoogleReply>::new(
            decode::GoogleReply::of(target),
        ))
    }
}

/// Returns the text of a byte in a path segment. All bytes except ASCII letters, digits and `-_.~@`
/// are percent-encoded.
fn word(byte: u8) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'@' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    }
}

// Encodes a conversation as Gemini's contents. Consecutive messages of the same role are merged
// into one content, so the last content is closed only when a request is built.

/// The signature for the first call of a message if this endpoint issued none for the call, for
/// example because another model made it. Gemini 3 refuses a message whose first call has no
/// signature.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";
/// The end of a request whose last message is the model's. The API requires the last message to be
/// the user's.
const GO_ON: &[u8] = br#"]},{"role":"user","parts":[{"text":"(go on)"}]}]}"#;
/// The options that are fields of the request itself. All others are fields of its
/// `generationConfig`.
const BESIDE: &[&str] = &["safetySettings", "toolConfig", "cachedContent", "labels"];

#[derive(Debug)]
struct GoogleContents {
    /// The start of the body, up to and including `"contents":[`.
    prefix: Vec<u8>,
    /// The encoded contents. The last one lacks its closing `]}`.
    contents: Vec<u8>,
    open: Option<Speaker>,
    /// The names of the last round's calls by call id. Gemini matches results to calls by name.
    calls: HashMap<String, String>,
    images: bool,
    needs_signatures: bool,
    label: String,
}

impl GoogleContents {
    fn new(head: RequestHead, entry: &ModelFacts, target: &WireTarget) -> Self {
        let needs_signatures = !["gemini-1", "gemini-2"]
            .iter()
            .any(|old| head.model.contains(old));
        let images = entry.images;
        let prefix = prefix(head, entry);
        Self {
            prefix,
            contents: Vec::new(),
            open: None,
            calls: HashMap::new(),
            images,
            needs_signatures,
            label: target.label.clone(),
        }
    }

    fn begin(&mut self, side: Speaker) {
        if self.open == Some(side) {
            self.contents.push(b',');
            return;
        }
        if self.open.is_some() {
            self.contents.extend_from_slice(b"]},");
        }
        let role = if side == Speaker::Assistant {
            "model"
        } else {
            "user"
        };
        self.contents
            .extend_from_slice(format!(r#"{{"role":"{role}","parts":["#).as_bytes());
        self.open = Some(side);
    }

    fn put(&mut self, side: Speaker, items: &[GoogleRequestPart<'_>]) {
        for item in items {
            self.begin(side);
            put(&mut self.contents, item);
        }
    }

    fn push_model(&mut self, parts: &[Part]) {
        let mut items: Vec<GoogleRequestPart<'_>> = parts
            .iter()
            .filter_map(|part| encode_assistant_part(part, &self.label))
            .collect();
        let first_call = items.iter_mut().find(|item| item.function_call.is_some());
        if let Some(call) =
            first_call.filter(|call| self.needs_signatures && call.thought_signature.is_none())
        {
            call.thought_signature = Some(NO_SIGNATURE);
        }
        let calls = parts.iter().filter_map(|part| match part {
            Part::ToolCall { id, name, .. } => Some((id.clone(), legal_name(name).into_owned())),
            Part::Text { .. }
            | Part::Thinking { .. }
            | Part::ToolResult { .. }
            | Part::Image { .. }
            | Part::File { .. } => None,
        });
        self.calls = calls.collect();
        self.put(Speaker::Assistant, &items);
    }

    fn push_user(&mut self, parts: &[Part]) {
        let calls = std::mem::take(&mut self.calls);
        let images = self.images;
        let mut items: Vec<GoogleRequestPart<'_>> = parts
            .iter()
            .filter_map(|part| encode_user_part(part, &calls, images))
            .collect();
        if items.is_empty() {
            items.push(GoogleRequestPart::text(NOTHING.into()));
        }
        self.put(Speaker::User, &items);
    }
}

impl Encoder for GoogleContents {
    fn push(&mut self, message: &MessageBody) {
        match side_of(message) {
            Some(Speaker::Assistant) => self.push_model(&message.content),
            Some(Speaker::User | Speaker::Results) => self.push_user(&message.content),
            None => {}
        }
    }

    fn request(&self, demanded: Option<&str>) -> WireRequest {
        let end: &[u8] = match self.open {
            Some(Speaker::Assistant) => GO_ON,
            Some(Speaker::User | Speaker::Results) => b"]}]}",
            None => b"]}",
        };
        let mut out = [&self.prefix, &self.contents, end].concat();
        if let Some(name) = demanded {
            let config =
                json!({"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [name]}});
            add_member(&mut out, "toolConfig", &config);
        }
        out.into()
    }
}

fn prefix(head: RequestHead, entry: &ModelFacts) -> Vec<u8> {
    let mut members = settings(Opts::read(head.opts), entry);
    if !head.system_prompt.trim().is_empty() {
        members.insert(
            "systemInstruction".into(),
            json!({"parts": [{"text": &*head.system_prompt}]}),
        );
    }
    if !head.tools.is_empty() {
        let functions = head.tools.iter().map(|tool| {
            let mut function = Map::new();
            function.insert("name".into(), tool.name.clone().into());
            function.insert("description".into(), tool.description.clone().into());
            set(
                &mut function,
                "parameters",
                schema::parameters(tool.parameters.get()),
            );
            Value::Object(function)
        });
        members.insert(
            "tools".into(),
            json!([{"functionDeclarations": functions.collect::<Vec<_>>()}]),
        );
    }
    let mut out = Vec::new();
    put_open(&mut out, &members);
    out.extend_from_slice(if members.is_empty() {
        br#""contents":["#
    } else {
        br#","contents":["#
    });
    out
}

/// Returns `generationConfig` and the options that are fields of the request itself.
fn settings(opts: Opts, entry: &ModelFacts) -> Map<String, Value> {
    let (mut members, mut config): (Map<_, _>, Map<_, _>) = opts
        .rest
        .into_iter()
        .partition(|(name, _)| BESIDE.contains(&name.as_str()));
    set(&mut config, "temperature", opts.temperature);
    set(&mut config, "topP", opts.top_p);
    set(&mut config, "maxOutputTokens", opts.max_output_tokens);
    set(
        &mut config,
        "stopSequences",
        (!opts.stop.is_empty()).then_some(opts.stop),
    );
    if let Some(budget) = opts
        .thinking_budget
        .filter(|_| entry.thinking != Thinking::None)
    {
        config
            .entry("thinkingConfig")
            .or_insert(json!({"thinkingBudget": budget, "includeThoughts": budget > 0}));
    }
    if !config.is_empty() {
        members.insert("generationConfig".into(), Value::Object(config));
    }
    members
}

/// A part of a content. Exactly one of the fields for content is set. `thought_signature` may be
/// set too.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct GoogleRequestPart<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    thought: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<GoogleRequestCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_response: Option<FunctionResponse<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inline_data: Option<InlineData<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_data: Option<Linked<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thought_signature: Option<&'a str>,
}

#[derive(Serialize)]
struct GoogleRequestCall<'a> {
    name: Cow<'a, str>,
    args: &'a RawValue,
}

#[derive(Serialize)]
struct FunctionResponse<'a> {
    name: &'a str,
    response: FunctionOutcome<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum FunctionOutcome<'a> {
    Output(&'a str),
    Error(&'a str),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InlineData<'a> {
    mime_type: &'a str,
    data: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Linked<'a> {
    mime_type: &'a str,
    file_uri: &'a str,
}

impl<'a> GoogleRequestPart<'a> {
    fn text(text: Cow<'a, str>) -> Self {
        Self {
            text: Some(text),
            ..Self::default()
        }
    }
}

/// Encodes a part of the model's message. Thoughts are summaries for people, so they are sent back
/// only if they have a signature of this endpoint.
fn encode_assistant_part<'a>(part: &'a Part, label: &str) -> Option<GoogleRequestPart<'a>> {
    let opened = |signature: &'a Option<String>| {
        signature
            .as_deref()
            .and_then(|sealed| unseal(label, sealed))
    };
    match part {
        Part::Text { signature, .. } if is_blank(part) && opened(signature).is_none() => None,
        Part::Text { text, signature } => Some(GoogleRequestPart {
            thought_signature: opened(signature),
            ..GoogleRequestPart::text(text.into())
        }),
        Part::Thinking {
            text,
            signature,
            redacted: false,
        } if opened(signature).is_some() => Some(GoogleRequestPart {
            thought: true,
            thought_signature: opened(signature),
            ..GoogleRequestPart::text(text.into())
        }),
        Part::ToolCall {
            name,
            args,
            signature,
            ..
        } => Some(GoogleRequestPart {
            function_call: Some(GoogleRequestCall {
                name: legal_name(name),
                args,
            }),
            thought_signature: opened(signature),
            ..GoogleRequestPart::default()
        }),
        Part::Thinking { .. }
        | Part::ToolResult { .. }
        | Part::Image { .. }
        | Part::File { .. } => None,
    }
}

/// Encodes a part of a user message or a tool result.
fn encode_user_part<'a>(
    part: &'a Part,
    calls: &'a HashMap<String, String>,
    images: bool,
) -> Option<GoogleRequestPart<'a>> {
    match part {
        Part::Text { .. } if is_blank(part) => None,
        Part::Text { text, .. } => Some(GoogleRequestPart::text(text.into())),
        Part::ToolResult {
            id, text, error, ..
        } => {
            let response = if *error {
                FunctionOutcome::Error(text)
            } else {
                FunctionOutcome::Output(text)
            };
            let name = calls.get(id).map_or(id.as_str(), String::as_str);
            Some(GoogleRequestPart {
                function_response: Some(FunctionResponse { name, response }),
                ..GoogleRequestPart::default()
            })
        }
        Part::Image { mime, source } if images => Some(attached(mime, source)),
        Part::Image { mime, source } => Some(GoogleRequestPart::text(
            cannot_show("image", None, mime, source).into(),
        )),
        Part::File { mime, name, source } => Some(match file_text(mime, source) {
            Some(text) => GoogleRequestPart::text(named_text(name.as_deref(), &text).into()),
            None => attached(mime, source),
        }),
        Part::Thinking { .. } | Part::ToolCall { .. } => None,
    }
}

fn attached<'a>(mime: &'a str, source: &'a MediaSource) -> GoogleRequestPart<'a> {
    match source {
        MediaSource::Data(data) => GoogleRequestPart {
            inline_data: Some(InlineData {
                mime_type: mime,
                data,
            }),
            ..GoogleRequestPart::default()
        },
        MediaSource::Url(url) => GoogleRequestPart {
            file_data: Some(Linked {
                mime_type: mime,
                file_uri: url,
            }),
            ..GoogleRequestPart::default()
        },
    }
}

#[cfg(test)]
mod tests;
