//! Plays the simulation: nothing is violated, and each planted fault is found.

use super::{
    planted::PlantedFault,
    simulation::{run, run_all},
};

const SEEDS: u64 = 3_000;
/// Each planted fault is found among so many seeds.
const SEARCHED: u64 = 400;

fn is_found(fault: PlantedFault, what: &str) {
    let violation = run_all(0..SEARCHED, Some(fault)).expect_err("the planted fault was not found");
    let first = violation.lines().next().unwrap_or_default();
    assert!(first.contains(what), "{first}");
}

#[test]
fn nothing_is_violated() {
    let report = run_all(0..SEEDS, None).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(
        report.deaths > SEEDS && report.tools > 50 * SEEDS && report.bounds > SEEDS / 10,
        "{report:?}"
    );
    assert!(
        report.moves > SEEDS / 10 && report.closes > SEEDS / 100,
        "{report:?}"
    );
}

#[test]
fn seed_plays_the_same_run_again() {
    let planted = Some(PlantedFault::ClaimWithoutStop);
    let found = (1..100).find_map(|seed| Some((seed, run(seed, planted).err()?)));
    let (seed, violation) = found.expect("the planted fault was not found");
    assert_eq!(run(seed, planted).err(), Some(violation));
}

#[test]
fn claim_at_any_epoch_is_found() {
    is_found(PlantedFault::ClaimAtAnyEpoch, "which nobody declared dead");
}

#[test]
fn claim_from_a_living_node_is_found() {
    is_found(
        PlantedFault::ClaimFromTheLiving,
        "which nobody declared dead",
    );
}

#[test]
fn claim_without_stopping_the_last_incarnation_is_found() {
    is_found(PlantedFault::ClaimWithoutStop, "still ran");
}

#[test]
fn death_without_the_observers_proof_is_found() {
    is_found(PlantedFault::DeathWithoutProof, "which is dead");
}

#[test]
fn work_without_a_young_proof_is_found() {
    is_found(PlantedFault::WorkWithoutProof, "without a young proof");
}

#[test]
fn sql_alone_keeps_members_out_of_dead_incarnations() {
    run_all(0..SEARCHED, Some(PlantedFault::NoMemberRecords)).unwrap();
}
