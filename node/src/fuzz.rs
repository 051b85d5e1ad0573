//! Fuzz targets. Each passes bytes to a decoder of data from outside the process. libFuzzer runs
//! them in `fuzz/`, and a test runs the seeds and some mutations of them.

mod described;
mod served;

#[cfg(test)]
mod tests;

use planck_common::{
    decision::Decision,
    envelope::{Envelope, SessionHead},
    message::Message,
    node::Heartbeat,
    registry::{MemberRecord, NodeRecord, StoreRecord, TeamRecord},
    subject::Address,
};
use serde::de::DeserializeOwned;

/// A target passes the bytes to a decoder, and panics if the decoder has a defect.
pub type Target = fn(&[u8]);

/// The targets by name. The folder with the seeds of a target has the same name.
pub const TARGETS: &[(&str, Target)] = &[
    ("stream", planck_providers::fuzz::stream),
    ("sidecar", crate::sidecar::fuzz::message),
    ("wire", wire),
    ("described", described::file),
    ("command", served::command),
    ("session", served::session_file),
    ("chat", planck_http::fuzz::chat_body),
    ("ag_ui", planck_http::fuzz::run_body),
    ("openai", planck_http::fuzz::openai_bodies),
    ("mcp", planck_mcp::fuzz::message),
];

/// Runs the target with this name. Returns `false` if there is none.
pub fn run(name: &str, bytes: &[u8]) -> bool {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    target.inspect(|(_, target)| target(bytes)).is_some()
}

/// Decodes the bytes as each kind of message that other nodes, the registry and clients send.
fn wire(bytes: &[u8]) {
    let _address = std::str::from_utf8(bytes).ok().and_then(Address::parse);
    let _event = serde_json::from_slice::<Envelope>(bytes)
        .ok()
        .and_then(|envelope| envelope.event());
    read::<Envelope>(bytes);
    read::<SessionHead>(bytes);
    read::<Heartbeat>(bytes);
    read::<Decision>(bytes);
    read::<Message>(bytes);
    read::<StoreRecord>(bytes);
    read::<NodeRecord>(bytes);
    read::<TeamRecord>(bytes);
    read::<MemberRecord>(bytes);
}

/// Decodes the bytes as `T`. If that succeeds, asserts that a value that was encoded and decoded
/// again has the same encoding.
fn read<T: DeserializeOwned + serde::Serialize>(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<T>(bytes) else {
        return;
    };
    let Ok(written) = serde_json::to_vec(&value) else {
        return;
    };
    let again = serde_json::from_slice::<T>(&written).map(|again| serde_json::to_vec(&again));
    assert!(
        matches!(again, Ok(Ok(again)) if again == written),
        "written and read it is something else"
    );
}
