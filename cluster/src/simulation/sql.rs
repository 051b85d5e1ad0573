//! The simulated store, with leases and a log for each session. Its atomic statements have the
//! conditions of the real ones.

use std::collections::BTreeSet;

use planck_common::{spec::OnNodeDeath, wait::WaitDecision};

use super::{
    inbox::{InboxChange, InboxRow, InputNumber, InputState, SimInput, SqlIndex},
    waits::SimWait,
};
use crate::planted::{PlantedFault, is_planted};

/// An agent, as the number of its session and its place in the team. The lead has place 0.
pub type AgentKey = (usize, usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRow {
    pub node: Option<usize>,
    pub epoch: i64,
    pub last_seq: usize,
    /// Whether the agent was stopped for good.
    pub is_stopped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogRowKind {
    /// The start of a turn, which consumes the inputs of the turn.
    TurnStart,
    TurnEnd,
    ToolStart,
    ToolEnd,
    /// The answer that a new host gives to a call that was open.
    Interrupted,
    /// The agent asks before a call.
    WaitOpened,
    /// The end of a wait and the start of its call, which one append writes.
    Allowed,
    /// The end of a wait and the end of its call, which one append writes.
    NotAllowed,
    /// The end of a wait, of its call and of the turn, which one append writes for an abort.
    Aborted,
}

/// The number of a call, or of a row that starts or ends a turn. It is unique in a run.
pub type CallNumber = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRow {
    pub agent: usize,
    pub epoch: i64,
    pub kind: LogRowKind,
    pub call: CallNumber,
}

#[derive(Debug)]
pub struct StoredSession {
    pub row: SessionRow,
    pub log: Vec<LogRow>,
    pub waits: Vec<SimWait>,
    pub inputs: Vec<InboxRow>,
    /// Whether the agents work all the time and not in turns.
    pub never_rests: bool,
}

/// A session with its agents' leases, as a statement returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    pub is_open: bool,
    pub on_node_death: OnNodeDeath,
    pub incarnation: i64,
    /// The leases of the agents, of which the first is the lead's.
    pub leases: Vec<LeaseRow>,
}

/// A claim of an agent's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseClaim {
    pub agent: AgentKey,
    /// The epoch of the lease when it was read.
    pub seen: i64,
    pub me: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SqlStatement {
    Append {
        session: usize,
        row: LogRow,
        prev: usize,
        inboxes: InboxChange,
    },
    /// Claims the lead's lease. With `after_death` the incarnation rises.
    ClaimLead {
        claim: LeaseClaim,
        after_death: bool,
    },
    /// Claims a member's lease, on condition of the lead's incarnation.
    ClaimMember {
        claim: LeaseClaim,
        incarnation: i64,
    },
    ReadLead {
        session: usize,
    },
    ReadSession {
        session: usize,
    },
    /// Expires waits. Reads the agents whose holder is none of the living nodes, those with an unread
    /// input or an answered wait, and, with `held_by`, the leases that a node holds. On SQLite, the
    /// sessions in `to_sweep` are read although the index does not list them.
    Sweep {
        alive: Vec<usize>,
        held_by: Option<usize>,
        to_sweep: BTreeSet<usize>,
    },
    /// Reads the leases that a node holds. `here` are the agents that it hosted when it asked.
    OwnLeases {
        asked_at: u64,
        me: usize,
        here: Vec<(AgentKey, i64)>,
    },
    /// Closes the session and releases its leases, under the lead's lease.
    Close {
        session: usize,
        epoch: i64,
    },
    /// Releases a lease. With `for_good`, also marks its agent as stopped for good.
    Release {
        agent: AgentKey,
        epoch: i64,
        for_good: bool,
    },
    /// Stores the answer of a person to a wait.
    Answer {
        session: usize,
        call: CallNumber,
        decision: WaitDecision,
    },
    /// Reads the answer that an agent has not read yet.
    ReadAnswer {
        agent: AgentKey,
    },
    Put {
        input: SimInput,
    },
    /// Adds an input to the index of SQLite.
    Announce {
        input: SimInput,
        node: Option<usize>,
        lead: Option<usize>,
    },
    /// Reads the unread inputs of an agent. `is_load` says that a node loads the agent.
    ReadInbox {
        agent: AgentKey,
        epoch: i64,
        is_load: bool,
    },
}

/// A call that has a start and no end in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenCall {
    Started(CallNumber),
    /// The call waits for an answer.
    Asked(CallNumber),
}

/// The work that an agent's log left open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenWork {
    pub call: Option<OpenCall>,
    pub is_in_turn: bool,
}

