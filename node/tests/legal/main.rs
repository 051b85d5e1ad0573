//! Sends random commands to the sessions of a complete node, whose process is simulated and may be
//! killed at any point. Checks three properties: the log is legal, each accepted prompt has one
//! outcome, and subscribers receive each agent's events in the order of the log. The node has a bus
//! in memory, a store on disk and a scripted model.
//!
//! A seed determines the commands, but not their timing. To repeat a seed that failed, set
//! `PLANCK_LEGAL_SEED=N`. `PLANCK_LEGAL_ROUNDS` sets how many times this seed is played, 1 by
//! default.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

mod checks;
mod moves;
mod node_process;
mod play;

use std::time::{Duration, Instant};

use play::Play;
use tokio::task::JoinSet;

/// How long the test keeps starting new seeds, unless `PLANCK_LEGAL_SEED` names one. It starts at
/// least [`AT_ONCE`] of them.
const BUDGET: Duration = Duration::from_secs(9);
/// The number of seeds that run concurrently. Each seed spends most of its time waiting.
const AT_ONCE: u64 = 8;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}"))
    })
}

async fn play(seed: u64) {
    Play::run(seed).await.unwrap_or_else(|why| {
        panic!("seed {seed}, to be played again with PLANCK_LEGAL_SEED={seed}: {why}")
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_stays_legal_whatever_is_done_to_a_session() {
    let (began, mut plays) = (Instant::now(), JoinSet::new());
    let (seeds, most) = match number("PLANCK_LEGAL_SEED") {
        Some(seed) => (seed..=seed, number("PLANCK_LEGAL_ROUNDS").unwrap_or(1)),
        None => (fastrand::u64(..1 << 32)..=u64::MAX, u64::MAX),
    };
    let mut begun = 0;
    for seed in seeds.clone().cycle() {
        let is_enough =
            begun == most || begun >= AT_ONCE && most == u64::MAX && began.elapsed() > BUDGET;
        if is_enough {
            break;
        }
        if plays.len() as u64 >= AT_ONCE {
            plays.join_next().await.unwrap().unwrap();
        }
        plays.spawn(play(seed));
        begun += 1;
    }
    while let Some(played) = plays.join_next().await {
        played.unwrap();
    }
    println!(
        "played {begun} times, from seed {} on, in {:?}",
        seeds.start(),
        began.elapsed()
    );
}
