//! The ids of responses and of tool calls. An id says where in which session it stands, so that any
//! front on any node can answer for it without a memory.

use std::fmt;

use planck_common::{CallId, InputId, Seq, SessionId};
use sha2::{Digest as _, Sha256};

use super::error::OpenAiError;

const RESPONSE: &str = "resp_";
const CALL: &str = "call_";

/// A response: what the orchestrator says in a turn that a client asked for, until the turn ends or
/// calls tools of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseId {
    pub session: SessionId,
    /// The end of the preceding turn that a client asked for; 0 if there is none.
    pub place: Seq,
    /// The reply with the client's tool calls after which the response continues the turn.
    pub after: Option<Seq>,
}

impl fmt::Display for ResponseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{RESPONSE}{}_{}", self.session, self.place)?;
        match self.after {
            Some(after) => write!(f, ".{after}"),
            None => Ok(()),
        }
    }
}

impl ResponseId {
    pub fn parse(text: &str) -> Result<Self, OpenAiError> {
        Self::read(text).ok_or_else(|| {
            let shown: String = text.chars().take(120).collect();
            OpenAiError::not_found(format!("there is no response `{shown}`"))
        })
    }

    fn read(text: &str) -> Option<Self> {
        let (session, rest) = text.strip_prefix(RESPONSE)?.rsplit_once('_')?;
        let (place, after) = match rest.split_once('.') {
            Some((place, after)) => (place, Some(number(after)?)),
            None => (rest, None),
        };
        Some(Self {
            session: SessionId::parse(session).ok()?,
            place: number(place)?,
            after,
        })
    }

    /// Returns the id of the prompt that continues a session at a place. Because a session takes a
    /// prompt id once, a place is continued once, also if several clients try it at the same time.
    pub fn prompt(session: &SessionId, place: Seq) -> InputId {
        input(&format!("prompt {session} {place}"))
    }
}

/// A call of a client's tool, as the client knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCallId {
    pub session: SessionId,
    /// The place of the response's turn.
    pub place: Seq,
    pub call: CallId,
}

impl fmt::Display for ToolCallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CALL}{}_{}_{}", self.session, self.place, self.call)
    }
}

impl ToolCallId {
    pub fn parse(text: &str) -> Result<Self, OpenAiError> {
        Self::read(text).ok_or_else(|| {
            let shown: String = text.chars().take(120).collect();
            OpenAiError::not_found(format!(
                "there is no tool call `{shown}`; send the id that the tool call had"
            ))
        })
    }

    fn read(text: &str) -> Option<Self> {
        // The id of a call is a UUID, so it has no underscore.
        let (rest, call) = text.strip_prefix(CALL)?.rsplit_once('_')?;
        let (session, place) = rest.rsplit_once('_')?;
        Some(Self {
            session: SessionId::parse(session).ok()?,
            place: number(place)?,
            call: CallId::parse(call).ok()?,
        })
    }
}

fn number(text: &str) -> Option<Seq> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

/// Returns the first 32 hexadecimal digits of a text's digest.
pub fn digest(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn input(text: &str) -> InputId {
    let id = format!("openai-{}", digest(text));
    InputId::parse(&id).unwrap_or_else(|_| InputId::mint())
}

/// Returns the session that a request with an idempotency key starts. Keys of different callers do
/// not meet.
pub fn session_of(caller: Option<&str>, key: &str) -> SessionId {
    let id = digest(&format!("session {} {key}", caller.unwrap_or_default()));
    SessionId::parse(&id).unwrap_or_else(|_| SessionId::mint())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_were_written() {
        for session in ["s1", "a_5", "a-_-b"] {
            let session = SessionId::parse(session).unwrap();
            for after in [None, Some(17)] {
                let id = ResponseId {
                    session: session.clone(),
                    place: 7,
                    after,
                };
                assert_eq!(ResponseId::read(&id.to_string()), Some(id));
            }
            let call = ToolCallId {
                session,
                place: 0,
                call: CallId::parse("6f1d3c52-9a44-4f0e").unwrap(),
            };
            assert_eq!(ToolCallId::read(&call.to_string()), Some(call));
        }
    }

    #[test]
    fn other_texts_are_no_ids() {
        for text in [
            "",
            "resp_",
            "resp_a",
            "resp_a_",
            "resp_a_x",
            "resp_a_-1",
            "resp_a_+1",
            "resp_a.b_1",
            "resp_a_1.",
            "resp_a_1.x",
            "resp__1",
            "call_a_1",
            "call_a_1_",
            "call_a_x_c",
            "resp_ä_1",
            "resp_a_99999999999999999999",
        ] {
            assert_eq!(ResponseId::read(text), None, "{text}");
            assert_eq!(ToolCallId::read(text), None, "{text}");
        }
    }

    #[test]
    fn place_is_continued_once() {
        let session = |id| SessionId::parse(id).unwrap();
        let prompt = ResponseId::prompt(&session("a"), 1);
        assert_eq!(prompt, ResponseId::prompt(&session("a"), 1));
        assert_ne!(prompt, ResponseId::prompt(&session("a"), 2));
        assert_ne!(prompt, ResponseId::prompt(&session("b"), 1));
    }
}
