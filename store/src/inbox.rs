//! The inboxes: the inputs that agents received, and their outcomes.

use async_trait::async_trait;

use planck_common::{
    AgentId, InputId, NodeId, Seq, SessionId, command::AgentState, event::InputKind,
    message::Sender,
};

use crate::{InputOutcome, NewInput, StoreError, StoredInput, input_taken};

/// Inputs of agents: prompts, tasks, questions, responses and notes.
#[async_trait]
pub trait Inbox: Send + Sync {
    /// Puts an input into an agent's inbox. The caller needs no lease. Returns `Known` if the agent
    /// already has an input with this id, and the error `Limit` if an inbox is full.
    async fn put(&self, session: &SessionId, input: NewInput) -> Result<PutResult, StoreError>;

    /// Puts a question and records that its asker waits for the answer. Refuses a question that
    /// would close a cycle of waiting agents or nest questions deeper than `max_depth`. A question
    /// has depth 1 if no other agent waits for its asker. Asking the same question again records
    /// the wait again, unless the question has an outcome.
    async fn ask(
        &self,
        session: &SessionId,
        question: NewInput,
        asker_epoch: i64,
        max_depth: u32,
    ) -> Result<AskOutcome, StoreError>;

    /// Records that the asker no longer waits. If the question is unread, it leaves the inbox with
    /// the outcome `withdrawn`. Returns whether the outcome of the question is `withdrawn`.
    async fn withdraw(&self, session: &SessionId, question: &InputId) -> Result<bool, StoreError>;

    async fn input(
        &self,
        session: &SessionId,
        id: &InputId,
    ) -> Result<Option<StoredInput>, StoreError>;

    /// Returns the inputs of an agent that have no outcome, in the order in which they were put.
    /// These are the unread inputs and those of the open turn.
    async fn open_inputs(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<StoredInput>, StoreError>;

    /// Returns the tasks that were given to an agent, oldest first, without those that were
    /// withdrawn or rewound.
    async fn tasks(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<TaskRecord>, StoreError>;

    /// Returns an input with the inputs that it may have caused, or without one the inputs that
    /// have no outcome, and all that is needed to tell whether agents still work on them. Everything
    /// is read by one statement, so that it is of one moment. Returns `None` if there is no such
    /// input or no such session.
    async fn work(
        &self,
        session: &SessionId,
        input: Option<&InputId>,
    ) -> Result<Option<WorkRows>, StoreError>;
}

/// The result of [`Inbox::put`].
#[derive(Debug, Clone)]
pub enum PutResult {
    /// The input is committed. `head` was the number of the log's last row when the input was put.
    /// `node` and `epoch` are those of the agent's lease.
    Put {
        head: Seq,
        node: Option<NodeId>,
        epoch: i64,
    },
    /// An input with this id already exists.
    Known(Box<StoredInput>),
    /// The agent does not exist or is stopped.
    NotFound,
}

/// The result of [`Inbox::ask`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskOutcome {
    /// The question is in the inbox of the target, whose lease `node` holds, and its asker is
    /// recorded as waiting.
    Asked { node: Option<NodeId> },
    /// The question was asked before. `outcome` is `None` while the question has no outcome.
    Known { outcome: Option<InputOutcome> },
    /// The agent to which the question is addressed does not exist or is stopped.
    NotFound,
    /// The question would close this cycle of waiting agents. The list begins and ends with the
    /// asker.
    Cycle(Vec<AgentId>),
    /// The question would be nested at this depth, which is more than the maximum.
    TooDeep(u32),
    /// The epoch is not the one of the asker's lease.
    StaleEpoch,
}

/// A task given to an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRecord {
    pub id: InputId,
    pub from: Option<Sender>,
    pub consumed: bool,
    pub responded: bool,
}

/// Returns an error if the input contains data that Postgres cannot store.
pub fn check_content(input: &NewInput) -> Result<(), StoreError> {
    match memchr::memchr(0, input.content.as_bytes()) {
        None => Ok(()),
        Some(_) => Err(StoreError::BadRequest(format!(
            "input {} holds a NUL byte",
            input.id
        ))),
    }
}

/// Returns an error if the known input with the id of a new one belongs to another agent, or is a
/// question of another asker.
pub fn check_same(known: &StoredInput, new: &NewInput) -> Result<(), StoreError> {
    let asker = |input: &NewInput| input.sender.as_ref().map(|sender| sender.id.clone());
    let is_same = known.input.agent == new.agent
        && (new.kind != InputKind::Question || asker(&known.input) == asker(new));
    if is_same {
        Ok(())
    } else {
        Err(input_taken(&new.id))
    }
}

/// The maximum number of inputs that [`Inbox::work`] returns.
pub const MOST_INPUTS: usize = 10_000;

/// The inputs of a session that have no outcome and, if an input was asked for, that one and those
/// that were put after it, all as of one moment.
#[derive(Debug, Clone)]
pub struct WorkRows {
    /// The input that was asked for.
    pub root: Option<WorkInput>,
    /// The others, without an order.
    pub rest: Vec<WorkInput>,
    /// Whether inputs are missing because there are more than [`MOST_INPUTS`]. Those without an
    /// outcome and the latest ones are there.
    pub is_cut: bool,
    /// The number of the log's last row.
    pub head: Seq,
    /// Whether the session is closed and no agent has a holder, so that nothing continues before
    /// the session is opened again.
    pub is_shut: bool,
}

