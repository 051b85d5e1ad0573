//! The store: leases and a log for each session, behind statements that are atomic, and answers
//! that may be lost.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRow {
    pub node: Option<usize>,
    pub epoch: i64,
    pub last_seq: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    ToolStart,
    ToolEnd,
    /// The answer that a claimer gives to a call that was open.
    Interrupted,
}

/// A call's number, unique over all.
pub type Call = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub agent: usize,
    pub epoch: i64,
    pub kind: Kind,
    pub call: Call,
}

#[derive(Debug)]
pub struct Session {
    /// The first is the lead's.
    pub leases: Vec<LeaseRow>,
    pub incarnation: i64,
    pub log: Vec<Row>,
    pub open: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    Append {
        session: usize,
        row: Row,
        prev: usize,
    },
    ClaimLead {
        session: usize,
        seen: i64,
        me: usize,
    },
    ClaimWorker {
        session: usize,
        agent: usize,
        seen: i64,
        incarnation: i64,
        me: usize,
    },
    ReadLead {
        session: usize,
    },
    /// All leases, for a sweep.
    Leases,
    /// The leases of one's own, by a node that doubts itself.
    OwnLeases {
        asked_at: u64,
        me: usize,
    },
    Close {
        session: usize,
        epoch: i64,
    },
    /// Of a lease whose claim had an unknown outcome: nobody works with it.
    Release {
        session: usize,
        agent: usize,
        epoch: i64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Appended {
        seq: usize,
    },
    /// The lease is not the writer's any more.
    Stale,
    Claimed {
        epoch: i64,
        last_seq: usize,
        open_call: Option<Call>,
    },
    Refused,
    Lead {
        node: Option<usize>,
        epoch: i64,
        incarnation: i64,
    },
    Leases(Vec<(usize, usize, LeaseRow, i64)>),
    Done,
    /// The answer was lost, or there is no database.
    Unknown,
}

#[derive(Debug, Default)]
pub struct Sql {
    pub sessions: Vec<Session>,
}

impl Sql {
    pub fn run(&mut self, statement: &Statement, fenced: bool) -> Reply {
        match *statement {
            Statement::Append { session, row, prev } => {
                self.sessions[session].append(row, prev, fenced)
            }
            Statement::ClaimLead { session, seen, me } => {
                self.sessions[session].claim_lead(seen, me)
            }
            Statement::ClaimWorker {
                session,
                agent,
                seen,
                incarnation,
                me,
            } => {
                let session = &mut self.sessions[session];
                let lives =
                    session.incarnation == incarnation && session.leases[agent].epoch == seen;
                if lives && session.open {
                    session.claim(agent, me)
                } else {
                    Reply::Refused
                }
            }
            Statement::ReadLead { session } => {
                let Session {
                    leases,
                    incarnation,
                    ..
                } = &self.sessions[session];
                Reply::Lead {
                    node: leases[0].node,
                    epoch: leases[0].epoch,
                    incarnation: *incarnation,
                }
            }
            Statement::Leases => Reply::Leases(self.leases(|_| true)),
            Statement::OwnLeases { me, .. } => {
                Reply::Leases(self.leases(|lease| lease.node == Some(me)))
            }
            Statement::Close { session, epoch } => self.sessions[session].close(epoch),
            Statement::Release {
                session,
                agent,
                epoch,
            } => self.sessions[session].release(agent, epoch),
        }
    }

    fn leases(&self, wanted: impl Fn(&LeaseRow) -> bool) -> Vec<(usize, usize, LeaseRow, i64)> {
        let open = self
            .sessions
            .iter()
            .enumerate()
            .filter(|(_, session)| session.open);
        let all = open.flat_map(|(at, session)| {
            session
                .leases
                .iter()
                .enumerate()
                .map(move |(agent, lease)| (at, agent, *lease, session.incarnation))
        });
        all.filter(|(_, _, lease, _)| wanted(lease)).collect()
    }
}

impl Session {
    pub fn new(workers: usize) -> Self {
        let lease = LeaseRow {
            node: None,
            epoch: 0,
            last_seq: 0,
        };
        Self {
            leases: vec![lease; workers + 1],
            incarnation: 0,
            log: Vec::new(),
            open: true,
        }
    }

    fn append(&mut self, row: Row, prev: usize, fenced: bool) -> Reply {
        let lease = self.leases[row.agent];
        let mine = lease.epoch == row.epoch;
        if mine && lease.last_seq == prev || !mine && !fenced {
            self.log.push(row);
            self.leases[row.agent].last_seq = self.log.len();
            return Reply::Appended {
                seq: self.log.len(),
            };
        }
        // The same row sent again after a lost answer.
        let last = lease.last_seq.checked_sub(1).map(|at| self.log[at]);
        if mine && last == Some(row) {
            Reply::Appended {
                seq: lease.last_seq,
            }
        } else {
            Reply::Stale
        }
    }

    fn claim_lead(&mut self, seen: i64, me: usize) -> Reply {
        if self.leases[0].epoch != seen || !self.open {
            return Reply::Refused;
        }
        self.incarnation += 1;
        self.claim(0, me)
    }

    fn claim(&mut self, agent: usize, me: usize) -> Reply {
        let lease = &mut self.leases[agent];
        (lease.node, lease.epoch) = (Some(me), lease.epoch + 1);
        let LeaseRow {
            epoch, last_seq, ..
        } = *lease;
        Reply::Claimed {
            epoch,
            last_seq,
            open_call: self.open_call(agent),
        }
    }

    pub fn open_call(&self, agent: usize) -> Option<Call> {
        let last = self.leases[agent]
            .last_seq
            .checked_sub(1)
            .map(|at| self.log[at])?;
        (last.kind == Kind::ToolStart).then_some(last.call)
    }

    fn release(&mut self, agent: usize, epoch: i64) -> Reply {
        let lease = &mut self.leases[agent];
        if lease.epoch != epoch {
            return Reply::Refused;
        }
        (lease.node, lease.epoch) = (None, epoch + 1);
        Reply::Done
    }

    fn close(&mut self, epoch: i64) -> Reply {
        if self.leases[0].epoch != epoch {
            return Reply::Refused;
        }
        self.open = false;
        for lease in &mut self.leases {
            (lease.node, lease.epoch) = (None, lease.epoch + 1);
        }
        Reply::Done
    }
}
