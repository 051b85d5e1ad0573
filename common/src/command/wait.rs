//! Commands about waits: list and answer them.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    AgentId, CallId, Seq, SessionId, Timestamp,
    permission::Rule,
    wait::{WaitDecision, WaitKind, WaitScope, WaitState},
};

bodies! {
    #[derive(Default)]
    ListWaits {
        /// The waits in this state; the open ones by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<WaitState>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<WaitKind>,
        /// The id or name of a session; all sessions by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
        /// The waits whose id begins with this text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
        /// The `next` of the preceding page.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
        /// Whether the list begins with the waits that were opened last.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        newest: bool,
    }
    Waits {
        waits: Vec<WaitRow>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<String>,
    }
    WaitRow {
        id: CallId,
        session_id: SessionId,
        agent_id: AgentId,
        /// The number of the event `wait_opened` in the session's log.
        seq: Seq,
        kind: WaitKind,
        state: WaitState,
        title: String,
        #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
        request: Box<RawValue>,
        digest: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        options: Option<Vec<String>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
        schema: Option<Box<RawValue>>,
        /// The rule that an answer with the scope `session` adds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<Rule>,
        opened_at: Timestamp,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at: Option<Timestamp>,
        /// The answer; absent while the wait is open.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        decision: Option<WaitDecision>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answered_by: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answered_at: Option<Timestamp>,
    }
    Answer {
        /// The id of the wait.
        wait: CallId,
        /// `allow` or `deny` for an approval and a budget, `answer` for a question, `answer` or
        /// `error` for a client's tool.
        decision: WaitDecision,
        /// The arguments with which an allowed call runs in place of the model's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
        args: Option<Box<RawValue>>,
        /// The answer to a question, or the result of a client's tool.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
        value: Option<Box<RawValue>>,
        /// The reason for a denial, which the model reads.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// `once` by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scope: Option<WaitScope>,
        /// The digest of the wait that was read. The answer is refused if the wait has another one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<String>,
        /// The name of the person or program that answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    }
    Answered {
        wait: CallId,
        state: WaitState,
        decision: WaitDecision,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answered_by: Option<String>,
        answered_at: Timestamp,
    }
}
