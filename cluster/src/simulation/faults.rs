//! The faults of a run and their times, which are drawn from the seed. All times are in virtual
//! milliseconds.

use std::ops::Range;

use super::{
    process::{ProcessEvent, ProcessState},
    world::{MACHINES, SimWorld, WorldEvent},
};

const FAULTS: usize = 5;
/// One in this many seeds has a crash as its only fault. In such a run, the checks limit how long
/// the declaration of death and the claims of the sessions may take.
const CALM: u64 = 8;
/// The number of seeds after which the choice of the pair of faults repeats.
const PAIRS: u64 = 16;
const FIRST: u64 = 8_000;
/// The latest time at which a pair of faults begins.
const PAIRS_UNTIL: u64 = 16_000;
const LAST: u64 = 26_000;
/// The time at which all faults are over, except outages around which agents are prompted.
const HEALED: u64 = 32_000;
/// The shortest and the longest outage around which agents are prompted.
const OUTAGE: Range<f64> = 100.0..30_000.0;
/// The time at which such an outage is over.
const OUTAGES_HEALED: u64 = 40_000;

#[derive(Debug, Clone)]
pub enum InjectedFault {
    /// The process is killed and started again.
    Crash { machine: usize },
    /// The process is stopped, and later continues with all messages that arrived meanwhile.
    Pause { machine: usize },
    /// A machine loses NATS but not SQL.
    Cut { machine: usize },
    /// Some machines reach each other, but neither the other machines nor the JetStream leader.
    Island { machines: Vec<usize> },
    /// NATS is unreachable.
    Outage,
    /// JetStream elects a leader, and the registry does not answer meanwhile. Heartbeats continue.
    Election,
    /// Watches are late.
    Lag { most: u64 },
    /// NATS restarts without the last writes that it acknowledged.
    LostTail { back_to: u64 },
    /// NATS restarts without the registry. The first node that misses the registry creates it
    /// again.
    Wiped,
    /// The database is unreachable.
    NoSql,
    /// A machine loses SQL.
    SqlCut { machine: usize },
    /// All machines but one lose SQL.
    SqlOnlyAt { machine: usize },
    /// The messages of a machine are delayed.
    Slow { machine: usize, most: u64 },
    /// A node hands its agents over and leaves. It is started again.
    Drain { machine: usize },
}

impl InjectedFault {
    pub fn schedule(world: &mut SimWorld, seed: u64) {
        if seed.is_multiple_of(CALM) {
            let machine = world.rng.usize(0..MACHINES);
            return Self::Crash { machine }.happens(world, 15_000, 20_000);
        }
        let pair = Self::pair(world, seed);
        let others = if pair.is_some() { 1 } else { FAULTS };
        for (fault, begin, lasts) in pair.into_iter().flatten() {
            fault.happens(world, begin, begin + lasts);
        }
        for _ in 0..others {
            let begin = world.rng.u64(FIRST..LAST);
            let (fault, lasts) = Self::draw(world, begin);
            let end = (begin + lasts).min(HEALED - 500);
            fault.happens(world, begin, end);
        }
        if world.has_turns {
            Self::outage(world);
        }
    }

    /// Draws an outage of NATS, of the database, or of both, and prompts around it. Short outages are
    /// as frequent as long ones.
    fn outage(world: &mut SimWorld) {
        let longer = world.rng.f64() * (OUTAGE.end / OUTAGE.start).ln();
        let lasts = (OUTAGE.start * longer.exp()) as u64;
        let begin = world.rng.u64(FIRST..=OUTAGES_HEALED - lasts);
        let end = begin + lasts;
        let faults: &[Self] = match world.rng.u32(0..4) {
            0 => &[Self::NoSql],
            1 => &[Self::Outage, Self::NoSql],
            _ => &[Self::Outage],
        };
        for fault in faults {
            fault.clone().happens(world, begin, end);
        }
        world.schedule_prompts_around(begin, end);
    }

    /// Returns two faults that affect the same decision, each with its start and its duration, or
    /// `None` if this seed has no pair. Five random faults seldom affect the same decision.
    fn pair(world: &mut SimWorld, seed: u64) -> Option<[(Self, u64, u64); 2]> {
        let rng = &mut world.rng;
        let at = rng.u64(FIRST..PAIRS_UNTIL);
        let machine = rng.usize(0..MACHINES);
        let other = (machine + rng.usize(1..MACHINES)) % MACHINES;
        let crash = (Self::Crash { machine }, at, rng.u64(4_000..8_000));
        let second = match seed % PAIRS {
            // The database becomes unreachable while the sessions of a dead node are claimed or
            // closed.
            1 | 9 => (Self::NoSql, at + rng.u64(2_300..3_300), rng.u64(500..3_000)),
            // A node loses NATS while the heartbeats of a peer begin to arrive again.
            3 => {
                let lasts = rng.u64(1_200..2_000);
                let cut_at = at + lasts - rng.u64(10..300);
                let cut = Self::Cut { machine: other };
                let first = (Self::Pause { machine }, at, lasts);
                return Some([first, (cut, cut_at, rng.u64(1_100..2_000))]);
            }
            // A node with members does not answer when the node of their orchestrator is declared
            // dead.
            5 | 13 => {
                let pause = Self::Pause { machine: other };
                (pause, at + rng.u64(1_200..3_000), rng.u64(4_000..9_000))
            }
            // A node loses NATS, and then the other nodes lose SQL. They claim its sessions late,
            // when only a long tool call still runs on it.
            7 | 15 => {
                let cut = (Self::Cut { machine }, at, rng.u64(9_000..12_000));
                let sql = Self::SqlOnlyAt { machine };
                return Some([cut, (sql, at + 1_500, rng.u64(4_000..7_000))]);
            }
            // A node dies after it handed its agents over.
            11 => {
                let drain = (Self::Drain { machine }, at, 4_000);
                let crash = Self::Crash { machine };
                return Some([drain, (crash, at + rng.u64(300..4_000), 4_000)]);
            }
            _ => return None,
        };
        Some([crash, second])
    }

