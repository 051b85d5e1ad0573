//! A node's process: its decision logic, the agents that it hosts, and the events that reach it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use planck_common::{NodeId, registry::NodeStanding, wait::WaitDecision};

use super::{
    inbox::{InputNumber, SimInput},
    people::{PersonAbort, PersonAnswer},
    registry::{SimRecord, SimTeam, TeamKey, nonce},
    sql::{AgentKey, CallNumber, ClaimedLease, SessionRow, SqlReply, SqlStatement},
};
use crate::{
    cascade::Cascade,
    claiming::TeamClaim,
    membership::{Membership, NodeIdentity, Revision, SeenNode},
    moment::Moment,
    recovery::{LedTeam, SweepSchedule},
    registry::DeathOf,
    times::ClusterTimes,
};

/// An event of a process. The event waits while the process is paused. Large values are boxed,
/// because most events are heartbeats and each is moved several times.
#[derive(Debug, Clone)]
pub enum ProcessEvent {
    Wake {
        ticket: u64,
    },
    Heartbeat {
        from: usize,
        seq: u64,
    },
    Answer {
        request: Box<RegistryRequest>,
        answer: RegistryAnswer,
    },
    Sql {
        statement: Box<SqlStatement>,
        caller: Box<SqlCaller>,
        reply: SqlReply,
    },
    /// A watch reports a node's record.
    Watched {
        peer: usize,
        record: SimRecord,
    },
    /// A node that claims a team asks this one to stop its agents of that team.
    StopTeam {
        asker: usize,
        team: TeamKey,
    },
    TeamStopped {
        from: usize,
        session: usize,
    },
    /// Another node asks this one to host an agent.
    Host(Box<HostOrder>),
    Hosted {
        order: Box<HostOrder>,
        done: bool,
    },
    /// The next step of an agent.
    Agent {
        agent: AgentKey,
        epoch: i64,
    },
    /// An agent is to read the answer to its wait.
    Look {
        agent: AgentKey,
    },
    /// The agents of a session that have no host are to be taken up.
    TakeUp {
        session: usize,
    },
    /// An agent is to read an input that was put into its inbox.
    Arrived {
        input: SimInput,
    },
    /// An agent that this node hosts reads its inbox once more, because the last read failed.
    Load {
        agent: AgentKey,
        epoch: i64,
    },
    /// An agent is to end its turn, in which it waits for an answer.
    Abort {
        abort: PersonAbort,
    },
    /// It is time to read the records of all nodes.
    ReadNodes,
    /// It is time to compare the teams on this node with the registry.
    CompareTeams,
    SweepDue {
        ticket: u64,
    },
    /// A claim took too long.
    ClaimOverdue {
        session: usize,
        ticket: u64,
    },
    /// Hand all agents over, and leave.
    Drain,
    /// Check which agents can be handed over.
    DrainLook,
}

/// The part of the process that sent a statement.
#[derive(Debug, Clone)]
pub enum SqlCaller {
    Agent,
    Leases,
    Sweep,
    TakeUp {
        session: usize,
        ticket: u64,
    },
    Host(HostOrder),
    /// A person who answers a wait through this process.
    Person(PersonAnswer),
    /// A person or an agent who puts an input through this process.
    Put(SimInput),
    /// A person who aborts a turn through this process.
    Abort(PersonAbort),
}

/// The part of the process that reads a team's record.
#[derive(Debug, Clone)]
pub enum TeamReader {
    Cascade,
    TakeUp { ticket: u64 },
    Host(HostOrder),
}

/// A request to the registry.
#[derive(Debug, Clone)]
pub enum RegistryRequest {
    Open,
    Prove {
        sent_at: Moment,
        expects: Revision,
    },
    WriteOwn {
        standing: NodeStanding,
        expects: Option<Revision>,
    },
    ReadNode {
        process: usize,
    },
    ReadNodes,
    ReadProof {
        process: usize,
        asked_at: Moment,
    },
    DeclareDead {
        process: usize,
        expects: Option<Revision>,
        own: Revision,
        silent: Duration,
        decided: u64,
    },
    ReadTeam {
        team: TeamKey,
        reader: TeamReader,
    },
    MarkDead {
        team: TeamKey,
        which: DeathOf,
    },
    CreateTeam {
        team: TeamKey,
    },
    /// Records that the lead is on this node now.
    MoveLead {
        order: HostOrder,
    },
    /// Writes an agent's record on condition that its team's record is at a revision.
    CreateMember {
        order: HostOrder,
        revision: Revision,
    },
}

