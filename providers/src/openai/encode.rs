//! Encodes a conversation as the messages of a chat completion.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};

use planck_common::message::{MediaSource, MessageBody, Part};

use super::{reasoning, settings};
use crate::{
    Encoder, RequestHead, WireRequest,
    call_ids::{CallIds, IdRule},
    catalogue::ModelFacts,
    encode::{
        NOTHING, Opts, Speaker, add_member, cannot_show, data_url, file_text, is_blank, legal_name,
        media_url, named_text, open_messages, put, result_text, side_of,
    },
    wire::{CallIdForm, Quirks, ReasoningReturn, ToolDemand, WireTarget, unseal},
};

/// A message of the assistant between tool results and the user's next message. Many chat templates
/// require a message of the assistant after tool results.
const INTERRUPTED: &str = "(interrupted by the user)";
/// A user message that asks the assistant to continue. It ends a request whose last message is the
/// assistant's, and separates two consecutive messages of the assistant.
const GO_ON: &str = "(go on)";

/// The messages in an order that every chat template accepts: user and assistant alternate, and
/// tool results stand between two messages of the assistant. Consecutive user messages are merged,
/// so the last one is closed only when a request is built.
#[derive(Debug)]
pub struct CompletionMessages {
    /// The start of the body, up to and including `"messages":[` and the system prompt.
    prefix: Vec<u8>,
    /// The complete messages, separated by commas.
    messages: Vec<u8>,
    comma: bool,
    last: Option<Speaker>,
    /// The latest user message, to which further content may still be added.
    user: Option<ChatUserMessage>,
    ids: CallIds,
    images: bool,
    reasons: bool,
    demand: ToolDemand,
    label: String,
}

impl CompletionMessages {
    pub fn new(head: RequestHead, entry: &ModelFacts, target: &WireTarget) -> Self {
        let form = match target.quirks.call_ids {
            CallIdForm::Any if target.is_vendor => IdRule::Words { most: 40 },
            CallIdForm::Any => IdRule::Any,
            CallIdForm::Nine => IdRule::Nine,
        };
        Self {
            comma: !head.system_prompt.trim().is_empty(),
            prefix: prefix(head, entry, target.quirks),
            messages: Vec::new(),
            last: None,
            user: None,
            ids: CallIds::new(form),
            images: entry.images,
            reasons: target.quirks.reasoning == ReasoningReturn::AsItCame,
            demand: target.quirks.demand,
            label: target.label.clone(),
        }
    }

    fn put(&mut self, message: &CompletionMessage<'_>) {
        if self.comma {
            self.messages.push(b',');
        }
        self.comma = true;
        put(&mut self.messages, message);
    }

    fn push_user(&mut self, parts: &[Part]) {
        if self.last == Some(Speaker::Results) {
            self.put(&CompletionMessage::assistant(INTERRUPTED));
        }
        let user = ChatUserMessage::of(parts, self.images);
        self.user = Some(match self.user.take() {
            Some(before) => before.joined(user),
            None => user,
        });
        self.last = Some(Speaker::User);
    }

    fn close_user(&mut self) {
        if let Some(user) = self.user.take() {
            if self.comma {
                self.messages.push(b',');
            }
            self.comma = true;
            user.put(&mut self.messages);
        }
    }

    fn push_assistant(&mut self, parts: &[Part]) {
        let content = planck_common::message::text_of(parts);
        let signed = parts.iter().find_map(|part| match part {
            Part::Text {
                signature: Some(sealed),
                ..
            } => unseal(&self.label, sealed),
            Part::Text { .. } | Part::Thinking { .. } | Part::ToolCall { .. } => None,
            Part::ToolResult { .. } | Part::Image { .. } | Part::File { .. } => None,
        });
        let Self { ids, label, .. } = self;
        let tool_calls: Vec<ChatCall<'_>> = parts
            .iter()
            .filter_map(|part| call(part, ids, label))
            .collect();
        if content.trim().is_empty() && tool_calls.is_empty() && signed.is_none() {
            return;
        }
        let carried = if self.reasons {
            reasoning::Reasoning::of(parts, &self.label)
        } else {
            reasoning::Reasoning::default()
        };
        let reasoning::Reasoning {
            reasoning_content,
            reasoning,
            list,
            details,
        } = carried;
        let content = match (list.is_empty(), content.is_empty()) {
            (false, _) => Some(ChatContent::Items(text_items(&list, &content))),
            (true, false) => Some(ChatContent::Text(content)),
            (true, true) => None,
        };
        let extra_content = signed.map(Extra::of);
        self.close_user();
        if self.last == Some(Speaker::Assistant) {
            self.put(&CompletionMessage::User { content: GO_ON });
        }
        self.put(&CompletionMessage::Assistant {
            content,
            reasoning_content,
            reasoning,
            reasoning_details: details,
            tool_calls,
            extra_content,
        });
        self.last = Some(Speaker::Assistant);
    }

