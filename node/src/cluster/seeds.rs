//! Seeds that must hold, seeds that once did not, and seeds that must not hold when something is
//! left out of the design.

use super::simulation::{Flaws, run, run_all};

const SEEDS: u64 = 3_000;
/// Each planted fault is found among so many seeds.
const SEARCHED: u64 = 400;

fn found(flaws: Flaws, what: &str) {
    let violation = run_all(0..SEARCHED, flaws).expect_err("the planted fault was not found");
    assert!(violation.contains(what), "{violation}");
}

#[test]
fn nothing_is_violated() {
    let report =
        run_all(0..SEEDS, Flaws::default()).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(
        report.verdicts > SEEDS && report.tools > 50 * SEEDS && report.bounds > SEEDS / 10,
        "{report:?}"
    );
}

#[test]
fn seeds_that_once_went_wrong_hold() {
    let once = [
        (
            56,
            "a tool began while the reapers of a node that was convicted first and crashed then had not fired",
        ),
        (
            548,
            "a judge took for silence what it could not have heard itself: NATS had just gone",
        ),
        (
            1_397,
            "a tool began while a member's node, stopped too, had not answered the claimer",
        ),
        (
            4_495,
            "NATS came and went, and the gaps between a judge's echoes were each just allowed",
        ),
        (
            4_012,
            "the registry lost its tail and gave a revision out again",
        ),
        (
            643,
            "a verdict that a client held back was written when its convict was at work again",
        ),
        (
            11_991,
            "a node that came back wrote its record over its verdict, which had the same revision in a new registry",
        ),
        (
            3_374,
            "the same, of a convict that had heard itself all the while",
        ),
    ];
    for (seed, what) in once {
        run(seed, Flaws::default()).unwrap_or_else(|violation| panic!("{what}:\n{violation}"));
    }
}

#[test]
fn a_seed_plays_the_same_run() {
    let flawed = Flaws {
        no_fence: true,
        ..Flaws::default()
    };
    let violation = (1..20).find_map(|seed| Some((seed, run(seed, flawed).err()?)));
    let (seed, violation) = violation.expect("the planted fault was not found");
    assert_eq!(run(seed, flawed).err(), Some(violation));
}

#[test]
fn without_the_fence_stale_epochs_write() {
    found(
        Flaws {
            no_fence: true,
            ..Flaws::default()
        },
        "of a stale epoch",
    );
}

#[test]
fn without_the_batch_the_dead_convict() {
    found(
        Flaws {
            no_batch: true,
            ..Flaws::default()
        },
        "which is dead",
    );
}

#[test]
fn who_trusts_a_watch_takes_from_the_living() {
    found(
        Flaws {
            trust_watch: true,
            ..Flaws::default()
        },
        "which nobody convicted",
    );
}

#[test]
fn who_does_not_wait_for_the_stop_runs_tools_beside_the_last_lifes() {
    found(
        Flaws {
            no_stop: true,
            ..Flaws::default()
        },
        "still ran",
    );
}