/// A lease that was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimedLease {
    pub epoch: i64,
    pub last_seq: usize,
    pub incarnation: i64,
    pub open: OpenWork,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SqlReply {
    Appended {
        seq: usize,
    },
    /// The writer no longer holds the lease, or `prev` is not the agent's last row.
    Stale,
    /// These inputs are not unread any more, so the row that was to consume them is not written.
    InputsGone(Vec<InputNumber>),
    Claimed(ClaimedLease),
    Refused,
    Session(SessionRow),
    Strays {
        strays: Vec<(AgentKey, Option<usize>)>,
        held: Option<Vec<AgentKey>>,
    },
    Held(Vec<(AgentKey, i64)>),
    /// The answer is stored. `node` holds the lease of the agent.
    Answered {
        node: Option<usize>,
    },
    /// The wait takes no answer. It may have one, which is the stored one.
    AnsweredBefore(Option<WaitDecision>),
    Unread(Option<(CallNumber, WaitDecision)>),
    /// The input is in the inbox. `known` is its state if it was there before. `node` and `lead` hold
    /// the leases of the agent and of the lead.
    Put {
        node: Option<usize>,
        lead: Option<usize>,
        known: Option<InputState>,
    },
    Inbox(Vec<InputNumber>),
    Done,
    /// The answer was lost, or SQL is unreachable.
    Unknown,
}

#[derive(Debug, Default)]
pub struct Sql {
    pub sessions: Vec<StoredSession>,
    /// The index of SQLite, or `None` if the store is Postgres.
    pub index: Option<SqlIndex>,
    /// The clock of the database, which decides whether a wait has expired.
    pub now: u64,
}

impl Sql {
    pub fn run(&mut self, statement: &SqlStatement) -> SqlReply {
        match statement {
            SqlStatement::Append {
                session,
                row,
                prev,
                inboxes,
            } => {
                let note = inboxes.note.iter();
                note.for_each(|note| self.announce(note));
                self.sessions[*session].append(*row, *prev, inboxes, self.now)
            }
            SqlStatement::ClaimLead { claim, after_death } => {
                self.index_lease(claim.agent.0, claim.me);
                self.sessions[claim.agent.0].claim_lead(claim, *after_death)
            }
            SqlStatement::ClaimMember { claim, incarnation } => {
                self.index_lease(claim.agent.0, claim.me);
                self.sessions[claim.agent.0].claim_member(claim, *incarnation)
            }
            SqlStatement::ReadLead { session } | SqlStatement::ReadSession { session } => {
                SqlReply::Session(self.sessions[*session].row.clone())
            }
            SqlStatement::Sweep {
                alive,
                held_by,
                to_sweep,
            } => self.sweep(alive, *held_by, to_sweep),
            SqlStatement::OwnLeases { me, .. } => SqlReply::Held(self.held(*me).collect()),
            SqlStatement::Close { session, epoch } => self.sessions[*session].close(*epoch),
            SqlStatement::Release {
                agent,
                epoch,
                for_good,
            } => self.sessions[agent.0].release(agent.1, *epoch, *for_good),
            SqlStatement::Answer {
                session,
                call,
                decision,
            } => self.sessions[*session].answer(*call, *decision, self.now),
            SqlStatement::ReadAnswer { agent } => {
                SqlReply::Unread(self.sessions[agent.0].unread_answer(agent.1))
            }
            SqlStatement::Put { input } => self.put(input),
            SqlStatement::Announce { input, .. } => {
                self.announce(input);
                SqlReply::Done
            }
            SqlStatement::ReadInbox { agent, .. } => {
                SqlReply::Inbox(self.sessions[agent.0].unread(agent.1).collect())
            }
        }
    }

    fn sweep(
        &mut self,
        alive: &[usize],
        held_by: Option<usize>,
        to_sweep: &BTreeSet<usize>,
    ) -> SqlReply {
        let now = self.now;
        let sessions = self.sessions.iter_mut();
        sessions.for_each(|session| session.expire_waits(now));
        let mut strays = self.strays(alive);
        strays.retain(|(agent, _)| self.is_listed(agent.0, alive, to_sweep));
        self.tidy_index(alive, &strays);
        SqlReply::Strays {
            strays,
            held: held_by.map(|me| self.held(me).map(|(agent, _)| agent).collect()),
        }
    }

    pub fn row(&self, agent: AgentKey) -> &LeaseRow {
        &self.sessions[agent.0].row.leases[agent.1]
    }

    fn rows(&self) -> impl Iterator<Item = (AgentKey, &LeaseRow)> {
        self.sessions.iter().enumerate().flat_map(|(at, session)| {
            let leases = session.row.leases.iter().enumerate();
            leases.map(move |(agent, lease)| ((at, agent), lease))
        })
    }

    fn strays(&self, alive: &[usize]) -> Vec<(AgentKey, Option<usize>)> {
        let has_answer = |agent: &AgentKey| {
            let is_skipped = is_planted(PlantedFault::AnsweredWaitsUnswept);
            !is_skipped && self.sessions[agent.0].has_answer(agent.1)
        };
        let is_stray = |(agent, lease): &(AgentKey, &LeaseRow)| {
            let is_held_elsewhere = lease.node.is_some_and(|node| !alive.contains(&node));
            let has_input = || self.sessions[agent.0].unread(agent.1).next().is_some();
            is_held_elsewhere || !lease.is_stopped && (has_input() || has_answer(agent))
        };
        let strays = self.rows().filter(is_stray);
        strays.map(|(agent, lease)| (agent, lease.node)).collect()
    }

