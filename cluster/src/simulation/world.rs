//! The simulated world: one queue of events, and the state that the events change. All times are in
//! virtual milliseconds.

use std::{cmp::Reverse, collections::BinaryHeap};

use fastrand::Rng;
use planck_common::{AgentId, TeamId, spec::OnNodeDeath};

use super::{
    checks::Checks,
    faults::InjectedFault,
    inbox::{SimInput, SqlIndex},
    net::Net,
    people::{PersonAbort, PersonAnswer},
    process::{ProcessEvent, ProcessState, RegistryRequest, SimProcess, SqlCaller},
    registry::{SimRegistry, TeamKey},
    sql::{Sql, SqlStatement, StoredSession},
};
use crate::cascade::TeamIncarnation;

pub const MACHINES: usize = 5;
const SESSIONS: usize = 3;
const WORKERS: usize = 2;
/// In one of this many seeds, the last session is not to continue after its node's death.
const STOPPING: u64 = 4;
/// How long a client of the registry or of SQL waits for an answer, in milliseconds.
pub const DEADLINE: u64 = 2_000;
/// One in this many answers is lost.
const LOST_ANSWERS: u32 = 60;
/// The time from which no answer is lost, because the nodes could not recover from a loss before
/// the run ends.
const NONE_LOST_FROM: u64 = 45_000;
/// The time from which no client waits for an answer that was lost.
pub const ALL_ANSWERED_FROM: u64 = NONE_LOST_FROM + DEADLINE;
/// The number of bits of a queue key that hold the number of the event.
const ORDER_BITS: u32 = 32;
/// When the sessions are taken up, or prompted for the first time.
const PROMPTED_AT: u64 = 5_000;
/// One in this many calls asks first, in the seeds where agents ask.
const ASKED: u32 = 4;
/// The number of seeds in a block. In every second block, agents ask, and in half of these blocks
/// they also work in turns. The other blocks play the runs from before agents asked, so that a seed
/// that once went wrong still plays the same run.
const ASKING: u64 = 66;

#[derive(Debug)]
pub enum WorldEvent {
    Process {
        process: usize,
        event: ProcessEvent,
    },
    /// A request reaches the registry.
    Registry {
        process: usize,
        request: Box<RegistryRequest>,
        is_awaited: bool,
    },
    /// A statement reaches SQL.
    Sql {
        process: usize,
        statement: Box<SqlStatement>,
        caller: Box<SqlCaller>,
    },
    /// Each session is taken up by a random node.
    TakeUps,
    Begin(InjectedFault),
    End(InjectedFault),
    Start {
        machine: usize,
    },
    Check,
    /// Clients send what they held back.
    SendLate,
    /// The watch of a machine's process restarts.
    Resync {
        machine: usize,
    },
    /// The time has come by which a crashed process must be declared dead, or its sessions claimed.
    Due {
        process: usize,
        since: u64,
    },
    /// A person sends an answer, or sends it again, unless a reply to it has arrived.
    Person(PersonAnswer),
    /// The time has come by which an agent must have read an answer.
    AnswerDue(PersonAnswer),
    /// A person sends a prompt, or sends it again, unless a reply to it has arrived.
    Prompt(SimInput),
    /// The time has come by which an agent must have read an input.
    InputDue(SimInput),
    /// A person decides to abort a turn.
    AbortSent(PersonAbort),
    /// A person sends an abort, unless the turn no longer waits.
    Abort(PersonAbort),
    /// The time has come by which an abort must have ended a wait.
    AbortDue(PersonAbort),
}

pub struct SimWorld {
    pub now: u64,
    pub rng: Rng,
    pub net: Net,
    pub registry: SimRegistry,
    pub sql: Sql,
    pub processes: Vec<SimProcess>,
    pub checks: Checks,
    pub events: u64,
    /// Requests that a client sends when it is connected again, although it no longer waits for the
    /// answers.
    pub late: Vec<(usize, Box<RegistryRequest>)>,
    pub late_beats: Vec<(usize, u64)>,
    /// One in this many calls asks first, or `None` if no call does.
    pub asked_in: Option<u32>,
    /// Whether agents work in turns, which begin when they read an input. Otherwise they never rest.
    pub has_turns: bool,
    /// Whether agents give each other tasks and leave notes. Otherwise an agent is idle until a
    /// person prompts it.
    pub is_talking: bool,
    /// Whether people send prompts to the host of the agent, as they do to a single node. Otherwise
    /// they send them to any node.
    pub asks_host: bool,
    queue: EventQueue,
    trace: Option<Vec<String>>,
}

