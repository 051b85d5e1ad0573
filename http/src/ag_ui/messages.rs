//! The messages of a thread, put together from the events as a client does.

use std::collections::VecDeque;

use planck_client::turn::TurnEvent;
use planck_common::{SessionId, message::Part};
use serde_json::{Value, json};

use super::{
    body::{KnownMessages, message_of_user},
    events::RunEncoder,
};
use crate::ui::{
    chunks::with_field,
    ids,
    saved::{AnswerWriter, size_of},
};

/// The maximum size of a snapshot in bytes. `@ag-ui/client` takes no event with more than 10 Mi
/// characters.
const ROOM: usize = 8 << 20;

/// Puts messages together.
#[derive(Debug, Default)]
pub struct MessageFold {
    messages: Vec<Value>,
    /// The number of messages before the running step.
    before_step: usize,
}

impl MessageFold {
    pub fn of(messages: Vec<Value>) -> Self {
        Self {
            before_step: messages.len(),
            messages,
        }
    }

    /// Takes an event. Events that leave no message are dropped.
    pub fn take(&mut self, event: Value) {
        let text = |key: &str| event.get(key).and_then(Value::as_str).unwrap_or_default();
        let id = text("messageId");
        match text("type") {
            "TEXT_MESSAGE_START" => {
                self.message(json!({"id": id, "role": "assistant", "content": ""}));
            }
            "REASONING_MESSAGE_START" => {
                self.message(json!({"id": id, "role": "reasoning", "content": ""}));
            }
            "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT" => {
                let content = self.find(id).and_then(|message| message.get_mut("content"));
                if let Some(Value::String(content)) = content {
                    content.push_str(text("delta"));
                }
            }
            "TOOL_CALL_START" => {
                let function = json!({"name": text("toolCallName"), "arguments": ""});
                self.call(
                    text("parentMessageId"),
                    json!({"id": text("toolCallId"), "type": "function", "function": function}),
                );
            }
            "TOOL_CALL_ARGS" => self.arguments(text("delta")),
            "TOOL_CALL_RESULT" => {
                let message = json!({"id": id, "role": "tool", "content": text("content"),
                    "toolCallId": text("toolCallId")});
                self.result(match event.get("metadata") {
                    Some(metadata) => with_field(message, "metadata", metadata.clone()),
                    None => message,
                });
            }
            "ACTIVITY_SNAPSHOT" => {
                self.message(
                    json!({"id": id, "role": "activity", "content": event.get("content"),
                    "activityType": text("activityType")}),
                );
            }
            _ => {}
        }
    }

    fn find(&mut self, id: &str) -> Option<&mut Value> {
        let is_same = |message: &&mut Value| message.get("id").is_some_and(|known| known == id);
        self.messages.iter_mut().rfind(is_same)
    }

    /// Adds a message, or replaces the activity with its id.
    fn message(&mut self, message: Value) {
        let id = message.get("id").and_then(Value::as_str);
        let is_activity = message.get("activityType").is_some();
        match id.and_then(|id| self.find(id)) {
            Some(known) if is_activity => *known = message,
            Some(_) => {}
            None => self.messages.push(message),
        }
    }

    /// Adds a call to a message of the assistant.
    fn call(&mut self, parent: &str, call: Value) {
        if self.find(parent).is_none() {
            self.messages
                .push(json!({"id": parent, "role": "assistant"}));
        }
        let message = self.find(parent).and_then(Value::as_object_mut);
        let calls = message.map(|message| message.entry("toolCalls").or_insert_with(|| json!([])));
        if let Some(Value::Array(calls)) = calls {
            calls.push(call);
        }
    }

    /// Adds the result of a call after the message with the call and the results that it has already.
    fn result(&mut self, result: Value) {
        let call = result.get("toolCallId");
        let is_caller = |message: &Value| {
            let calls = message.get("toolCalls").and_then(Value::as_array);
            calls.is_some_and(|calls| calls.iter().any(|known| known.get("id") == call))
        };
        let at = self.messages.iter().rposition(is_caller);
        let at = at.map_or(self.messages.len(), |caller| {
            let after = self.messages.iter().skip(caller + 1);
            let results = after.take_while(|message| message["role"] == "tool");
            caller + 1 + results.count()
        });
        self.messages.insert(at, result);
    }

    /// Sets the arguments of the last call.
    fn arguments(&mut self, arguments: &str) {
        let mut calls = self.messages.iter_mut().rev();
        let calls = calls.find_map(|message| message.get_mut("toolCalls")?.as_array_mut());
        let function = calls.and_then(|calls| calls.last_mut()?.get_mut("function"));
        if let Some(Value::Object(function)) = function {
            function.insert("arguments".into(), arguments.into());
        }
    }

    pub fn step_started(&mut self) {
        self.before_step = self.messages.len();
    }

    /// Drops what the running step has said.
    pub fn void_step(&mut self) {
        let step = self.messages.split_off(self.before_step);
        let kept = step
            .into_iter()
            .filter(|message| message["role"] == "activity");
        self.messages.extend(kept);
    }

    /// Returns the event that gives a client all messages, as far as there is room for them, if the
    /// client lacks one.
    pub fn snapshot(self, known: &KnownMessages) -> Option<Value> {
        if self.messages.iter().all(|message| known.has(message)) {
            return None;
        }
        let mut messages = VecDeque::from(self.messages);
        let mut size: usize = messages.iter().map(size_of).sum();
        while size > ROOM && messages.len() > 1 {
            size -= messages.pop_front().as_ref().map_or(0, size_of);
        }
        for message in messages
            .iter_mut()
            .filter(|message| message["role"] == "user")
        {
            let id = message["id"].as_str().and_then(|id| known.id_of_prompt(id));
            if let Some(id) = id {
                message["id"] = id.into();
            }
        }
        // A client keeps reasoning that a snapshot lacks. It would add what follows to it.
        let is_known = |id: &str| messages.iter().any(|message| message["id"] == id);
        let void: Vec<_> = known.reasoning().filter(|id| !is_known(id)).collect();
        let void = void
            .into_iter()
            .map(|id| json!({"id": id, "role": "reasoning", "content": ""}));
        messages.extend(void);
        Some(json!({"type": "MESSAGES_SNAPSHOT", "messages": messages}))
    }
}

/// Writes the messages of an answer that a client of its stream would have.
pub struct ThreadWriter(RunEncoder);

impl AnswerWriter for ThreadWriter {
    const ROOM: usize = ROOM;

    fn new(session: &SessionId) -> Self {
        let encoder = RunEncoder::new(session.clone(), Value::Null);
        Self(encoder.folding(MessageFold::default()))
    }

    fn take(&mut self, event: TurnEvent) {
        // An end leaves no message.
        let is_end = matches!(event, TurnEvent::Ended { .. } | TurnEvent::Failed { .. });
        if !is_end {
            self.0.fold(event);
        }
    }

    fn messages(self, _: bool) -> Vec<Value> {
        self.0.folded()
    }

    fn of_user(id: &str, content: &[Part]) -> Value {
        message_of_user(ids::base_of(id), content)
    }
}

impl From<MessageFold> for Vec<Value> {
    fn from(fold: MessageFold) -> Self {
        fold.messages
    }
}
