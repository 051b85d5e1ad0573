//! The verbs of the protocol, the bodies of requests, and the bodies of the `ok` in their replies.

use serde::{Deserialize, Serialize};

macro_rules! verbs {
    ($($(#[$doc:meta])* $name:ident { $($verb:ident = $text:literal,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($verb,)+ }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$verb,)+];

            /// Returns the last word of the verb's subject.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$verb => $text,)+ }
            }

            pub fn find(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$verb),)+ _ => None }
            }
        }
    )+};
}

verbs! {
    SessionVerb {
        Prompt = "prompt", Events = "events", Messages = "messages", Info = "info", Abort = "abort",
        Rewind = "rewind", Resume = "resume", Close = "close", Delete = "delete", Answer = "answer",
        Outcome = "outcome", Rename = "rename",
    }
    AgentVerb {
        Prompt = "prompt", Info = "info", Snapshot = "snapshot", Abort = "abort", Stop = "stop", Nudge = "nudge",
        Checkpoint = "checkpoint", AddTool = "add_tool", RemoveTool = "remove_tool", ChangeModel = "change_model",
    }
    SessionsVerb { Start = "start", List = "list", Waits = "waits", }
    NodeVerb {
        Info = "info", Drain = "drain", Host = "host", Wake = "wake", Relay = "relay", StopTeam = "stop_team",
    }
}

impl SessionVerb {
    /// Returns whether a client may send the command again although the first attempt may have been
    /// executed. A prompt is idempotent by its id; a client nevertheless sends a prompt once if the
    /// mode is [`InputMode::Reject`], because the client needs the first answer.
    pub const fn is_idempotent(self) -> bool {
        match self {
            Self::Abort | Self::Rewind | Self::Delete => false,
            Self::Prompt
            | Self::Events
            | Self::Messages
            | Self::Info
            | Self::Resume
            | Self::Close
            | Self::Answer
            | Self::Outcome
            | Self::Rename => true,
        }
    }
}

impl AgentVerb {
    /// Returns the same as [`SessionVerb::is_idempotent`].
    pub const fn is_idempotent(self) -> bool {
        match self {
            Self::Abort | Self::Stop | Self::Nudge | Self::Checkpoint => false,
            Self::Prompt
            | Self::Info
            | Self::Snapshot
            | Self::AddTool
            | Self::RemoveTool
            | Self::ChangeModel => true,
        }
    }
}

macro_rules! bodies {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
    )+};
}

mod agent;
mod node;
mod outcome;
mod peer;
mod session;
mod wait;

pub use self::{agent::*, node::*, outcome::*, peer::*, session::*, wait::*};

/// The maximum number of characters of a session's title.
pub const MOST_TITLE: usize = 200;

/// The maximum length in bytes of the name of who sends a prompt, a rewind or an answer.
pub const MOST_BY: usize = 200;

/// The body of a command without arguments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Empty {}

/// What happens to a prompt for an agent that is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", schemars(rename = "Mode"))]
pub enum InputMode {
    /// The prompt waits for the next turn.
    #[default]
    Queue,
    /// The prompt joins the running turn before its next request.
    Steer,
    /// The prompt is refused with `busy`.
    Reject,
}

impl InputMode {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Steer => "steer",
            Self::Reject => "reject",
        }
    }

    pub fn find(name: &str) -> Option<Self> {
        [Self::Queue, Self::Steer, Self::Reject]
            .into_iter()
            .find(|mode| mode.name() == name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    Open,
    Closed,
}

/// What a session is doing. It is independent of whether the session is open or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionActivity {
    Idle,
    /// An agent is working.
    Working,
    /// No agent is working, but an input waits for one, or an agent waits for an answer from
    /// outside.
    Waiting,
    /// No agent is working and nothing waits, and the orchestrator's last turn ended with an error,
    /// at a limit or cut off.
    Failed,
}

impl SessionActivity {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Working => "working",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
        }
    }

    pub fn find(name: &str) -> Option<Self> {
        [Self::Idle, Self::Working, Self::Waiting, Self::Failed]
            .into_iter()
            .find(|activity| activity.name() == name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AgentState {
    Idle,
    Streaming,
    ExecutingTools,
    /// Every call of the round that has no result waits for an answer from outside.
    Waiting,
    Compacting,
    Stopped,
}

impl AgentState {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Streaming => "streaming",
            Self::ExecutingTools => "executing_tools",
            Self::Waiting => "waiting",
            Self::Compacting => "compacting",
            Self::Stopped => "stopped",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    Alive,
    Suspended,
    Suspect,
    Draining,
    Left,
    Dead,
}

/// Prices in US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Prices {
    pub input: f64,
    pub output: f64,
    pub cache_read: f64,
    pub cache_write: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_are_absent_are_not_written() {
        let prompt = r#"{"text":"hi","mode":"queue"}"#;
        let start = r#"{"dir":"/srv","prompt":"hi"}"#;
        let read: Prompt = serde_json::from_str(prompt).unwrap();
        assert_eq!(
            (&read.by, crate::event::json(&read).as_str()),
            (&None, prompt)
        );
        let read: Start = serde_json::from_str(start).unwrap();
        assert_eq!(
            (&read.by, crate::event::json(&read).as_str()),
            (&None, start)
        );
        let read: Rewind = serde_json::from_str(r#"{"to":3}"#).unwrap();
        assert_eq!(
            (&read.by, crate::event::json(&read).as_str()),
            (&None, r#"{"to":3}"#)
        );
        let read: Drain = serde_json::from_str("{}").unwrap();
        assert_eq!(
            (&read.reason, crate::event::json(&read).as_str()),
            (&None, "{}")
        );
    }
}