/// The future events, in the order of their times and then of their insertion. A key has the time
/// in its upper bits and the number of the event in its lower bits. The heap holds only keys and
/// slots, because events are large and a heap moves its elements often.
#[derive(Default)]
struct EventQueue {
    keys: BinaryHeap<Reverse<(u64, usize)>>,
    events: Vec<Option<WorldEvent>>,
    free: Vec<usize>,
    order: u64,
}

impl EventQueue {
    fn push(&mut self, at: u64, event: WorldEvent) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[slot] = Some(event);
        self.order += 1;
        self.keys
            .push(Reverse((at << ORDER_BITS | self.order, slot)));
    }

    fn pop(&mut self) -> Option<(u64, WorldEvent)> {
        let Reverse((key, slot)) = self.keys.pop()?;
        self.free.push(slot);
        Some((key >> ORDER_BITS, self.events[slot].take()?))
    }
}

impl SimWorld {
    pub fn new(seed: u64, is_traced: bool) -> Self {
        let has_turns = (seed / ASKING) % 4 == 2;
        let session = |at: usize| {
            let stops = at + 1 == SESSIONS && seed % STOPPING == 1;
            let on_node_death = if stops {
                OnNodeDeath::Stop
            } else {
                OnNodeDeath::Resume
            };
            StoredSession::new(WORKERS, on_node_death, !has_turns)
        };
        let mut world = Self {
            now: 0,
            rng: Rng::with_seed(seed),
            net: Net::new(MACHINES),
            registry: SimRegistry::default(),
            sql: Sql {
                sessions: (0..SESSIONS).map(session).collect(),
                index: None,
                now: 0,
            },
            processes: Vec::new(),
            checks: Checks::new(MACHINES),
            events: 0,
            late: Vec::new(),
            late_beats: Vec::new(),
            asked_in: (seed / ASKING).is_multiple_of(2).then_some(ASKED),
            has_turns,
            is_talking: false,
            asks_host: false,
            queue: EventQueue::default(),
            trace: is_traced.then(Vec::new),
        };
        for machine in 0..MACHINES {
            let at = world.rng.u64(0..1_000);
            world.at(at, WorldEvent::Start { machine });
        }
        if !has_turns {
            world.at(PROMPTED_AT, WorldEvent::TakeUps);
        }
        world.at(1_000, WorldEvent::Check);
        InjectedFault::schedule(&mut world, seed);
        if has_turns {
            world.sql.index = world.rng.bool().then(SqlIndex::default);
            (world.asks_host, world.is_talking) = match world.rng.u32(0..4) {
                0 => (false, false),
                1 => (false, true),
                _ => (true, false),
            };
            world.schedule_prompts(PROMPTED_AT);
        }
        world
    }

    /// Handles events until the end, or until a check fails.
    pub fn play(&mut self, end: u64) {
        while let Some((at, event)) = self.queue.pop() {
            if at > end || self.checks.is_violated() {
                break;
            }
            self.now = at;
            self.events += 1;
            self.happen(event);
        }
    }

    pub fn at(&mut self, at: u64, event: WorldEvent) {
        self.queue.push(at.max(self.now), event);
    }

    pub fn after(&mut self, delay: u64, event: WorldEvent) {
        self.at(self.now + delay, event);
    }

    pub fn tell(&mut self, process: usize, delay: u64, event: ProcessEvent) {
        self.after(delay, WorldEvent::Process { process, event });
    }

    /// Sends a message from one process to another. The message is lost if the network does not
    /// connect their machines.
    pub fn send(&mut self, from: usize, to: usize, event: ProcessEvent) {
        let (sender, receiver) = (self.processes[from].machine, self.processes[to].machine);
        if self.net.reaches(sender, receiver, self.now) {
            let delay = self.latency(sender) + self.latency(receiver);
            self.tell(to, delay, event);
        }
    }

