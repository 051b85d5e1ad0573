//! The inboxes: what was asked of an agent, and what came of it.

use async_trait::async_trait;
use planck_common::{AgentId, InputId, NodeId, Seq, SessionId, event::InputKind, message::Sender};

use super::{InputOutcome, NewInput, StoreError, StoredInput, refusal};

/// Inputs of agents: prompts, tasks, questions, responses and notes.
#[async_trait]
pub trait Inbox: Send + Sync {
    /// Puts an input into an inbox. No lease is needed. Putting the same id twice is harmless.
    async fn put(&self, session: &SessionId, input: NewInput) -> Result<PutResult, StoreError>;

    /// Puts a question whose asker waits, unless that closes a cycle of waits or nests deeper than
    /// `max_depth`. A question of an agent that was not asked anything itself is at depth 1. Asking
    /// the same question twice waits for it again.
    async fn ask(
        &self,
        session: &SessionId,
        question: NewInput,
        asker_epoch: i64,
        max_depth: u32,
    ) -> Result<AskOutcome, StoreError>;

    /// Records that the asker no longer waits. An unread question leaves the inbox with the outcome
    /// `withdrawn`. Returns whether the question is withdrawn.
    async fn withdraw(&self, session: &SessionId, question: &InputId) -> Result<bool, StoreError>;

    async fn input(
        &self,
        session: &SessionId,
        id: &InputId,
    ) -> Result<Option<StoredInput>, StoreError>;

    /// Returns the inputs of an agent without an outcome, in order of acceptance: the unread ones,
    /// and those of the open turn.
    async fn open_inputs(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<StoredInput>, StoreError>;

    /// Returns the tasks that were given to an agent, newest last. Withdrawn and rewound ones are
    /// left out.
    async fn tasks(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<TaskRecord>, StoreError>;
}

/// What came of putting an input.
#[derive(Debug, Clone)]
pub enum PutResult {
    /// The input is committed. `head` is the last row of the log before it.
    Put {
        head: Seq,
        node: Option<NodeId>,
        epoch: i64,
    },
    /// An input with this id was put before.
    Known(Box<StoredInput>),
    /// The agent does not exist or is stopped.
    NotFound,
}

/// What came of asking a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskOutcome {
    /// The question is in the inbox, and the asker's wait is recorded.
    Asked { node: Option<NodeId> },
    /// The question was asked before; this is its outcome, if it has one.
    Known { outcome: Option<InputOutcome> },
    /// The agent that was asked does not exist or is stopped.
    NotFound,
    /// The cycle of waits that the question would close, from the asker over the target back to the
    /// asker.
    Cycle(Vec<AgentId>),
    /// The depth at which the question would nest.
    TooDeep(u32),
    /// The asker's lease has another epoch.
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

/// Refuses an input that Postgres cannot hold.
pub fn check_content(input: &NewInput) -> Result<(), StoreError> {
    match memchr::memchr(0, input.content.as_bytes()) {
        None => Ok(()),
        Some(_) => Err(StoreError::BadRequest(format!(
            "input {} holds a NUL byte",
            input.id
        ))),
    }
}

/// Refuses a new input whose id belongs to an input for another agent, or to a question of another
/// asker.
pub fn check_same(known: &StoredInput, new: &NewInput) -> Result<(), StoreError> {
    let asker = |input: &NewInput| input.sender.as_ref().map(|sender| sender.id.clone());
    let is_same = known.input.agent == new.agent
        && (new.kind != InputKind::Question || asker(&known.input) == asker(new));
    if is_same {
        Ok(())
    } else {
        Err(refusal::input_taken(&new.id))
    }
}
