//! The waits: what agents need from outside before their calls continue, and the answers.

use async_trait::async_trait;
use planck_common::{
    AgentId, CallId, NodeId, SessionId,
    command::{ListWaits, WaitRow, Waits as WaitPage},
    wait::WaitAnswer,
};

use super::StoreError;

/// Lists, answers and expires the waits of agents.
///
/// The log opens and ends a wait, and no other method of the store does: a row `wait_opened`
/// creates the wait in the state `open`, and a row `wait_closed` ends it as `closed`, or as
/// `withdrawn` if that is the decision. The statement that writes the row changes the wait, so the
/// two never differ. A rewind withdraws every wait of its session that is `open` or `answered`. A
/// wait of a stopped agent cannot be answered and is not listed as `open` or `answered`.
#[async_trait]
pub trait Waits: Send + Sync {
    /// Returns a page of at most `limit` waits (100 by default, never more than 500), oldest first.
    /// `session` is the id of the session that the request names, or `None` for all sessions.
    async fn waits(
        &self,
        session: Option<&SessionId>,
        filter: &ListWaits,
    ) -> Result<WaitPage, StoreError>;

    async fn wait(&self, session: &SessionId, id: &CallId) -> Result<Option<WaitRow>, StoreError>;

    /// Stores the answer to a wait that is open, on condition that the wait has the digest and has
    /// not expired. The database's clock decides whether it has.
    async fn answer(
        &self,
        session: &SessionId,
        id: &CallId,
        digest: &str,
        answer: &WaitAnswer,
    ) -> Result<AnswerOutcome, StoreError>;

    /// Returns the answers that an agent has not read yet, with the ids of their waits.
    async fn answers(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<(CallId, WaitAnswer)>, StoreError>;

    /// Returns the rules that answers with the scope `session` added, as far as their waits were
    /// not withdrawn: for each the id of the wait and who answered.
    async fn session_rules(&self, session: &SessionId) -> Result<Vec<SessionRule>, StoreError>;

    /// Gives every open wait whose time is over the decision `expired`. The sweep that follows
    /// returns their agents.
    async fn expire_waits(&self) -> Result<u64, StoreError>;
}

/// The result of [`Waits::answer`].
#[derive(Debug, Clone)]
pub enum AnswerOutcome {
    /// The answer is committed. `node` holds the lease of the agent.
    Answered {
        agent: AgentId,
        node: Option<NodeId>,
    },
    /// The wait was answered before, has expired, was withdrawn, or has another digest. `answer` is
    /// the stored answer, if there is one.
    Refused {
        row: Box<WaitRow>,
        answer: Option<Box<WaitAnswer>>,
    },
    /// The session has no such wait, or its agent is stopped.
    NotFound,
}

/// A rule that an answer added to a session.
#[derive(Debug, Clone)]
pub struct SessionRule {
    pub wait: CallId,
    pub rule: planck_common::permission::Rule,
    pub by: Option<String>,
}
