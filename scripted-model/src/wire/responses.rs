//! OpenAI's Responses API without storage: a request contains the whole conversation, with the
//! encrypted reasoning that the server returned earlier.
//!
//! The server remembers no reply. The id of a reasoning item encodes what followed it, and the id
//! of a call encodes the reasoning that preceded it.

mod input;
mod read;
mod tools;
mod write;

use super::{PreparedPart, PreparedReply, Wire, openai};

pub static WIRE: Wire = Wire {
    serves: |path| path == "/v1/responses",
    authorise: openai::authorise,
    read: |body, _| read::read(body),
    refuse: openai::refuse,
    write: write::write,
    error_event: write::error_event,
    content_type: "text/event-stream; charset=utf-8",
    call_id,
};

/// Returns a call's id. `thought` is the index of the reasoning before it in the reply.
fn call_id(serial: u64, index: usize, thought: Option<usize>) -> String {
    let of = thought
        .map(|thought| format!("_{thought:02x}"))
        .unwrap_or_default();
    format!("call_{serial:08x}{index:02x}{of}")
}

/// Returns the prefix of the id of the reasoning item that preceded a call, or `None` if no
/// reasoning preceded it or this server did not create the id.
fn thought_of_call(call_id: &str) -> Option<String> {
    let (call, thought) = call_id.strip_prefix("call_")?.split_once('_')?;
    let is_hex = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    (is_hex(call, 10) && is_hex(thought, 2))
        .then(|| format!("rs_{}{thought}", call.get(..8).unwrap_or_default()))
}

/// The kind of item that follows a reasoning item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Follower {
    Message,
    Call,
    Reasoning,
    Nothing,
}

impl Follower {
    const ALL: [(Self, char); 4] = [
        (Self::Message, 'm'),
        (Self::Call, 'c'),
        (Self::Reasoning, 'r'),
        (Self::Nothing, 'n'),
    ];

    fn of(speech: &PreparedReply, index: usize) -> Self {
        match speech.parts.get(index + 1) {
            Some(PreparedPart::Text(_)) => Self::Message,
            Some(PreparedPart::Call { .. }) => Self::Call,
            Some(PreparedPart::Thinking(_) | PreparedPart::Redacted(_)) => Self::Reasoning,
            None => Self::Nothing,
        }
    }

    /// Returns what followed the reasoning item with this id, or `None` if this server did not
    /// create the id.
    fn told(id: &str) -> Option<Self> {
        let end = id.strip_prefix("rs_")?.chars().nth(10)?;
        Self::ALL
            .iter()
            .find(|(_, letter)| *letter == end)
            .map(|(follower, _)| *follower)
    }
}

fn reasoning_id(speech: &PreparedReply, index: usize) -> String {
    let follower = Follower::of(speech, index);
    let letter = Follower::ALL
        .iter()
        .find(|(known, _)| *known == follower)
        .map_or('n', |(_, letter)| *letter);
    format!("rs_{:08x}{index:02x}{letter}", speech.serial)
}

/// Returns the encrypted content of a reasoning item, which depends only on the item's id.
fn ciphertext(id: &str) -> String {
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3) // FNV-1a
    });
    format!("gAAAAAB{hash:016x}==")
}
