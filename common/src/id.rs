//! Ids, which are parsed where they enter the process. Every id matches `[A-Za-z0-9_-]{1,64}`, so
//! it can be a token of a NATS subject.

use std::{borrow::Borrow, fmt, ops::Deref, sync::Arc};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The number of a row in a session's log. Numbers start at 1, have no gaps and are never reused. 0
/// means "before the first row".
pub type Seq = i64;

/// The error for a text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed {kind} `{text}`: expected {expected}")]
pub struct MalformedId {
    kind: &'static str,
    text: String,
    expected: &'static str,
}

/// Returns whether a text consists of 1 to 64 characters of `A-Z a-z 0-9 _ -`.
pub fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn is_session_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $check:path, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "String"))]
        pub struct $name(Arc<str>);

        impl $name {
            /// Parses an id from a text.
            pub fn parse(text: &str) -> Result<Self, MalformedId> {
                if $check(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(MalformedId { kind: $kind, text: text.chars().take(80).collect(), expected: $expected })
                }
            }

            /// Returns the id as a text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = MalformedId;
            fn try_from(text: String) -> Result<Self, MalformedId> {
                Self::parse(&text)
            }
        }

        impl std::str::FromStr for $name {
            type Err = MalformedId;
            fn from_str(text: &str) -> Result<Self, MalformedId> {
                Self::parse(text)
            }
        }

        impl Deref for $name {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

macro_rules! minted {
    ($($name:ident),+) => {$(
        impl $name {
            /// Returns a new id. New ids are ordered by the time of their creation.
            pub fn mint() -> Self {
                Self(Uuid::now_v7().simple().to_string().into())
            }
        }
    )+};
}

id!(
    /// One agent, unique over all sessions.
    AgentId, "agent id", is_id, "1 to 64 of A-Z a-z 0-9 _ -"
);
id!(
    /// One session.
    SessionId, "session id", is_id, "1 to 64 of A-Z a-z 0-9 _ -"
);
id!(
    /// One team; a session has one.
    TeamId, "team id", is_id, "1 to 64 of A-Z a-z 0-9 _ -"
);
id!(
    /// One run of a node's process. A restarted node has a new id.
    NodeId, "node id", is_id, "1 to 64 of A-Z a-z 0-9 _ -"
);
id!(
    /// One input in an inbox: a prompt, question, task, response or note.
    InputId, "input id", is_id, "1 to 64 of A-Z a-z 0-9 _ -"
);
id!(
    /// One tool call; see [`CallId::of`].
    CallId, "call id", is_id, "1 to 64 of A-Z a-z 0-9 _ -"
);
id!(
    /// A sidecar, by its service name.
    SidecarId, "sidecar name", is_id, "1 to 64 of A-Z a-z 0-9 _ -"
);
id!(
    /// A session's name, unique in its store.
    SessionName, "session name", is_session_name, "1 to 64 of a-z 0-9 -"
);

minted!(AgentId, SessionId, TeamId, NodeId, InputId, CallId);

/// The namespace of the version 5 UUIDs of tool calls: a random constant of this protocol.
const CALLS: Uuid = Uuid::from_u128(0x6f1d_3c52_9a44_4f0e_8b7b_501a_9c7e_21d4);

impl CallId {
    /// Returns the id of the tool call in the content part with index `part` of a model's answer.
    /// The id depends only on the arguments, and is unique even if the provider uses its own call
    /// ids twice. The writer's epoch is one of the arguments because turn numbers are reused after
    /// a rewind.
    pub fn of(
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        turn: u32,
        request: u32,
        part: usize,
    ) -> Self {
        let place = format!("{session}/{agent}/{epoch}/{turn}/{request}/{part}");
        Self(Uuid::new_v5(&CALLS, place.as_bytes()).to_string().into())
    }

    /// Returns the id of the question, task or response that this call puts into another agent's
    /// inbox.
    pub fn as_input(&self) -> InputId {
        InputId(self.0.clone())
    }

    /// Returns the id of this call's wait about changes of protected files.
    pub fn change_wait(&self) -> Self {
        self.part("change")
    }

    /// Returns the id of the wait for the answer to the question with this number of this call.
    pub fn question_wait(&self, number: usize) -> Self {
        self.part(&format!("question/{number}"))
    }

    fn part(&self, name: &str) -> Self {
        let name = format!("{self}/{name}");
        Self(Uuid::new_v5(&CALLS, name.as_bytes()).to_string().into())
    }

    /// Returns the id of the agent that this call spawns.
    pub fn as_agent(&self) -> AgentId {
        AgentId(self.0.clone())
    }

    /// Returns the id of the first task of the agent that this call spawns. It is derived from the id
    /// of the call, so that a resumed turn does not give the task twice.
    pub fn first_task(&self, session: &SessionId) -> InputId {
        Self::of(session, &self.as_agent(), 0, 0, 0, 0).as_input()
    }
}

/// The namespace of the version 5 UUIDs of notes about tasks: a random constant of this protocol.
const NOTES: Uuid = Uuid::from_u128(0x2b7e_90c4_51d8_4a3b_a6f2_0c9d_3e58_71b6);

/// The namespace of the version 5 UUIDs of the first prompts of sessions: a random constant of this
/// protocol.
const PROMPTS: Uuid = Uuid::from_u128(0xc4a8_17e3_0d6b_4f95_9e21_73b0_5fd2_88a9);

impl InputId {
    /// Returns the id of the note which says that this task got no response. The id depends only on
    /// the task's id.
    pub fn unanswered(&self) -> Self {
        Self(Uuid::new_v5(&NOTES, self.as_bytes()).to_string().into())
    }

    /// Returns the id of the prompt with which a session is started, if the start names no
    /// `prompt_id`. The id depends only on the session's id, so a repeated start gets the same
    /// reply.
    pub fn first_of(session: &SessionId) -> Self {
        Self(
            Uuid::new_v5(&PROMPTS, session.as_bytes())
                .to_string()
                .into(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_one_token_of_a_subject() {
        for good in ["a", "A-z_9", &"x".repeat(64)] {
            assert!(AgentId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "a.b", "*", ">", "a b", "ä", "a\n", &"x".repeat(65)] {
            assert!(AgentId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn call_id_depends_on_its_place() {
        let (session, agent) = (SessionId::parse("s").unwrap(), AgentId::parse("a").unwrap());
        let call = CallId::of(&session, &agent, 1, 1, 2, 3);
        assert_eq!(call, CallId::of(&session, &agent, 1, 1, 2, 3));
        assert_ne!(call, CallId::of(&session, &agent, 1, 1, 3, 3));
        assert!(is_id(&call));
    }
}
