//! What a tool call came to.

use planck_common::{InputId, event::Event};

/// What a call that was not run or not finished is answered with when its agent was aborted.
pub const ABORTED: &str = "aborted by request";

/// What a call came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Goes to the model.
    pub text: String,
    pub error: bool,
    /// Durable events of the agent, saved together with the call's end.
    pub events: Vec<Event>,
    /// The task that this call answered.
    pub responded: Option<InputId>,
}

impl Outcome {
    pub fn ok(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            error: false,
            events: Vec::new(),
            responded: None,
        }
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            error: true,
            events: Vec::new(),
            responded: None,
        }
    }
}