    fn held(&self, node: usize) -> impl Iterator<Item = (AgentKey, i64)> {
        let held = self
            .rows()
            .filter(move |(_, lease)| lease.node == Some(node));
        held.map(|(agent, lease)| (agent, lease.epoch))
    }
}

impl StoredSession {
    /// Creates a session. Agents that never rest have an input from the beginning.
    pub fn new(workers: usize, on_node_death: OnNodeDeath, never_rests: bool) -> Self {
        let lease = LeaseRow {
            node: None,
            epoch: 0,
            last_seq: 0,
            is_stopped: false,
        };
        let input = |agent| InboxRow {
            number: 0,
            agent,
            state: InputState::Unread,
        };
        let inputs = (0..=workers).filter(|_| never_rests).map(input);
        let row = SessionRow {
            is_open: true,
            on_node_death,
            incarnation: 0,
            leases: vec![lease; workers + 1],
        };
        Self {
            row,
            log: Vec::new(),
            waits: Vec::new(),
            inputs: inputs.collect(),
            never_rests,
        }
    }

    fn append(&mut self, row: LogRow, prev: usize, inboxes: &InboxChange, now: u64) -> SqlReply {
        let lease = self.row.leases[row.agent];
        let is_mine = lease.epoch == row.epoch;
        if is_mine && lease.last_seq == prev {
            let gone = self.gone(inboxes);
            if !gone.is_empty() {
                return SqlReply::InputsGone(gone);
            }
            self.log.push(row);
            self.row.leases[row.agent].last_seq = self.log.len();
            self.change_inboxes(&row, inboxes);
            self.row_written(row, now);
            return SqlReply::Appended {
                seq: self.log.len(),
            };
        }
        // The same row was sent again after a lost answer.
        let last = lease.last_seq.checked_sub(1).map(|at| self.log[at]);
        if is_mine && last == Some(row) {
            self.row_repeated(row);
            SqlReply::Appended {
                seq: lease.last_seq,
            }
        } else {
            SqlReply::Stale
        }
    }

    fn claim_lead(&mut self, claim: &LeaseClaim, after_death: bool) -> SqlReply {
        if self.row.leases[0].epoch == claim.seen {
            self.row.incarnation += i64::from(after_death);
        }
        self.claim(claim)
    }

    fn claim_member(&mut self, claim: &LeaseClaim, incarnation: i64) -> SqlReply {
        let lease = self.row.leases[claim.agent.1];
        let is_first = lease.epoch == claim.seen;
        if is_first && self.row.incarnation != incarnation {
            return SqlReply::Refused;
        }
        self.claim(claim)
    }

    /// Claims a lease. A claim that is repeated after a lost answer succeeds again.
    fn claim(&mut self, claim: &LeaseClaim) -> SqlReply {
        let agent = claim.agent.1;
        let lease = &mut self.row.leases[agent];
        if lease.epoch == claim.seen {
            (lease.node, lease.epoch) = (Some(claim.me), lease.epoch + 1);
        } else if (lease.node, lease.epoch) != (Some(claim.me), claim.seen + 1) {
            return SqlReply::Refused;
        }
        let LeaseRow {
            epoch, last_seq, ..
        } = *lease;
        SqlReply::Claimed(ClaimedLease {
            epoch,
            last_seq,
            incarnation: self.row.incarnation,
            open: self.open_work(agent),
        })
    }

    pub fn open_work(&self, agent: usize) -> OpenWork {
        let last = self.row.leases[agent].last_seq.checked_sub(1);
        let Some(last) = last.map(|at| self.log[at]) else {
            return OpenWork {
                call: None,
                is_in_turn: self.never_rests,
            };
        };
        let (call, is_in_turn) = match last.kind {
            LogRowKind::ToolStart | LogRowKind::Allowed => {
                (Some(OpenCall::Started(last.call)), true)
            }
            LogRowKind::WaitOpened => (Some(OpenCall::Asked(last.call)), true),
            LogRowKind::TurnStart
            | LogRowKind::ToolEnd
            | LogRowKind::Interrupted
            | LogRowKind::NotAllowed => (None, true),
            LogRowKind::TurnEnd | LogRowKind::Aborted => (None, false),
        };
        OpenWork { call, is_in_turn }
    }

    fn release(&mut self, agent: usize, epoch: i64, for_good: bool) -> SqlReply {
        let lease = &mut self.row.leases[agent];
        if lease.epoch != epoch {
            return SqlReply::Refused;
        }
        (lease.node, lease.epoch) = (None, epoch + 1);
        lease.is_stopped |= for_good;
        if for_good {
            self.end_inputs(agent);
            self.withdraw(Some(agent));
        }
        SqlReply::Done
    }

    fn close(&mut self, epoch: i64) -> SqlReply {
        if self.row.leases[0].epoch != epoch {
            return SqlReply::Refused;
        }
        self.row.is_open = false;
        self.withdraw(None);
        for lease in &mut self.row.leases {
            (lease.node, lease.epoch) = (None, lease.epoch + 1);
        }
        SqlReply::Done
    }
}
