//! A simulated cluster in one thread. It runs the product's decision logic for several nodes over a
//! simulated bus, registry and store, which fail as the real ones did in measurements. Time is
//! virtual, and the faults are drawn from a seed. The same seed always produces the same run.
//!
//! This module contains the world (network, clocks, stores, processes and agents), the faults and
//! the checks. Every decision is made by [`membership`](crate::membership),
//! [`cascade`](crate::cascade), [`claiming`](crate::claiming),
//! [`recovery`](crate::recovery) and the writes of [`registry`](crate::registry).

mod agents;
mod answers;
mod asked;
mod checks;
mod delivery;
mod drain;
mod end;
mod faults;
mod hosting;
mod inbox;
mod members;
mod membership;
mod net;
mod people;
mod process;
mod prompts;
mod registry;
mod requests;
mod sql;
mod sweep;
mod take_up;
mod teams;
mod tools;
mod waits;
mod world;

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use self::world::SimWorld;
use crate::planted::{PlantedFault, plant};

/// How long a run lasts, in milliseconds of virtual time.
const ENDS: u64 = 70_000;
/// The maximum number of trace lines that are shown of a run that failed.
const SHOWN: usize = 150;

/// The numbers of events in a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct SimReport {
    pub events: u64,
    /// Declarations that a node is dead.
    pub deaths: u64,
    /// Leads that were claimed.
    pub claims: u64,
    /// Agents that moved from a draining node.
    pub moves: u64,
    /// Sessions that were closed because their node died.
    pub closes: u64,
    /// Tool calls.
    pub tools: u64,
    /// Checks of the limits on time. Each crash without another fault around the same time causes
    /// two.
    pub bounds: u64,
    /// Tools of an earlier incarnation or epoch that still ran, on a machine that was cut off or
    /// disturbed, when a later tool started.
    pub overlaps: u64,
    /// Answers to waits that were acknowledged.
    pub answers: u64,
    /// Checks that an agent reads an acknowledged answer in time.
    pub answer_bounds: u64,
    /// Inputs that were acknowledged.
    pub inputs: u64,
    /// Checks that an agent reads an acknowledged input in time.
    pub input_bounds: u64,
    /// Turns that were aborted while their agents waited.
    pub aborts: u64,
    /// Checks that an abort ends a wait in time.
    pub abort_bounds: u64,
}

impl SimReport {
    fn and(self, other: Self) -> Self {
        Self {
            events: self.events + other.events,
            deaths: self.deaths + other.deaths,
            claims: self.claims + other.claims,
            moves: self.moves + other.moves,
            closes: self.closes + other.closes,
            tools: self.tools + other.tools,
            bounds: self.bounds + other.bounds,
            overlaps: self.overlaps + other.overlaps,
            answers: self.answers + other.answers,
            answer_bounds: self.answer_bounds + other.answer_bounds,
            inputs: self.inputs + other.inputs,
            input_bounds: self.input_bounds + other.input_bounds,
            aborts: self.aborts + other.aborts,
            abort_bounds: self.abort_bounds + other.abort_bounds,
        }
    }
}

/// Runs seeds on all cores. Returns the sum of their reports, or the error of one that failed.
pub fn run_all(seeds: Range<u64>, planted: Option<PlantedFault>) -> Result<SimReport, String> {
    let next = AtomicU64::new(seeds.start);
    let play = || {
        let mut sum = SimReport::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(sum);
            }
            let report = run(seed, planted);
            let stop = |_: &String| next.store(seeds.end, Ordering::Relaxed);
            let report = report.inspect_err(stop);
            sum = sum.and(report.map_err(|violation| (seed, violation))?);
        }
    };
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(play)).collect();
        let reports = threads.into_iter().map(|thread| thread.join().unwrap());
        let (mut sum, mut first) = (SimReport::default(), None::<(u64, String)>);
        for report in reports {
            match report {
                Ok(report) => sum = sum.and(report),
                // All seeds before one that was violated have been played, so the lowest of them
                // is the same in every run.
                Err(violation) => first = first.into_iter().chain([violation]).min(),
            }
        }
        first.map_or(Ok(sum), |(_, violation)| Err(violation))
    })
}

/// Runs a seed. Returns the report, or what was violated together with the end of the trace.
pub(crate) fn run(seed: u64, planted: Option<PlantedFault>) -> Result<SimReport, String> {
    plant(planted);
    let mut world = play(seed, false);
    let Some(violation) = world.checks.violation.take() else {
        return Ok(SimReport {
            events: world.events,
            ..world.checks.report
        });
    };
    let trace = play(seed, true).traced();
    let shown = trace.len().saturating_sub(SHOWN);
    Err(format!(
        "seed {seed}: {violation}\n{}",
        trace[shown..].join("\n")
    ))
}

fn play(seed: u64, is_traced: bool) -> SimWorld {
    let mut world = SimWorld::new(seed, is_traced);
    world.play(ENDS);
    if !world.checks.is_violated() {
        world.now = ENDS;
        world.check_end();
    }
    world
}
