//! The simulated inboxes, and the index by which the sweeps of SQLite find sessions. A row is put by
//! a statement of its own or by an append, and the row that opens a turn consumes the inputs of the
//! turn. The conditions are those of the real statements.

use std::collections::BTreeSet;

use super::sql::{AgentKey, LeaseRow, LogRow, Sql, SqlReply, StoredSession};

/// An input's number, unique in a run.
pub type InputNumber = u64;

/// The sender of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputSource {
    /// A person, who sends the prompt again until there is a reply.
    Prompt,
    /// Another agent during its turn. Its node sends the task only once.
    Task,
    /// Another agent, with the row that ended its turn.
    Note,
}

/// An input for an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimInput {
    pub number: InputNumber,
    pub agent: AgentKey,
    pub source: InputSource,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputState {
    Unread,
    /// A turn has consumed the input.
    Consumed,
    /// The agent was stopped for good before it read the input.
    Stopped,
}

/// A row of an inbox.
#[derive(Debug, Clone, Copy)]
pub struct InboxRow {
    pub number: InputNumber,
    pub agent: usize,
    pub state: InputState,
}

/// The changes that an append makes in the inboxes of its session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InboxChange {
    pub consumed: Vec<InputNumber>,
    pub note: Option<SimInput>,
}

/// The index of SQLite, which lists the sessions that a sweep has to read.
#[derive(Debug, Default)]
pub struct SqlIndex {
    /// The inputs that may be unread, each with its session. A node does not add what it puts for
    /// agents of its own.
    pending: BTreeSet<(usize, InputNumber)>,
    /// The sessions in which a node may hold leases, each with the node.
    leases: BTreeSet<(usize, usize)>,
}

impl Sql {
    /// Puts an input. The same input may be put again, because the answer was lost.
    pub fn put(&mut self, input: &SimInput) -> SqlReply {
        let (session, agent) = input.agent;
        let stored = &mut self.sessions[session];
        let lease = stored.row.leases[agent];
        let known = stored.input(input.number);
        if known.is_none() && (lease.is_stopped || !stored.row.is_open) {
            return SqlReply::Refused;
        }
        if known.is_none() {
            stored.add_input(input);
        }
        SqlReply::Put {
            node: lease.node,
            lead: stored.row.leases[0].node,
            known: known.map(|row| row.state),
        }
    }

    pub fn announce(&mut self, input: &SimInput) {
        if let Some(index) = &mut self.index {
            index.pending.insert((input.agent.0, input.number));
        }
    }

    pub fn index_lease(&mut self, session: usize, node: usize) {
        if let Some(index) = &mut self.index {
            index.leases.insert((session, node));
        }
    }

    /// Returns whether a sweep reads a session at all. On SQLite it does so only if the index or the
    /// memory of the node (`to_sweep`) lists the session. Postgres finds every row.
    pub fn is_listed(&self, session: usize, alive: &[usize], to_sweep: &BTreeSet<usize>) -> bool {
        let Some(index) = &self.index else {
            return true;
        };
        let stored = &self.sessions[session];
        let mut agents = 0..stored.row.leases.len();
        let mut leases = index.leases.iter();
        to_sweep.contains(&session)
            || leases.any(|(of, node)| *of == session && !alive.contains(node))
            || index.pending.iter().any(|(of, _)| *of == session)
            || agents.any(|agent| stored.has_answer(agent))
    }

    /// Removes from the index what a sweep found to be over. The leases of dead nodes stay while a
    /// session has strays, because one of them may be all that leads to an unread input.
    pub fn tidy_index(&mut self, alive: &[usize], strays: &[(AgentKey, Option<usize>)]) {
        let Some(index) = &mut self.index else {
            return;
        };
        let is_settled = |session: usize| !strays.iter().any(|(agent, _)| agent.0 == session);
        let sessions = &self.sessions;
        index
            .leases
            .retain(|(session, node)| alive.contains(node) || !is_settled(*session));
        index.pending.retain(|(session, number)| {
            let row = sessions[*session].input(*number);
            row.is_some_and(|row| row.state == InputState::Unread)
        });
    }
}

impl StoredSession {
    pub fn input(&self, number: InputNumber) -> Option<InboxRow> {
        let mut rows = self.inputs.iter();
        rows.find(|row| row.number == number).copied()
    }

    fn add_input(&mut self, input: &SimInput) {
        self.inputs.push(InboxRow {
            number: input.number,
            agent: input.agent.1,
            state: InputState::Unread,
        });
    }

    pub fn unread(&self, agent: usize) -> impl Iterator<Item = InputNumber> {
        let is_unread =
            move |row: &&InboxRow| row.agent == agent && row.state == InputState::Unread;
        self.inputs.iter().filter(is_unread).map(|row| row.number)
    }

    /// Returns those of the inputs that an append is to consume and that are not unread any more.
    /// The append is refused if there are any.
    pub fn gone(&self, change: &InboxChange) -> Vec<InputNumber> {
        let is_unread = |number: &InputNumber| {
            let row = self.input(*number);
            row.is_some_and(|row| row.state == InputState::Unread)
        };
        let gone = change.consumed.iter().filter(|number| !is_unread(number));
        gone.copied().collect()
    }

    pub fn change_inboxes(&mut self, row: &LogRow, change: &InboxChange) {
        // Agents that never rest have no turns, and read their inbox with any row.
        let is_read = |input: &InboxRow, never_rests: bool| {
            change.consumed.contains(&input.number) || never_rests && input.agent == row.agent
        };
        for input in &mut self.inputs {
            if is_read(input, self.never_rests) {
                input.state = InputState::Consumed;
            }
        }
        if let Some(note) = &change.note {
            let lease: &LeaseRow = &self.row.leases[note.agent.1];
            if !lease.is_stopped {
                self.add_input(note);
            }
        }
    }

    /// Ends the unread inputs of an agent that was stopped for good.
    pub fn end_inputs(&mut self, agent: usize) {
        let rows = self.inputs.iter_mut();
        rows.filter(|row| row.agent == agent && row.state == InputState::Unread)
            .for_each(|row| row.state = InputState::Stopped);
    }
}
