//! Translates between the ids of a chat and those of the protocol. The ids say all that a front
//! needs to know, so any front can continue a chat.

use planck_common::{CallId, InputId, Seq, SessionId, id::is_id};
use uuid::Uuid;

/// The namespace of the ids that are derived from the ids of messages: a random constant.
const MESSAGES: Uuid = Uuid::from_u128(0x5b0e_0c6a_7c0d_4d59_9a3e_6f27_02f1_8e44);
/// The maximum length of an id of a message that is used as it is, so that a suffix fits.
const LONGEST: usize = 40;
/// The end of the id of a prompt that replaces an earlier one; the place of the replaced prompt in
/// the log follows.
const SUFFIX: &str = "_r";

/// Returns the id of the assistant's message that begins with a turn.
pub fn of_message(session: &SessionId, turn: u32) -> String {
    format!("{session}-{turn}")
}

/// Returns the turn with which an assistant's message begins.
pub fn turn_of(session: &SessionId, message: &str) -> Option<u32> {
    let turn = message.strip_prefix(session.as_str())?.strip_prefix('-')?;
    turn.parse().ok()
}

/// Returns the id of a request for approval. It holds the digest, so that an answer counts only for
/// what was shown.
pub fn of_approval(call: &CallId, digest: &str) -> String {
    format!("{call}:{digest}")
}

/// Returns the call and the digest of a request for approval.
pub fn approval(id: &str) -> Option<(CallId, &str)> {
    let (call, digest) = id.split_once(':')?;
    Some((CallId::parse(call).ok()?, digest))
}

/// Returns the name of a user's message in ids of prompts: its own id, or one that is derived from
/// it if its own cannot be used.
pub fn base(message: &str) -> String {
    if is_id(message) && message.len() <= LONGEST && base_of(message) == message {
        return message.to_owned();
    }
    let derived = Uuid::new_v5(&MESSAGES, message.as_bytes());
    derived.simple().to_string()
}

/// Returns the id of the prompt that a message makes, or, with `replaced`, of the prompt that takes
/// the place of an earlier one.
pub fn of_prompt(base: &str, replaced: Option<Seq>) -> Option<InputId> {
    let id = match replaced {
        Some(seq) => format!("{base}{SUFFIX}{seq}"),
        None => base.to_owned(),
    };
    InputId::parse(&id).ok()
}

/// Returns the name of the message in the id of a prompt.
pub fn base_of(prompt: &str) -> &str {
    let replaced = prompt
        .rsplit_once(SUFFIX)
        .filter(|(_, seq)| !seq.is_empty() && seq.bytes().all(|digit| digit.is_ascii_digit()));
    replaced.map_or(prompt, |(base, _)| base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_were_written() {
        let session = SessionId::parse("s-1").unwrap();
        assert_eq!(turn_of(&session, &of_message(&session, 7)), Some(7));
        for other in ["", "s-1", "s-1-", "s-1-x", "s-2-7", "s-17"] {
            assert_eq!(turn_of(&session, other), None, "{other}");
        }
        let call = CallId::parse("c1").unwrap();
        assert_eq!(approval(&of_approval(&call, "ab")), Some((call, "ab")));
        assert_eq!(approval("c1"), None);
        assert_eq!(approval("a b:ab"), None);
    }

    #[test]
    fn prompt_is_traced_to_its_message() {
        let long = "x".repeat(64);
        for message in ["msg-1", "1", "a_r5", "", "ä", "a.b", long.as_str()] {
            let base = base(message);
            for replaced in [None, Some(12), Some(Seq::MAX)] {
                let id = of_prompt(&base, replaced).unwrap();
                assert_eq!(base_of(&id), base, "{message} {replaced:?}");
            }
        }
        assert_eq!(base("msg-1"), "msg-1");
        assert_ne!(base("a_r5"), base("a"));
    }
}
