//! Whatever clients do to sessions of a whole node, in whatever order, and wherever its process
//! ends: the log stays legal, each prompt that was accepted has one outcome, and who listens hears
//! each agent's events in the order of the log. The node has its bus in memory, a real store on the
//! disk and a model that plays scripts.
//!
//! A seed settles what is done, not how it interleaves. One that failed is played again with
//! `PLANCK_LEGAL_SEED=N`, as often as `PLANCK_LEGAL_ROUNDS` says.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

mod judge;
mod life;
mod moves;
mod play;

use std::time::{Duration, Instant};

use play::Play;
use tokio::task::JoinSet;

/// How long new seeds are begun.
const BUDGET: Duration = Duration::from_secs(9);
/// Most of a play is waiting, so some are played at once.
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
async fn whatever_is_done_to_a_session_its_log_stays_legal() {
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
