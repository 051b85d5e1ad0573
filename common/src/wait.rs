//! Waits: what an agent needs from a person or a client before a call continues. A wait is opened
//! by the event `wait_opened`, answered with `cmd.session.<session>.answer`, and ended by the event
//! `wait_closed`.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{CallId, Timestamp, permission::Rule};

macro_rules! names {
    ($($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "snake_case")]
        pub enum $type { $($(#[$variant_doc])* $variant,)+ }

        impl $type {
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the name in JSON and in the store.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            pub fn find(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }
    )+};
}

names! {
    /// What an agent waits for.
    WaitKind {
        /// Whether a tool call may run.
        Approval = "approval",
        /// An answer to a question of the model or of a tool.
        Question = "question",
        /// The result of a tool that the client runs.
        ClientTool = "client_tool",
        /// Whether a limit may be exceeded.
        Budget = "budget",
        /// Whether the changes of protected files are kept that a call made.
        Change = "change",
    }
    WaitState {
        /// No answer is stored yet.
        Open = "open",
        /// The answer is stored, and the agent has not read it yet.
        Answered = "answered",
        /// The agent has read the answer.
        Closed = "closed",
        /// The agent no longer needs an answer, because its turn ended or was rewound.
        Withdrawn = "withdrawn",
    }
    /// How a wait ended.
    WaitDecision {
        Allow = "allow",
        Deny = "deny",
        /// The question or the client's tool has a result.
        Answer = "answer",
        /// The client's tool failed.
        Error = "error",
        /// No answer came in time. The call does not run.
        Expired = "expired",
        /// The agent no longer needs an answer.
        Withdrawn = "withdrawn",
    }
    /// For which calls an approval holds.
    WaitScope {
        Once = "once",
        /// For this call and for later calls of the session that the wait's rule matches.
        Session = "session",
    }
}

/// A change of a protected file or folder, which a call made and the sandbox could not prevent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProtectedChange {
    /// The call that made the change.
    pub call: CallId,
    /// The absolute path.
    pub path: String,
    pub change: ChangeKind,
    /// The text of the file now, cut if it is long. Absent if it is no text file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Added,
    Changed,
    Removed,
}

/// The data of `wait_opened`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitOpened {
    /// The id of the wait. A wait for an approval, a question or a client's tool has the id of its
    /// call.
    pub id: CallId,
    /// The call that waits, if the wait has an id of its own. A wait about a change has one, and so has
    /// one about a question of a tool, because the call may have waited before. Absent for a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<CallId>,
    pub kind: WaitKind,
    /// One line that says what is asked.
    pub title: String,
    /// For an approval and a client's tool: `tool`, `args` and `effect`. For a change: `tool`, `calls`,
    /// `changes` and, if the call ran, `result`. For a question: `tool`, and `args` with the `question`.
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    pub request: Box<RawValue>,
    /// A hash of the request and of the tool's description. An answer that names another digest is
    /// refused.
    pub digest: String,
    /// The answers that a question suggests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<Vec<String>>,
    /// The JSON Schema of the answer's `value`, or of changed `args`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub schema: Option<Box<RawValue>>,
    /// The rule that an answer with the scope `session` adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
    /// A value that the tool which asks a question gets back with the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub state: Option<Box<RawValue>>,
    /// When the wait expires; absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// The data of `wait_closed`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitClosed {
    pub id: CallId,
    /// The call that waited, if the wait has an id of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<CallId>,
    pub decision: WaitDecision,
    /// The name of the person or program that answered, as the answer says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<WaitScope>,
}

impl WaitOpened {
    /// Returns the call that waits.
    pub fn call(&self) -> &CallId {
        self.call_id.as_ref().unwrap_or(&self.id)
    }
}

impl WaitClosed {
    /// Returns the call that waited.
    pub fn call(&self) -> &CallId {
        self.call_id.as_ref().unwrap_or(&self.id)
    }
}

/// The answer to a wait, as the store holds it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WaitAnswer {
    pub decision: WaitDecision,
    /// The arguments with which the call runs in place of the model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<WaitScope>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    pub at: Timestamp,
}

impl WaitAnswer {
    /// Returns whether two answers say the same and have the same author. Their times may differ.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let text = |raw: &Option<Box<RawValue>>| raw.as_ref().map(|raw| raw.get().to_owned());
        self.decision == other.decision
            && text(&self.args) == text(&other.args)
            && text(&self.value) == text(&other.value)
            && self.reason == other.reason
            && self.scope == other.scope
            && self.by == other.by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_serde() {
        for decision in WaitDecision::ALL {
            let text = serde_json::to_string(decision).unwrap();
            assert_eq!(text, format!("{:?}", decision.name()));
            assert_eq!(WaitDecision::find(decision.name()), Some(*decision));
        }
        for kind in WaitKind::ALL {
            let text = serde_json::to_string(kind).unwrap();
            assert_eq!(text, format!("{:?}", kind.name()));
        }
    }
}
