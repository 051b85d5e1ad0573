//! A cluster in one thread: the deciders of several nodes over a bus, a registry and a store that
//! misbehave as the real ones were measured to, in virtual time, with faults drawn from a seed. The
//! same seed plays the same run.

mod checks;
mod faults;
mod net;
mod process;
mod registry;
mod requests;
mod shell;
mod sql;
mod work;
mod world;

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use self::world::World;

const ENDS: u64 = 70_000;
/// How much of what happened last is shown of a run that went wrong.
const SHOWN: usize = 150;

/// Faults of the design, planted to see that they are found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Flaws {
    /// The store takes what stale epochs write.
    pub no_fence: bool,
    /// A verdict does not depend on its judge being alive.
    pub no_batch: bool,
    /// What a watch shows is taken for what is.
    pub trust_watch: bool,
    /// A claimer neither stops the team's last life nor waits before tools.
    pub no_stop: bool,
}

/// What happened in a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Report {
    pub events: u64,
    pub verdicts: u64,
    pub claims: u64,
    pub tools: u64,
    /// Crashes in calm times, whose bounds were held.
    pub bounds: u64,
    /// Tools that began while one of an earlier life still ran where nobody could reach it.
    pub overlaps: u64,
}

impl Report {
    fn and(self, other: Self) -> Self {
        Self {
            events: self.events + other.events,
            verdicts: self.verdicts + other.verdicts,
            claims: self.claims + other.claims,
            tools: self.tools + other.tools,
            bounds: self.bounds + other.bounds,
            overlaps: self.overlaps + other.overlaps,
        }
    }
}

/// Plays seeds on all cores: what happened in all of them, or what went wrong in one.
pub fn run_all(seeds: Range<u64>, flaws: Flaws) -> Result<Report, String> {
    let next = AtomicU64::new(seeds.start);
    let play = || {
        let mut sum = Report::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(sum);
            }
            sum = sum
                .and(run(seed, flaws).inspect_err(|_| next.store(seeds.end, Ordering::Relaxed))?);
        }
    };
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(play)).collect();
        let reports = threads.into_iter().map(|thread| thread.join().unwrap());
        reports
            .collect::<Result<Vec<_>, _>>()
            .map(|reports| reports.into_iter().fold(Report::default(), Report::and))
    })
}

/// Plays a seed; what was violated, and what led to it, if something was.
pub fn run(seed: u64, flaws: Flaws) -> Result<Report, String> {
    let mut world = play(seed, flaws, false);
    let Some(violation) = world.checks.violation.take() else {
        return Ok(Report {
            events: world.events,
            ..world.checks.report
        });
    };
    let trace = play(seed, flaws, true).traced();
    let shown = trace.len().saturating_sub(SHOWN);
    Err(format!(
        "seed {seed}: {violation}\n{}",
        trace[shown..].join("\n")
    ))
}

fn play(seed: u64, flaws: Flaws, traced: bool) -> World {
    let mut world = World::new(seed, flaws, traced);
    world.play(ENDS);
    if !world.checks.is_violated() {
        world.now = ENDS;
        world.check_end();
    }
    world
}