    fn push_results(&mut self, parts: &[Part]) {
        self.close_user();
        for part in parts {
            if let Part::ToolResult {
                id,
                call_id,
                text,
                error,
            } = part
            {
                let id = self.ids.of_result(id, call_id).to_owned();
                self.put(&CompletionMessage::Tool {
                    tool_call_id: &id,
                    content: &result_text(text, *error),
                });
                self.last = Some(Speaker::Results);
            }
        }
    }
}

impl Encoder for CompletionMessages {
    fn push(&mut self, message: &MessageBody) {
        match side_of(message) {
            Some(Speaker::User) => self.push_user(&message.content),
            Some(Speaker::Assistant) => self.push_assistant(&message.content),
            Some(Speaker::Results) => self.push_results(&message.content),
            None => {}
        }
    }

    fn request(&self, demanded: Option<&str>) -> WireRequest {
        let mut out = Vec::with_capacity(self.prefix.len() + self.messages.len() + 64);
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(&self.messages);
        let last = match (&self.user, self.last) {
            (Some(user), _) => Some(user.clone()),
            (None, Some(Speaker::Assistant)) => Some(ChatUserMessage::Text(GO_ON.to_owned())),
            (None, Some(Speaker::User | Speaker::Results) | None) => None,
        };
        if let Some(user) = last {
            if self.comma {
                out.push(b',');
            }
            user.put(&mut out);
        }
        out.extend_from_slice(b"]}");
        let named = |name| json!({"type": "function", "function": {"name": name}});
        if let Some(choice) = demanded.and_then(|name| self.demand.choice(named(name))) {
            add_member(&mut out, "tool_choice", &choice);
        }
        out.into()
    }
}

fn prefix(head: RequestHead, entry: &ModelFacts, quirks: Quirks) -> Vec<u8> {
    let settings = settings(head.model, Opts::read(head.opts), entry, quirks);
    let mut out = open_messages(&settings, &head.tools);
    if !head.system_prompt.trim().is_empty() {
        put(
            &mut out,
            &CompletionMessage::System {
                content: &head.system_prompt,
            },
        );
    }
    out
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum CompletionMessage<'a> {
    System {
        content: &'a str,
    },
    User {
        content: &'a str,
    },
    Assistant {
        /// The text, or, if the endpoint sent its reasoning as items of a list, a list of the
        /// reasoning and the text. It is null if it would be empty, because some servers refuse an
        /// empty text.
        content: Option<ChatContent<'a>>,
        #[serde(skip_serializing_if = "String::is_empty")]
        reasoning_content: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        reasoning: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        reasoning_details: Vec<Value>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ChatCall<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        extra_content: Option<Extra<'a>>,
    },
    Tool {
        tool_call_id: &'a str,
        content: &'a str,
    },
}

impl CompletionMessage<'_> {
    fn assistant(text: &str) -> Self {
        Self::Assistant {
            content: Some(ChatContent::Text(text.to_owned())),
            reasoning_content: String::new(),
            reasoning: String::new(),
            reasoning_details: Vec::new(),
            tool_calls: Vec::new(),
            extra_content: None,
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum ChatContent<'a> {
    Text(String),
    Items(Vec<ChatTextItem<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ChatTextItem<'a> {
    Thinking { thinking: [ChatThought<'a>; 1] },
    Text { text: String },
}

#[derive(Serialize)]
struct ChatThought<'a> {
    r#type: &'static str,
    text: &'a str,
}

/// Returns the content of a message as a list of items, in which Mistral requires reasoning.
fn text_items<'a>(thoughts: &[&'a str], text: &str) -> Vec<ChatTextItem<'a>> {
    let thoughts = thoughts.iter().map(|text| ChatTextItem::Thinking {
        thinking: [ChatThought {
            r#type: "text",
            text,
        }],
    });
    let text = (!text.is_empty()).then(|| ChatTextItem::Text {
        text: text.to_owned(),
    });
    thoughts.chain(text).collect()
}

/// The `extra_content` that Gemini requires back with its message.
#[derive(Serialize)]
struct Extra<'a> {
    google: GoogleExtra<'a>,
}

#[derive(Serialize)]
struct GoogleExtra<'a> {
    thought_signature: &'a str,
}

impl<'a> Extra<'a> {
    fn of(thought_signature: &'a str) -> Self {
        Self {
            google: GoogleExtra { thought_signature },
        }
    }
}

