//! Fuzz targets: each decoder of foreign bytes, as a function of those bytes. libFuzzer drives them
//! under `fuzz/`; the test below runs the seeds and their mutations in every test run.

mod described;
mod served;

#[cfg(test)]
mod tests;

use planck_common::{
    decision::Decision,
    envelope::{Envelope, Head},
    message::Message,
    node::Heartbeat,
    registry::{MemberRecord, NodeRecord, StoreRecord, TeamRecord},
    subject::Address,
};
use serde::de::DeserializeOwned;

/// A target. It panics if the decoder accepts bytes that it must not accept, and has no other
/// visible effect.
pub type Target = fn(&[u8]);

/// Each target with its name, which is also the name of its folder of seeds.
pub const TARGETS: &[(&str, Target)] = &[
    ("stream", crate::llm::fuzz::stream),
    ("sidecar", crate::sidecar::fuzz::message),
    ("wire", wire),
    ("described", described::file),
    ("command", served::command),
    ("session", served::session_file),
];

/// Runs a target by its name. Returns whether it exists.
pub fn run(name: &str, bytes: &[u8]) -> bool {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    target.inspect(|(_, target)| target(bytes)).is_some()
}

/// Decodes the messages that other nodes, the registry and clients send.
fn wire(bytes: &[u8]) {
    let _address = std::str::from_utf8(bytes).ok().and_then(Address::parse);
    let _event = serde_json::from_slice::<Envelope>(bytes)
        .ok()
        .and_then(|envelope| envelope.event());
    read::<Envelope>(bytes);
    read::<Head>(bytes);
    read::<Heartbeat>(bytes);
    read::<Decision>(bytes);
    read::<Message>(bytes);
    read::<StoreRecord>(bytes);
    read::<NodeRecord>(bytes);
    read::<TeamRecord>(bytes);
    read::<MemberRecord>(bytes);
}

/// Checks that a value that can be read is unchanged after it was written and read again.
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