    pub fn trace(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>6} {}", self.now, line()));
        }
    }

    pub fn traced(self) -> Vec<String> {
        self.trace.unwrap_or_default()
    }

    /// Returns how long a message to or from a machine takes, in milliseconds.
    pub fn latency(&mut self, machine: usize) -> u64 {
        let slow = self.net.slow(machine);
        1 + self.rng.u64(0..4) + if slow > 0 { self.rng.u64(0..slow) } else { 0 }
    }

    pub fn loses_answer(&mut self) -> bool {
        self.rng.u32(0..LOST_ANSWERS) == 0 && self.now < NONE_LOST_FROM
    }

    fn happen(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::Process { process, event } => self.deliver(process, event),
            WorldEvent::Registry {
                process,
                request,
                is_awaited,
            } => self.reach_registry(process, request, is_awaited),
            WorldEvent::Sql {
                process,
                statement,
                caller,
            } => self.reach_sql(process, statement, caller),
            WorldEvent::TakeUps => self.take_up_sessions(),
            WorldEvent::Begin(fault) => fault.begin(self),
            WorldEvent::End(fault) => fault.end(self),
            WorldEvent::Start { machine } => self.start(machine),
            WorldEvent::Check => {
                self.check();
                self.send_late();
                self.after(1_000, WorldEvent::Check);
            }
            WorldEvent::SendLate => self.send_late(),
            WorldEvent::Resync { machine } => {
                if let Some(process) = self.process_on(machine) {
                    self.resync_watch(process);
                }
            }
            WorldEvent::Due { process, since } => self.check_due(process, since),
            WorldEvent::Person(answer) => self.person_answers(answer),
            WorldEvent::AnswerDue(answer) => self.check_answer_due(answer),
            WorldEvent::Prompt(input) => self.person_prompts(input),
            WorldEvent::InputDue(input) => self.check_input_due(input),
            WorldEvent::AbortSent(abort) => self.await_abort(abort),
            WorldEvent::Abort(abort) => self.person_aborts(abort),
            WorldEvent::AbortDue(abort) => self.check_abort_due(abort),
        }
    }

    fn deliver(&mut self, process: usize, event: ProcessEvent) {
        match self.processes[process].state {
            ProcessState::Running => self.handle(process, event),
            ProcessState::Paused => self.processes[process].backlog.push(event),
            ProcessState::Gone => {}
        }
    }

    fn take_up_sessions(&mut self) {
        for session in 0..self.sql.sessions.len() {
            let process = self.rng.usize(0..self.processes.len());
            self.tell(process, 0, ProcessEvent::TakeUp { session });
        }
    }

    /// Returns the process on a machine, running or paused, or `None` if there is none.
    pub fn process_on(&self, machine: usize) -> Option<usize> {
        self.processes
            .iter()
            .rposition(|process| process.machine == machine && process.state != ProcessState::Gone)
    }

    pub fn start(&mut self, machine: usize) {
        if self.process_on(machine).is_some() {
            return;
        }
        let (number, ppm) = (self.processes.len(), self.rng.i64(-200..=200));
        self.processes
            .push(SimProcess::new(number, machine, self.now, ppm));
        self.trace(|| format!("n{number:03} starts on machine {machine}"));
        self.tell(number, 0, ProcessEvent::Wake { ticket: 0 });
        self.open_registry(number);
        self.schedule_sweep(number);
        let (read, compare) = (self.rng.u64(1_000..12_000), self.rng.u64(1_000..12_000));
        self.tell(number, read, ProcessEvent::ReadNodes);
        self.tell(number, compare, ProcessEvent::CompareTeams);
        self.resync_watch(number);
    }
}

pub fn team((session, incarnation): TeamKey) -> TeamIncarnation {
    TeamIncarnation {
        team: TeamId::parse(&format!("t{session}")).unwrap(),
        incarnation,
    }
}

pub fn agent_id(agent: usize) -> AgentId {
    AgentId::parse(&format!("a{agent}")).unwrap()
}