/// An input without its content.
#[derive(Debug, Clone)]
pub struct WorkInput {
    pub id: InputId,
    pub agent: AgentId,
    pub sender: Option<AgentId>,
    /// Whether the input was put after the one that was asked for.
    pub is_later: bool,
    /// The turn in which the sender put the input: that of the sender's last row in the log when
    /// the input was put.
    pub cause: Option<u32>,
    /// The number of the log's last row when the input was put.
    pub head: Seq,
    /// The turn that consumed the input.
    pub turn: Option<u32>,
    pub outcome: Option<InputOutcome>,
    /// Whether the sender waits for the answer.
    pub waiting: bool,
    /// What the input's agent does, if the input has no outcome.
    pub reader: Option<InputReader>,
}

/// What the agent does that has an input without an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputReader {
    pub state: AgentState,
    /// The number of its waits that are open.
    pub open_waits: u64,
    /// The number of its waits whose answer it has not read.
    pub answers: u64,
    /// The number of its running calls.
    pub calls: u64,
}

// The bounds of inboxes, which keep unread inputs from filling the store and the memory of the
// node that reads them.

/// The maximum amounts of unread inputs in the inboxes of a session. Only
/// [`Inbox::put`](super::Inbox::put) refuses an input because of them. Questions and the puts of a
/// batch are not limited, but count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboxBounds {
    /// The maximum number of unread bytes of one agent.
    pub agent_bytes: i64,
    /// The maximum number of unread inputs of one agent.
    pub agent_inputs: i64,
    /// The maximum number of unread bytes of all agents of a session.
    pub session_bytes: i64,
}

impl InboxBounds {
    /// No bounds, for the inputs with which a session is created.
    pub(super) const NONE: Self = Self {
        agent_bytes: i64::MAX,
        agent_inputs: i64::MAX,
        session_bytes: i64::MAX,
    };
}

impl Default for InboxBounds {
    fn default() -> Self {
        Self {
            agent_bytes: 64 << 20,
            agent_inputs: 10_000,
            session_bytes: 256 << 20,
        }
    }
}

/// The amount of unread inputs before an input is put. It only explains a refusal, because
/// the statement that puts the input counts on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnreadAmount {
    pub agent_bytes: i64,
    pub agent_inputs: i64,
    pub session_bytes: i64,
}

impl UnreadAmount {
    /// Returns an error if an input of this size would exceed the bounds.
    pub fn check(self, bytes: usize, bounds: &InboxBounds) -> Result<(), StoreError> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let full = |what: String| {
            Err(StoreError::Limit(format!(
                "{what}; try again when they were read"
            )))
        };
        if self.agent_inputs >= bounds.agent_inputs {
            return full(format!(
                "the agent has {} unread inputs, as many as may wait",
                self.agent_inputs
            ));
        }
        if self.agent_bytes.saturating_add(bytes) > bounds.agent_bytes {
            let most = size(bounds.agent_bytes);
            return full(format!(
                "the agent has unread inputs of {} bytes, and {most} may wait",
                self.agent_bytes
            ));
        }
        if self.session_bytes.saturating_add(bytes) > bounds.session_bytes {
            let most = size(bounds.session_bytes);
            return full(format!(
                "the session has unread inputs of {} bytes, and {most} may wait",
                self.session_bytes
            ));
        }
        Ok(())
    }
}

fn size(bytes: i64) -> String {
    if bytes & 0xf_ffff == 0 {
        format!("{} MiB", bytes >> 20)
    } else {
        format!("{bytes} bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_bound() {
        let bounds = InboxBounds::default();
        let InboxBounds {
            agent_bytes,
            agent_inputs,
            session_bytes,
        } = bounds;
        let unread = |agent_bytes, agent_inputs, session_bytes| UnreadAmount {
            agent_bytes,
            agent_inputs,
            session_bytes,
        };
        assert!(
            unread(agent_bytes - 10, agent_inputs - 1, session_bytes - 10)
                .check(10, &bounds)
                .is_ok()
        );
        for (unread, bound) in [
            (
                unread(agent_bytes - 9, 0, 0),
                "the agent has unread inputs of",
            ),
            (unread(0, agent_inputs, 0), "10000 unread inputs"),
            (
                unread(0, 0, session_bytes - 9),
                "the session has unread inputs",
            ),
            (unread(i64::MAX, 0, 0), "64 MiB may wait"),
        ] {
            let refused = unread.check(10, &bounds).unwrap_err();
            assert!(
                matches!(&refused, StoreError::Limit(text) if text.contains(bound)),
                "{refused}"
            );
        }
        let odd = InboxBounds {
            agent_bytes: 1_000,
            ..bounds
        };
        assert!(
            unread(991, 0, 0)
                .check(10, &odd)
                .unwrap_err()
                .to_string()
                .contains("1000 bytes may wait")
        );
    }
}
