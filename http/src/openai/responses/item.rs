//! The items of a response's output.

use serde_json::{Value, json};

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
    pub fn part(&self) -> Value {
        match self.kind {
            ItemKind::Message => {
                json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": []})
            }
            ItemKind::Reasoning | ItemKind::Call => {
                json!({"type": "reasoning_text", "text": self.text})
            }
        }
    }

    /// Returns the item. An item that was just added has no content yet.
    pub fn written(&self, status: &str) -> Value {
        let content = if self.text.is_empty() {
            json!([])
        } else {
            json!([self.part()])
        };
        match self.kind {
            ItemKind::Message => json!({"type": "message", "id": self.id, "role": "assistant",
                "status": status, "content": content}),
            ItemKind::Reasoning => json!({"type": "reasoning", "id": self.id, "summary": [],
                "status": status, "content": content}),
            ItemKind::Call => json!({"type": "function_call", "id": self.id, "name": self.name,
                "call_id": self.call_id, "arguments": self.text, "status": status}),
        }
    }
}
