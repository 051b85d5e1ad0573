//! The world: one queue of what happens next, in virtual milliseconds, and everything it happens
//! to.

use std::{cmp::Reverse, collections::BinaryHeap};

use fastrand::Rng;
use planck_common::{SessionId, TeamId};

use super::{
    Flaws,
    checks::Checks,
    faults::Fault,
    net::Net,
    process::{Local, Process, State, Write},
    registry::Registry,
    sql::{Session, Sql, Statement},
};
use crate::cluster::cascade::Life;

pub const MACHINES: usize = 5;
const SESSIONS: usize = 3;
const WORKERS: usize = 2;
/// How long a client of the registry or of SQL waits for an answer.
pub const DEADLINE: u64 = 2_000;
/// Of so many answers one is lost.
const LOST_ANSWERS: u32 = 60;
const NONE_LOST_FROM: u64 = 45_000;

#[derive(Debug)]
pub enum Event {
    Local {
        process: usize,
        local: Local,
    },
    /// A request reaches the registry, or SQL.
    Registry {
        process: usize,
        write: Write,
        awaited: bool,
    },
    Sql {
        process: usize,
        statement: Statement,
    },
    /// The first work is given out.
    Sessions,
    Begin(Fault),
    End(Fault),
    Start {
        machine: usize,
    },
    Check,
    /// Clients send what they had queued.
    Late,
    /// A machine's watches begin anew.
    Resync {
        machine: usize,
    },
    /// The verdict about a process, and what follows of it, are due.
    Due {
        process: usize,
        since: u64,
    },
}

pub struct World {
    pub now: u64,
    pub rng: Rng,
    pub net: Net,
    pub registry: Registry,
    pub sql: Sql,
    pub processes: Vec<Process>,
    pub checks: Checks,
    pub flaws: Flaws,
    pub events: u64,
    /// Requests that a client sends when it is connected again, though it has given them up.
    pub late: Vec<(usize, Write)>,
    pub late_beats: Vec<(usize, u64)>,
    queue: BinaryHeap<Reverse<Entry>>,
    order: u64,
    trace: Option<Vec<String>>,
}

struct Entry {
    at: u64,
    order: u64,
    event: Event,
}

impl World {
    pub fn new(seed: u64, flaws: Flaws, traced: bool) -> Self {
        let mut world = Self {
            now: 0,
            rng: Rng::with_seed(seed),
            net: Net::new(MACHINES),
            registry: Registry::default(),
            sql: Sql {
                sessions: (0..SESSIONS).map(|_| Session::new(WORKERS)).collect(),
            },
            processes: Vec::new(),
            checks: Checks::new(MACHINES),
            flaws,
            events: 0,
            late: Vec::new(),
            late_beats: Vec::new(),
            queue: BinaryHeap::new(),
            order: 0,
            trace: traced.then(Vec::new),
        };
        for machine in 0..MACHINES {
            let at = world.rng.u64(0..1_000);
            world.at(at, Event::Start { machine });
        }
        world.at(5_000, Event::Sessions);
        world.at(1_000, Event::Check);
        Fault::schedule(&mut world, seed);
        world
    }

    /// Plays until the end, or until something is violated.
    pub fn play(&mut self, end: u64) {
        while let Some(Reverse(Entry { at, event, .. })) = self.queue.pop() {
            if at > end || self.checks.is_violated() {
                break;
            }
            self.now = at;
            self.events += 1;
            self.happen(event);
        }
    }

    pub fn at(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse(Entry {
            at: at.max(self.now),
            order: self.order,
            event,
        }));
    }

    pub fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    pub fn tell(&mut self, process: usize, delay: u64, local: Local) {
        self.after(delay, Event::Local { process, local });
    }

    pub fn trace(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>6} {}", self.now, line()));
        }
    }

    pub fn traced(self) -> Vec<String> {
        self.trace.unwrap_or_default()
    }

    /// What a message takes on its way to or from a machine.
    pub fn latency(&mut self, machine: usize) -> u64 {
        let slow = self.net.slow(machine);
        1 + self.rng.u64(0..4) + if slow > 0 { self.rng.u64(0..slow) } else { 0 }
    }

    /// Not towards the end: what was lost last could not be made up for.
    pub fn loses_answer(&mut self) -> bool {
        self.rng.u32(0..LOST_ANSWERS) == 0 && self.now < NONE_LOST_FROM
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Local { process, local } => self.local(process, local),
            Event::Registry {
                process,
                write,
                awaited,
            } => self.reach_registry(process, write, awaited),
            Event::Sql { process, statement } => self.reach_sql(process, statement),
            Event::Sessions => self.begin_sessions(),
            Event::Begin(fault) => fault.begin(self),
            Event::End(fault) => fault.end(self),
            Event::Start { machine } => self.start(machine),
            Event::Check => {
                self.check();
                self.after(1_000, Event::Check);
            }
            Event::Late => self.send_late(),
            Event::Resync { machine } => {
                if let Some(process) = self.process_on(machine) {
                    self.resync_watch(process);
                }
            }
            Event::Due { process, since } => self.check_verdict(process, since),
        }
    }

    fn local(&mut self, process: usize, local: Local) {
        match self.processes[process].state {
            State::Running => self.handle(process, local),
            State::Paused => self.processes[process].backlog.push(local),
            State::Gone => {}
        }
    }

    /// The process that runs on a machine.
    pub fn process_on(&self, machine: usize) -> Option<usize> {
        self.processes
            .iter()
            .rposition(|process| process.machine == machine && process.state != State::Gone)
    }

    pub fn start(&mut self, machine: usize) {
        if self.process_on(machine).is_some() {
            return;
        }
        let (number, ppm) = (self.processes.len(), self.rng.i64(-200..=200));
        self.processes
            .push(Process::new(number, machine, self.now, ppm));
        self.trace(|| format!("n{number:03} starts on machine {machine}"));
        self.tell(number, 0, Local::Wake { ticket: 0 });
        let sweep = self.rng.u64(1_000..12_000);
        self.tell(number, sweep, Local::Sweep);
        self.resync_watch(number);
    }
}

pub fn life(session: usize, incarnation: i64) -> Life {
    Life {
        team: TeamId::parse(&format!("t{session}")).unwrap(),
        incarnation,
    }
}

pub fn session_id(session: usize) -> SessionId {
    SessionId::parse(&format!("s{session}")).unwrap()
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}