#[derive(Serialize)]
struct ChatCall<'a> {
    id: std::borrow::Cow<'a, str>,
    r#type: &'static str,
    function: ChatFunction<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_content: Option<Extra<'a>>,
}

#[derive(Serialize)]
struct ChatFunction<'a> {
    name: std::borrow::Cow<'a, str>,
    /// The arguments: a string that contains JSON.
    arguments: &'a str,
}

fn call<'a>(part: &'a Part, ids: &mut CallIds, label: &str) -> Option<ChatCall<'a>> {
    let Part::ToolCall {
        id,
        call_id,
        name,
        args,
        signature,
        ..
    } = part
    else {
        return None;
    };
    let extra_content = signature
        .as_deref()
        .and_then(|sealed| unseal(label, sealed))
        .map(Extra::of);
    let function = ChatFunction {
        name: legal_name(name),
        arguments: args.get(),
    };
    Some(ChatCall {
        id: ids.of_call(id, call_id),
        r#type: "function",
        function,
        extra_content,
    })
}

// User messages in chat completions.

/// A user message: either text alone, or a list of items. Some servers accept only text, so items
/// are used only for several parts or for a part that is not text.
#[derive(Debug, Clone)]
pub enum ChatUserMessage {
    Text(String),
    /// The items as JSON, separated by commas and without the enclosing brackets.
    Items(Vec<u8>),
}

impl ChatUserMessage {
    pub fn of(parts: &[Part], images: bool) -> Self {
        let shown: Vec<&Part> = parts.iter().filter(|part| !is_blank(part)).collect();
        match shown.as_slice() {
            [] => Self::Text(NOTHING.to_owned()),
            [Part::Text { text, .. }] => Self::Text(text.clone()),
            many => {
                let mut items = Vec::new();
                for item in many.iter().filter_map(|part| item(part, images)) {
                    put_item(&mut items, &item);
                }
                Self::Items(items)
            }
        }
    }

    pub fn joined(self, other: Self) -> Self {
        match (self, other) {
            (Self::Text(one), Self::Text(two)) => Self::Text(format!("{one}\n\n{two}")),
            (one, two) => Self::Items([one.items(), two.items()].join(&b',')),
        }
    }

    fn items(self) -> Vec<u8> {
        match self {
            Self::Items(items) => items,
            Self::Text(text) => {
                let mut items = Vec::new();
                put_item(&mut items, &UserItem::Text { text: text.into() });
                items
            }
        }
    }

    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => put(
                out,
                &TextMessage {
                    role: "user",
                    content: text,
                },
            ),
            Self::Items(items) => {
                out.extend_from_slice(br#"{"role":"user","content":["#);
                out.extend_from_slice(items);
                out.extend_from_slice(b"]}");
            }
        }
    }
}

fn put_item(items: &mut Vec<u8>, item: &UserItem<'_>) {
    if !items.is_empty() {
        items.push(b',');
    }
    put(items, item);
}

/// A message whose content is a plain string.
#[derive(Serialize)]
struct TextMessage<'a> {
    role: &'static str,
    content: &'a str,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum UserItem<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: Url<'a> },
    File { file: FileData<'a> },
}

#[derive(Serialize)]
struct Url<'a> {
    url: Cow<'a, str>,
}

#[derive(Serialize)]
struct FileData<'a> {
    filename: &'a str,
    file_data: String,
}

fn item(part: &Part, images: bool) -> Option<UserItem<'_>> {
    match part {
        Part::Text { text, .. } => Some(UserItem::Text { text: text.into() }),
        Part::Image { mime, source } if images => Some(UserItem::ImageUrl {
            image_url: Url {
                url: media_url(mime, source),
            },
        }),
        Part::Image { mime, source } => Some(UserItem::Text {
            text: cannot_show("image", None, mime, source).into(),
        }),
        Part::File { mime, name, source } => Some(file(mime, name.as_deref(), source)),
        Part::Thinking { .. } | Part::ToolCall { .. } | Part::ToolResult { .. } => None,
    }
}

fn file<'a>(mime: &'a str, name: Option<&'a str>, source: &'a MediaSource) -> UserItem<'a> {
    if let Some(text) = file_text(mime, source) {
        return UserItem::Text {
            text: named_text(name, &text).into(),
        };
    }
    match source {
        MediaSource::Data(data) if mime == "application/pdf" => UserItem::File {
            file: FileData {
                filename: name.unwrap_or("file.pdf"),
                file_data: data_url(mime, data),
            },
        },
        MediaSource::Data(_) | MediaSource::Url(_) => UserItem::Text {
            text: cannot_show("file", name, mime, source).into(),
        },
    }
}
