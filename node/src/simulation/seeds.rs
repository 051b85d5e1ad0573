//! Plays seeds. No check may fail.
//!
//! `PLANCK_SIMULATION_SEED=N` plays only this seed. `PLANCK_SIMULATION_SEEDS=N` plays N seeds from there
//! on.

use super::{node::Outside, play::play};

/// The number of seeds that every run of the tests plays.
const SEEDS: u64 = 32;
/// The maximum number of lines that are shown of a run that failed.
const SHOWN: usize = 200;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok();
    text.map(|text| text.parse().unwrap())
}

#[test]
fn nothing_is_violated_by_the_first_seeds() {
    let outside = Outside::new();
    let named = number("PLANCK_SIMULATION_SEED");
    let usual = if named.is_some() { 1 } else { SEEDS };
    let count = number("PLANCK_SIMULATION_SEEDS").unwrap_or(usual);
    let first = named.unwrap_or(0);
    let mut calls = 0;
    for seed in first..first + count {
        let played = play(seed, &outside);
        calls += played.calls;
        if let Some(violation) = played.violation {
            let shown = played.trace.len().saturating_sub(SHOWN);
            let trace = played.trace[shown..].join("\n");
            panic!("seed {seed}: {violation}\n{trace}");
        }
    }
    assert!(
        count < SEEDS || calls as u64 > 8 * count,
        "the agents were idle: {calls} calls"
    );
}

#[test]
#[ignore = "shows that a seed can be played again; no promise rests on it: make test-all"]
fn seed_plays_the_same_run_again() {
    let outside = Outside::new();
    for seed in 0..4 {
        let (one, other) = (play(seed, &outside), play(seed, &outside));
        assert_eq!(one.trace, other.trace, "seed {seed}");
    }
}
