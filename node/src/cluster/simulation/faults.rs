//! The faults of a run and their times, drawn from the seed.

use super::{
    process::{ProcessEvent, ProcessState},
    world::{MACHINES, SimWorld, WorldEvent},
};

const FAULTS: usize = 5;
/// One of so many seeds has nothing but a crash. There the limits on the times until the death is
/// declared and the sessions are claimed are checked.
const CALM: u64 = 8;
const FIRST: u64 = 8_000;
const LAST: u64 = 26_000;
/// When all faults are over.
const HEALED: u64 = 32_000;

#[derive(Debug, Clone)]
pub enum InjectedFault {
    /// The process is killed and started again.
    Crash { machine: usize },
    /// The process is stopped and goes on later, with all that arrived meanwhile.
    Pause { machine: usize },
    /// A machine loses NATS, not SQL.
    Cut { machine: usize },
    /// Machines that reach each other but not the JetStream leader.
    Island { machines: Vec<usize> },
    /// NATS is away.
    Outage,
    /// JetStream elects a leader. Heartbeats go on.
    Election,
    /// Watches are late.
    Lag { most: u64 },
    /// NATS comes back without what it acknowledged last.
    LostTail { back_to: u64 },
    /// The registry is gone; the first node that misses it creates it again.
    Wiped,
    /// The database is away.
    NoSql,
    /// A machine loses SQL.
    SqlCut { machine: usize },
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
        for _ in 0..FAULTS {
            let begin = world.rng.u64(FIRST..LAST);
            let (fault, lasts) = Self::draw(world, begin);
            let end = (begin + lasts).min(HEALED - 500);
            fault.happens(world, begin, end);
        }
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
            Self::Slow { machine, .. } => world.net.links[machine].slow = 0,
            Self::Drain { .. } => {}
        }
        world.after(400, WorldEvent::SendLate);
    }
}

/// Clients come back one by one, and miss what is published before.
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
