//! A node's process: its deciders, what it hosts, and what happened to it while it did not run.

use std::{collections::BTreeMap, time::Duration};

use planck_common::{
    NodeId,
    registry::{NodeStanding, TeamEnd},
};

use super::{
    registry::{Entry, Key, Team, nonce},
    sql::{Call, Reply, Statement},
};
use crate::{
    cluster::{
        cascade::{Cascade, Life},
        claiming::Claim,
        membership::{Identity, Membership, Revision, Seen},
        moment::Moment,
    },
    config::Cluster,
};

/// What a process is told or reminded of; it waits while the process is paused.
#[derive(Debug, Clone)]
pub enum Local {
    Wake {
        ticket: u64,
    },
    Heartbeat {
        from: usize,
        seq: u64,
    },
    Answer {
        write: Write,
        outcome: Outcome,
    },
    Sql {
        statement: Statement,
        reply: Reply,
    },
    Watched {
        key: Key,
        entry: Option<Entry>,
    },
    /// A claimer asks to stop what runs of a team.
    StopTeam {
        asker: usize,
        session: usize,
        incarnation: i64,
    },
    TeamStopped {
        from: usize,
        session: usize,
    },
    /// The lead's node asks to start a member.
    Host {
        session: usize,
        agent: usize,
        seen: i64,
        incarnation: i64,
        revision: Revision,
        tools_from: u64,
    },
    /// The next step of an agent.
    Agent {
        session: usize,
        agent: usize,
        epoch: i64,
    },
    Sweep,
    /// It is this node's turn to claim.
    Claim {
        session: usize,
        seen: i64,
        incarnation: i64,
        from: Option<usize>,
        hosts: Vec<usize>,
    },
}

/// A request to the registry.
#[derive(Debug, Clone)]
pub enum Write {
    Prove {
        sent_at: Moment,
        expects: Revision,
    },
    Own {
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
    Convict {
        process: usize,
        expects: Option<Revision>,
        own: Revision,
        silent: Duration,
        decided: u64,
    },
    ReadTeam {
        life: Life,
    },
    MarkDead {
        life: Life,
        expects: Option<Revision>,
        end: TeamEnd,
    },
    CreateTeam {
        session: usize,
        incarnation: i64,
    },
    Bury {
        session: usize,
        incarnation: i64,
    },
    Member {
        session: usize,
        agent: usize,
        seen: i64,
        incarnation: i64,
        revision: Revision,
        tools_from: u64,
    },
}

#[derive(Debug, Clone)]
pub enum Outcome {
    Done(Revision),
    Refused,
    Node(Option<Seen>),
    Nodes(Vec<(usize, Seen)>, u64),
    Proof(Option<Revision>),
    Team(Option<(Revision, Team)>),
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Thinking,
    Starting(Call),
    Running(Call),
    Ending(Call),
    Interrupting(Call),
}

#[derive(Debug)]
pub struct Hosted {
    pub incarnation: i64,
    pub epoch: i64,
    pub last_seq: usize,
    pub stage: Stage,
    /// In the world's time.
    pub tools_from: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Running,
    Paused,
    Gone,
}

#[derive(Debug)]
pub struct Process {
    pub machine: usize,
    pub id: NodeId,
    pub state: State,
    /// What came while it was paused.
    pub backlog: Vec<Local>,
    clock: Clock,
    pub membership: Membership,
    pub cascade: Cascade,
    pub claims: BTreeMap<usize, Claim>,
    pub hosted: BTreeMap<(usize, usize), Hosted>,
    /// Revisions of the records of teams led from here.
    pub teams: BTreeMap<(usize, i64), Revision>,
    pub notes: Notes,
}

#[derive(Debug, Default)]
pub struct Notes {
    pub wake_ticket: u64,
    pub wake_at: Option<u64>,
    /// From when on dead nodes were silent.
    pub quiet: BTreeMap<usize, Moment>,
    /// Nodes as a watch shows them.
    pub watched: BTreeMap<usize, bool>,
    pub watch_at: u64,
    /// When the newest accepted proof was sent, in the world's time.
    pub last_proof: u64,
    /// When it was last told that it may work.
    pub resumed: u64,
    /// Members that wait for their lease, and from when on they may start tools.
    pub births: BTreeMap<(usize, usize), u64>,
    /// Which members were asked to be started, at which epoch and when.
    pub placed: BTreeMap<(usize, i64, usize), (i64, u64)>,
}

/// A clock that runs a little fast or slow and begins anywhere.
#[derive(Debug, Clone, Copy)]
struct Clock {
    ppm: i64,
    offset: u64,
}

impl Process {
    pub fn new(number: usize, machine: usize, now: u64, ppm: i64) -> Self {
        let clock = Clock {
            ppm,
            offset: 1_000_000 * number as u64,
        };
        let id = node_id(number);
        let identity = Identity {
            node: id.clone(),
            nonce: nonce(number),
        };
        Self {
            machine,
            id,
            state: State::Running,
            backlog: Vec::new(),
            membership: Membership::new(identity, Cluster::default(), clock.local(now)),
            clock,
            cascade: Cascade::default(),
            claims: BTreeMap::new(),
            hosted: BTreeMap::new(),
            teams: BTreeMap::new(),
            notes: Notes::default(),
        }
    }

    pub fn local(&self, now: u64) -> Moment {
        self.clock.local(now)
    }

    pub fn world(&self, moment: Moment) -> u64 {
        self.clock.world(moment)
    }

    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }
}

impl Clock {
    fn local(self, now: u64) -> Moment {
        Moment::from_millis(
            self.offset + now.saturating_add_signed(now as i64 * self.ppm / 1_000_000),
        )
    }

    /// The first millisecond of the world at which this clock shows `moment`.
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
