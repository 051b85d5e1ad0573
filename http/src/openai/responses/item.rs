//! The items of a response's output.

use schemars::JsonSchema;
use serde::Serialize;

/// An item of a response's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem {
    /// A reply of the orchestrator.
    Message {
        id: String,
        /// Always `assistant`.
        role: &'static str,
        status: &'static str,
        content: Vec<OutputPart>,
    },
    Reasoning {
        id: String,
        /// Always empty.
        summary: Vec<OutputPart>,
        status: &'static str,
        content: Vec<OutputPart>,
    },
    /// A call of a tool of the client.
    FunctionCall {
        id: String,
        name: String,
        /// The id that the result of the call names.
        call_id: String,
        /// The arguments, as the text of a JSON object.
        arguments: String,
        status: &'static str,
    },
}

/// The content of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputPart {
    OutputText {
        text: String,
        /// Always empty, like `logprobs`.
        annotations: Vec<()>,
        logprobs: Vec<()>,
    },
    ReasoningText {
        text: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemKind {
    Message,
    Reasoning,
    Call,
}

impl ItemKind {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Message => "msg",
            Self::Reasoning => "rs",
            Self::Call => "fc",
        }
    }

    /// Returns the name of the event with a piece of the item.
    pub const fn delta(self) -> &'static str {
        match self {
            Self::Message => "response.output_text.delta",
            Self::Reasoning => "response.reasoning_text.delta",
            Self::Call => "response.function_call_arguments.delta",
        }
    }

    /// Returns the name of the event that follows the last piece.
    pub const fn done(self) -> &'static str {
        match self {
            Self::Message => "response.output_text.done",
            Self::Reasoning => "response.reasoning_text.done",
            Self::Call => "response.function_call_arguments.done",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Item {
    pub kind: ItemKind,
    /// The number of the item's first event.
    pub first: u64,
    pub id: String,
    /// The text, or the arguments of the call.
    pub text: String,
    pub status: &'static str,
    pub call_id: String,
    pub name: String,
}

impl Item {
    pub fn new(kind: ItemKind, first: u64, response: &str) -> Self {
        Self {
            kind,
            first,
            id: format!("{}_{response}_{first:x}", kind.prefix()),
            text: String::new(),
            status: "in_progress",
            call_id: String::new(),
            name: String::new(),
        }
    }

    /// Returns the part of the content.
    pub fn part(&self) -> OutputPart {
        let text = self.text.clone();
        match self.kind {
            ItemKind::Message => OutputPart::OutputText {
                text,
                annotations: Vec::new(),
                logprobs: Vec::new(),
            },
            ItemKind::Reasoning | ItemKind::Call => OutputPart::ReasoningText { text },
        }
    }

    /// Returns the item. An item that was just added has no content yet.
    pub fn written(&self, status: &'static str) -> OutputItem {
        let id = self.id.clone();
        let content = match self.text.is_empty() {
            true => Vec::new(),
            false => vec![self.part()],
        };
        match self.kind {
            ItemKind::Message => OutputItem::Message {
                id,
                role: "assistant",
                status,
                content,
            },
            ItemKind::Reasoning => OutputItem::Reasoning {
                id,
                summary: Vec::new(),
                status,
                content,
            },
            ItemKind::Call => OutputItem::FunctionCall {
                id,
                name: self.name.clone(),
                call_id: self.call_id.clone(),
                arguments: self.text.clone(),
                status,
            },
        }
    }
}
