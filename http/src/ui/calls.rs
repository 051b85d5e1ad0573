//! The chunks of a tool call.

use planck_common::CallId;
use serde_json::{Value, json};

use super::data::with;

/// A tool call, as the client knows it.
pub struct UiCall {
    name: String,
    input: Value,
    /// The text that the model sent in place of a JSON object.
    pub invalid: Option<String>,
    pub state: CallState,
    pub is_of_client: bool,
    pub is_denied: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallState {
    /// The call was made, and it is not known yet who runs it.
    Made,
    Running,
    Waiting,
    Ended,
}

impl UiCall {
    pub fn new(name: String, input: Value, invalid: Option<String>) -> Self {
        Self {
            name,
            input,
            invalid,
            state: CallState::Made,
            is_of_client: false,
            is_denied: false,
        }
    }

    /// Returns whether the tool is unknown to the client. The client's own tools are known to it,
    /// and `ask_user` is not.
    pub fn is_dynamic(&self) -> bool {
        !self.is_of_client || self.name == "ask_user"
    }

    /// A call that the server runs counts as executed by the provider, so that the client neither
    /// runs it nor sends its result back.
    pub fn available(&self, id: &CallId) -> Value {
        let chunk = json!({"type": "tool-input-available", "toolCallId": id,
            "toolName": self.name, "input": self.input, "dynamic": self.is_dynamic()});
        match self.is_of_client {
            true => chunk,
            false => with(chunk, "providerExecuted", true),
        }
    }

    pub fn input_error(&self, id: &CallId, why: &str) -> Value {
        json!({"type": "tool-input-error", "toolCallId": id, "toolName": self.name,
            "input": self.invalid, "errorText": why, "dynamic": true, "providerExecuted": true})
    }

    /// Returns the output of a call. The result of a client's own tool is JSON again.
    pub fn output(&self, result: &str) -> Value {
        let is_own = !self.is_dynamic();
        let parsed = is_own.then(|| serde_json::from_str(result).ok()).flatten();
        parsed.unwrap_or_else(|| result.into())
    }
}
