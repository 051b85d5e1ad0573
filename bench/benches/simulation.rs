//! Runs seeds of the cluster simulation on all cores, and prints how many seeds it completed per
//! minute. The arguments are `[seeds] [first]`: the number of seeds and the first seed.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a bench ends at the first surprise"
)]

use std::{env, time::Instant};

use planck_cluster::simulation::run_all;

fn main() {
    // Cargo passes an additional option, which is skipped because it is not a number.
    let numbers: Vec<u64> = env::args().filter_map(|arg| arg.parse().ok()).collect();
    let (seeds, first) = (
        numbers.first().copied().unwrap_or(10_000),
        numbers.get(1).copied().unwrap_or(0),
    );
    let began = Instant::now();
    match run_all(first..first + seeds, None) {
        Ok(report) => {
            let seconds = began.elapsed().as_secs_f64();
            println!(
                "{seeds} seeds in {seconds:.1} s: {:.0} a minute; {report:?}",
                seeds as f64 * 60.0 / seconds
            );
        }
        Err(violation) => panic!("{violation}"),
    }
}
