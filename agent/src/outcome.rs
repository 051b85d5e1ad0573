//! What a tool call came to.

use std::borrow::Cow;

use planck_common::{InputId, event::Event};

/// Why a call was stopped, when its agent was aborted without a reason.
pub const ABORTED: &str = "aborted by request";

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEnd {
    Done,
    Failed,
    /// It was told to stop before it was done. The tool does not know why; its agent does.
    Stopped,
}

/// What a call came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub end: CallEnd,
    /// What the tool has to say to the model; of a stopped call what it had so far, which may be
    /// nothing.
    pub text: String,
    /// Durable events of the agent, saved together with the call's end.
    pub events: Vec<Event>,
    /// The task that this call answered.
    pub responded: Option<InputId>,
}

impl Outcome {
    pub fn ok(text: impl Into<String>) -> Self {
        Self::new(CallEnd::Done, text)
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self::new(CallEnd::Failed, text)
    }

    pub fn stopped(text: impl Into<String>) -> Self {
        Self::new(CallEnd::Stopped, text)
    }

    fn new(end: CallEnd, text: impl Into<String>) -> Self {
        Self {
            end,
            text: text.into(),
            events: Vec::new(),
            responded: None,
        }
    }

    /// Whether the model is told that the call did not succeed.
    pub fn is_error(&self) -> bool {
        match self.end {
            CallEnd::Done => false,
            CallEnd::Failed | CallEnd::Stopped => true,
        }
    }

    /// The text as the model reads it: that of a stopped call stands under the reason.
    pub fn told(&self, why_stopped: &str) -> Cow<'_, str> {
        match self.end {
            CallEnd::Done | CallEnd::Failed => Cow::Borrowed(&self.text),
            CallEnd::Stopped if self.text.is_empty() => Cow::Owned(why_stopped.into()),
            CallEnd::Stopped => Cow::Owned(format!("{why_stopped}\n{}", self.text)),
        }
    }
}
