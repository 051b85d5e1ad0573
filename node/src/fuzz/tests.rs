//! Runs every seed, and mutations with changed, cut, doubled and mixed bytes, with a fixed random
//! seed.

use std::{fs, path::PathBuf};

use super::TARGETS;

/// The number of mutations of each seed of most targets. These mutations find simple errors, and
/// `make fuzz` searches deeper.
const MUTATIONS: usize = 150;
/// The number of mutations of each seed of the target `session`. It is smaller because each run
/// opens a session file from the disk.
const DAMAGES: usize = 30;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/seeds")
        .join(target);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no seeds in {}", folder.display());
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

fn mutated(random: &mut fastrand::Rng, seeds: &[Vec<u8>], seed: &[u8]) -> Vec<u8> {
    const TOKENS: &[&[u8]] = &[
        b"\0",
        b"\"",
        b"{",
        b"}",
        b"[",
        b"]",
        b"\\u0000",
        b"\xff",
        b"\n\n",
        b"data: ",
        b"null",
        b"-1",
        b"1e999",
        b"9223372036854775808",
    ];
    let mut bytes = seed.to_vec();
    for _ in 0..random.usize(1..=4) {
        let at = random.usize(0..=bytes.len());
        match random.u8(0..6) {
            0 if at < bytes.len() => bytes[at] = random.u8(..),
            1 => bytes.truncate(at),
            2 => drop(bytes.splice(at..at, random.choice(TOKENS).unwrap().iter().copied())),
            3 => drop(bytes.drain(at..(at + random.usize(0..16)).min(bytes.len()))),
            4 => bytes.extend_from_within(..at),
            _ => {
                let other = random.choice(seeds).unwrap();
                let from = random.usize(0..=other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
        bytes.truncate(64 * 1024);
    }
    bytes
}

/// Runs every seed of a target and its mutations.
fn play(name: &str, mutations: usize) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).unwrap();
    let (seeds, mut random) = (seeds(name), fastrand::Rng::with_seed(7));
    for seed in &seeds {
        target(seed);
        for _ in 0..mutations {
            target(&mutated(&mut random, &seeds, seed));
        }
    }
}

macro_rules! each_target {
    ($($test:ident: $name:literal, $mutations:ident;)+) => {
        $(#[test]
        fn $test() {
            play($name, $mutations);
        })+

        #[test]
        fn every_target_is_run() {
            assert_eq!([$($name),+].as_slice(), TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        }
    };
}

each_target! {
    streams_of_providers_decode_or_fail: "stream", MUTATIONS;
    messages_of_sidecars_decode_or_fail: "sidecar", MUTATIONS;
    records_and_events_decode_or_fail: "wire", MUTATIONS;
    described_tools_teams_and_settings_load_or_fail: "described", MUTATIONS;
    commands_are_answered: "command", MUTATIONS;
    damaged_session_files_open_or_fail: "session", DAMAGES;
    bodies_of_the_ai_sdk_decode_or_fail: "chat", MUTATIONS;
    bodies_of_ag_ui_decode_or_fail: "ag_ui", MUTATIONS;
    bodies_of_openai_clients_decode_or_fail: "openai", MUTATIONS;
    messages_of_mcp_servers_decode_or_fail: "mcp", MUTATIONS;
}