#[derive(Debug, Clone)]
pub enum RegistryAnswer {
    Done(Revision),
    Refused,
    Opened(u64),
    Node(Option<SeenNode>),
    Nodes(Vec<(usize, SeenNode)>),
    Proof(Option<Revision>),
    Team(Option<(Revision, SimTeam)>),
    /// There is no registry.
    Missing,
    Unknown,
}

/// What an order asks a node to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPurpose {
    /// Claim a member.
    Member,
    /// Claim a member and stop it for good.
    LostMember,
    /// Claim the lead of a living team.
    MovedLead,
    /// Start the lead under a lease that was claimed.
    ClaimedLead(ClaimedLease),
}

/// A request to start an agent on a process, which may be the asker's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostOrder {
    pub agent: AgentKey,
    pub purpose: HostPurpose,
    /// Whether the last host of a member is gone. Always `false` for a lead.
    pub after_death: bool,
    /// The epoch of the lease when it was read.
    pub seen: i64,
    pub incarnation: i64,
    /// When tools may start, in the world's time.
    pub tools_from: u64,
    pub host: usize,
    pub asker: usize,
    pub ticket: u64,
    pub tries: u32,
}

impl HostOrder {
    pub fn team(&self) -> TeamKey {
        (self.agent.0, self.incarnation)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentStage {
    /// The agent has no turn and is in memory.
    Idle,
    /// The agent has no turn and is not in memory. Its node reads its inbox again if it is told of
    /// an input.
    Parked,
    /// The agent appends the start of a turn.
    Beginning(CallNumber),
    /// The agent appends the end of its turn.
    Finishing(CallNumber),
    Thinking,
    Starting(CallNumber),
    Running(CallNumber),
    Ending(CallNumber),
    Interrupting(CallNumber),
    /// The agent appends the wait of a call.
    Opening(CallNumber),
    /// The agent waits for an answer.
    Asking(CallNumber),
    /// The agent appends the end of a wait.
    Decided(CallNumber, WaitDecision),
    /// The agent appends the end of a wait and of its turn.
    Aborting(CallNumber),
}

#[derive(Debug, Clone)]
pub struct HostedAgent {
    pub incarnation: i64,
    pub epoch: i64,
    pub last_seq: usize,
    pub stage: AgentStage,
    /// When tools may start, in the world's time.
    pub tools_from: u64,
    /// The number of calls that are left in the turn.
    pub calls_left: u32,
    /// The inputs that the agent knows and that are not in a turn.
    pub queue: BTreeSet<InputNumber>,
    /// The inputs of the turn that the agent begins.
    pub taken: BTreeSet<InputNumber>,
    /// The note that the agent puts when its turn ends.
    pub note: Option<SimInput>,
}

/// A session that a process is taking up. The process takes it up only once at a time.
#[derive(Debug)]
pub struct TakeUp {
    pub ticket: u64,
    pub step: TakeUpStep,
    pub session: Option<SessionRow>,
    pub led: Option<LedTeam>,
    pub has_failed: bool,
}

#[derive(Debug)]
pub enum TakeUpStep {
    Reading,
    ReadingTeam,
    Claiming(Box<TeamClaim>),
    StartingLead,
    Closing,
    /// The members that are being started, each with its host.
    Members(BTreeMap<usize, usize>),
}

#[derive(Debug)]
pub struct SweepState {
    pub schedule: SweepSchedule,
    pub ticket: u64,
    /// The remaining sessions of the current sweep, or `None` between two sweeps.
    pub sessions: Option<VecDeque<usize>>,
    pub is_requested: bool,
    /// Whether this node may hold leases of agents that it does not host.
    pub may_miss: bool,
    /// The sessions that the next sweep reads although the index of SQLite may not list them.
    pub to_sweep: BTreeSet<usize>,
}

#[derive(Debug)]
pub struct DrainState {
    pub until: u64,
    /// The agents that are moving to another node, each with the ticket of its order and its state
    /// before the move.
    pub moving: BTreeMap<AgentKey, (u64, HostedAgent)>,
    pub left_at: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    Running,
    Paused,
    Gone,
}

#[derive(Debug)]
pub struct SimProcess {
    pub machine: usize,
    pub id: NodeId,
    pub state: ProcessState,
    /// The events that arrived while the process was paused.
    pub backlog: Vec<ProcessEvent>,
    clock: SkewedClock,
    pub membership: Membership,
    pub cascade: Cascade,
    /// Until when the process may begin new work.
    pub permit: Option<Moment>,
    pub hosted: BTreeMap<AgentKey, HostedAgent>,
    pub take_ups: BTreeMap<usize, TakeUp>,
    pub sweep: SweepState,
    pub drain: Option<DrainState>,
    pub notes: ProcessNotes,
}

#[derive(Debug, Default)]
pub struct ProcessNotes {
    pub tickets: u64,
    pub wake_ticket: u64,
    pub wake_at: Option<u64>,
    /// Since when each dead node was silent.
    pub quiet: BTreeMap<usize, Moment>,
    /// When the last heartbeat of each node arrived, or when the node became known.
    pub heard: BTreeMap<usize, u64>,
    pub watch_at: u64,
    pub is_opening: bool,
    /// When the newest accepted proof was sent, in the world's time.
    pub last_proof: u64,
    /// When the process last resumed after a suspension.
    pub resumed: u64,
    /// Since when the process has been suspended, if it is.
    pub suspended: Option<u64>,
    /// When the answer to a read of the process's leases was last lost.
    pub leases_missed: Option<u64>,
    /// When the process published its latest heartbeats.
    pub beats: VecDeque<u64>,
    /// When a heartbeat was last lost on the way to a peer.
    pub beat_lost: Option<u64>,
    /// The sessions that the process began to close because their node died.
    pub closing: BTreeSet<usize>,
}

/// A clock that runs slightly fast or slow (`ppm`) and is ahead of the world's time by `offset` ms.
#[derive(Debug, Clone, Copy)]
struct SkewedClock {
    ppm: i64,
    offset: u64,
}

impl SimProcess {
    pub fn new(number: usize, machine: usize, now: u64, ppm: i64) -> Self {
        let clock = SkewedClock {
            ppm,
            offset: 1_000_000 * number as u64,
        };
        let id = node_id(number);
        let identity = NodeIdentity {
            node: id.clone(),
            nonce: nonce(number),
        };
        let times = ClusterTimes::default();
        Self {
            machine,
            id,
            state: ProcessState::Running,
            backlog: Vec::new(),
            sweep: SweepState {
                schedule: SweepSchedule::new(times.sweep),
                ticket: 0,
                sessions: None,
                is_requested: false,
                may_miss: true,
                to_sweep: BTreeSet::new(),
            },
            membership: Membership::new(identity, times, clock.local(now)),
            clock,
            cascade: Cascade::default(),
            permit: None,
            hosted: BTreeMap::new(),
            take_ups: BTreeMap::new(),
            drain: None,
            notes: ProcessNotes::default(),
        }
    }

    pub fn local(&self, now: u64) -> Moment {
        self.clock.local(now)
    }

    pub fn world(&self, moment: Moment) -> u64 {
        self.clock.world(moment)
    }

    pub fn is_running(&self) -> bool {
        self.state == ProcessState::Running
    }

    pub fn next_ticket(&mut self) -> u64 {
        self.notes.tickets += 1;
        self.notes.tickets
    }
}

impl SkewedClock {
    fn local(self, now: u64) -> Moment {
        Moment::from_millis(
            self.offset + now.saturating_add_signed(now as i64 * self.ppm / 1_000_000),
        )
    }

    /// Returns the first millisecond of the world's time at which this clock has reached `moment`.
    fn world(self, moment: Moment) -> u64 {
        let local = moment.as_millis().saturating_sub(self.offset);
        let mut at = local
            .saturating_add_signed(-(local as i64 * self.ppm / 1_000_000))
            .saturating_sub(1);
        while self.local(at) < moment {
            at += 1;
        }
        at
    }
}

pub fn node_id(number: usize) -> NodeId {
    NodeId::parse(&format!("n{number:03}")).unwrap()
}

pub fn number(id: &str) -> usize {
    id[1..].parse().unwrap()
}
