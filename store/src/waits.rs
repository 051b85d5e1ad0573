//! The waits: what agents need from outside before their calls continue, and the answers.

use async_trait::async_trait;
use planck_common::{
    AgentId, CallId, NodeId, SessionId, Timestamp,
    command::{ListWaits, WaitRow, Waits as WaitPage},
    permission::Rule,
    wait::{WaitAnswer, WaitDecision, WaitScope, WaitState},
};

use super::StoreError;
use planck_common::quantity::Period;

/// The maximum number of waits that one call of [`Waits::expire_waits`] expires.
pub const EXPIRE_MOST: u32 = 500;

/// Lists, answers and expires the waits of agents.
///
/// The log opens and ends a wait, and no other method of the store does: a row `wait_opened`
/// creates the wait in the state `open`, and a row `wait_closed` of the same agent ends it as
/// `closed`, or as `withdrawn` if that is the decision. The statement that writes the row changes
/// the wait, so the two never differ. A later row `wait_opened` for the same call replaces the
/// wait: it is `open` again, with the new digest and without an answer. A rewind withdraws every
/// wait of its session that is `open` or `answered`. A wait of a stopped agent cannot be answered
/// and is not listed as `open` or `answered`. An unknown session has no waits.
#[async_trait]
pub trait Waits: Send + Sync {
    /// Returns a page of at most `limit` waits (100 by default, never more than 500) and at most
    /// 512 KiB, but always at least one wait if there is one. The oldest come first, or the newest if
    /// the filter says so. `session` is the id of the session that the request names, or `None` for
    /// all sessions, and `filter` has only its name. A list of all sessions leaves out waits that cannot be read, with a warning
    /// in the log.
    async fn waits(
        &self,
        session: Option<&SessionId>,
        filter: &ListWaits,
    ) -> Result<WaitPage, StoreError>;

    /// Returns a wait in any state, also that of a stopped agent.
    async fn wait(&self, session: &SessionId, id: &CallId) -> Result<Option<WaitRow>, StoreError>;

    /// Stores the answer to a wait that is open, on condition that the wait has the digest and has
    /// not expired. The database's clock decides whether it has.
    ///
    /// Of several answers, one is stored. A caller that sends its answer again, because the outcome
    /// of the first call is unknown, gets `Refused` with its own answer.
    async fn answer(
        &self,
        session: &SessionId,
        id: &CallId,
        digest: &str,
        answer: &WaitAnswer,
    ) -> Result<AnswerOutcome, StoreError>;

    /// Returns the answers that an agent has not read yet, with the ids of their waits, in the
    /// order in which the waits were opened.
    async fn answers(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<(CallId, WaitAnswer)>, StoreError>;

    /// Returns the rules that answers with the decision `allow` and the scope `session` added, each
    /// with the id of its wait and who answered, in the order in which the waits were opened. Waits
    /// that were withdrawn, or whose row `wait_opened` a rewind hides, add no rule.
    async fn session_rules(&self, session: &SessionId) -> Result<Vec<SessionRule>, StoreError>;

    /// Stores the answer `expired` to open waits whose time is over, as the database's clock says.
    /// Returns their number, which is at most [`EXPIRE_MOST`]. The sweep that follows returns their
    /// agents.
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
    /// The wait was answered before, has expired, was closed or withdrawn, or has another digest.
    /// `row` is the wait as it was read after the refusal. An expired wait is still `open` until
    /// [`Waits::expire_waits`]. `answer` is the stored answer, if there is one.
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
    pub rule: Rule,
    pub by: Option<String>,
}

/// A wait with the answer that the store has, if there is one.
pub type WaitAndAnswer = (WaitRow, Option<WaitAnswer>);

/// Returns why an expired wait has no answer.
pub fn nobody_answered(opened_at: Timestamp, expires_at: Option<Timestamp>) -> String {
    match expires_at.map_or(0, |at| at.millis_since(opened_at)) {
        0 => "nobody answered in time".into(),
        millis => format!("nobody answered within {}", Period::millis(millis)),
    }
}

/// Returns the rule that the answer of a wait added to its session, or `None` if it added none.
pub fn session_rule((row, answer): WaitAndAnswer) -> Option<SessionRule> {
    let answer = answer?;
    let adds = answer.decision == WaitDecision::Allow && answer.scope == Some(WaitScope::Session);
    Some(SessionRule {
        wait: row.id,
        rule: row.rule.filter(|_| adds)?,
        by: answer.by,
    })
}

/// Returns whether waits in this state still concern their agent.
pub fn is_live(state: WaitState) -> bool {
    matches!(state, WaitState::Open | WaitState::Answered)
}