    fn happens(self, world: &mut SimWorld, begin: u64, end: u64) {
        world.checks.disturb(&self, begin, end);
        world.at(begin, WorldEvent::Begin(self.clone()));
        world.at(end, WorldEvent::End(self));
    }

    fn draw(world: &mut SimWorld, begin: u64) -> (Self, u64) {
        let rng = &mut world.rng;
        let machine = rng.usize(0..MACHINES);
        match rng.u32(0..15) {
            0 | 1 => (Self::Crash { machine }, rng.u64(1_000..6_000)),
            2 | 3 => (Self::Pause { machine }, rng.u64(500..15_000)),
            4 => (Self::Cut { machine }, rng.u64(500..12_000)),
            5 => {
                let machines = (0..=rng.usize(0..3))
                    .map(|further| (machine + further) % MACHINES)
                    .collect();
                (Self::Island { machines }, rng.u64(3_000..16_000))
            }
            6 => (Self::Outage, rng.u64(200..9_000)),
            7 => (Self::Election, rng.u64(4_000..10_000)),
            8 => (
                Self::Lag {
                    most: rng.u64(1_000..11_000),
                },
                rng.u64(5_000..15_000),
            ),
            9 => (
                Self::LostTail {
                    back_to: begin - rng.u64(100..4_000),
                },
                rng.u64(500..1_500),
            ),
            10 => (Self::Wiped, rng.u64(500..1_500)),
            11 => (Self::NoSql, rng.u64(500..6_000)),
            12 => (Self::SqlCut { machine }, rng.u64(1_000..10_000)),
            13 => (Self::Drain { machine }, 4_000),
            _ => (
                Self::Slow {
                    machine,
                    most: rng.u64(50..800),
                },
                rng.u64(2_000..10_000),
            ),
        }
    }

    pub fn begin(self, world: &mut SimWorld) {
        world.trace(|| format!("{self:?} begins"));
        match self {
            Self::Crash { machine } => crash(world, machine),
            Self::Pause { machine } => pause(world, machine),
            Self::Cut { machine } => world.net.links[machine].is_cut = true,
            Self::Island { machines } => world.net.island = machines,
            Self::Outage => world.net.is_up = false,
            Self::Election => world.net.is_writable = false,
            Self::Lag { most } => world.net.watch_lag = most,
            Self::LostTail { back_to } => {
                world.net.is_up = false;
                world.registry.lose_tail(back_to);
            }
            Self::Wiped => {
                world.net.is_up = false;
                world.registry.wipe();
            }
            Self::NoSql => world.net.is_sql_up = false,
            Self::SqlCut { machine } => world.net.links[machine].is_sql_cut = true,
            Self::SqlOnlyAt { machine } => world.net.sql_only_at = Some(machine),
            Self::Slow { machine, most } => world.net.links[machine].slow = most,
            Self::Drain { machine } => {
                if let Some(process) = world.process_on(machine) {
                    world.tell(process, 0, ProcessEvent::Drain);
                }
            }
        }
    }

    pub fn end(self, world: &mut SimWorld) {
        world.trace(|| format!("{self:?} ends"));
        match self {
            Self::Crash { machine } => world.start(machine),
            Self::Pause { machine } => go_on(world, machine),
            Self::Cut { machine } => {
                world.net.links[machine].is_cut = false;
                reconnect(world, &[machine]);
            }
            Self::Island { machines } => {
                world.net.island.clear();
                reconnect(world, &machines);
            }
            Self::Outage | Self::LostTail { .. } | Self::Wiped => {
                world.net.is_up = true;
                reconnect(world, &[0, 1, 2, 3, 4]);
            }
            Self::Election => world.net.is_writable = true,
            Self::Lag { .. } => world.net.watch_lag = 5,
            Self::NoSql => world.net.is_sql_up = true,
            Self::SqlCut { machine } => world.net.links[machine].is_sql_cut = false,
            Self::SqlOnlyAt { .. } => world.net.sql_only_at = None,
            Self::Slow { machine, .. } => world.net.links[machine].slow = 0,
            Self::Drain { .. } => {}
        }
        world.after(400, WorldEvent::SendLate);
    }
}

/// Reconnects the clients of the machines at random times within 300 ms. A client misses what is
/// published before it is connected again.
fn reconnect(world: &mut SimWorld, machines: &[usize]) {
    for machine in machines {
        world.net.links[*machine].back_at = world.now + world.rng.u64(0..300);
        world.after(301, WorldEvent::Resync { machine: *machine });
    }
}

fn crash(world: &mut SimWorld, machine: usize) {
    let Some(process) = world.process_on(machine) else {
        return;
    };
    world.processes[process].state = ProcessState::Gone;
    world.processes[process].hosted.clear();
    world.reap(process);
    world.await_death(process);
}

fn pause(world: &mut SimWorld, machine: usize) {
    let Some(process) = world.process_on(machine) else {
        return;
    };
    world.processes[process].state = ProcessState::Paused;
    world.reap(process);
}

fn go_on(world: &mut SimWorld, machine: usize) {
    let Some(process) = world
        .process_on(machine)
        .filter(|at| world.processes[*at].state == ProcessState::Paused)
    else {
        return;
    };
    world.processes[process].state = ProcessState::Running;
    world.checks.spared(process, world.now);
    for event in std::mem::take(&mut world.processes[process].backlog) {
        world.tell(process, 0, event);
    }
}
