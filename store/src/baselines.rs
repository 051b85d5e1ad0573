//! The state of protected files before calls, which is kept until each call has ended and changed
//! none of them, or a person has kept the change.

use async_trait::async_trait;
use planck_common::{AgentId, CallId, SessionId};

use super::StoreError;

/// The maximum number of baselines that [`Baselines::undecided_baselines`] returns.
pub(crate) const MOST_BASELINES: u32 = 100;

/// The baseline of a call. The store does not read `roots`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallBaseline {
    pub call: CallId,
    pub agent: AgentId,
    /// The epoch of the agent's lease under which the call runs.
    pub epoch: i64,
    pub roots: String,
}

/// Keeps the baselines of a session's calls.
#[async_trait]
pub trait Baselines: Send + Sync {
    /// Stores the baseline of a call that is about to start. A baseline that the call has already
    /// stays as it is.
    async fn put_baseline(
        &self,
        session: &SessionId,
        baseline: &CallBaseline,
    ) -> Result<(), StoreError>;

    /// Returns the baselines that a call of the session has to compare before it starts: those of
    /// calls that ended with a change, and those of calls whose agent has stopped, or has another
    /// epoch, because its node was lost. They are at most 100.
    async fn undecided_baselines(
        &self,
        session: &SessionId,
    ) -> Result<Vec<CallBaseline>, StoreError>;

    /// Records that a call ended with a change.
    async fn baseline_changed(&self, session: &SessionId, call: &CallId) -> Result<(), StoreError>;

    /// Removes baselines. Ignores calls without one.
    async fn remove_baselines(
        &self,
        session: &SessionId,
        calls: &[CallId],
    ) -> Result<(), StoreError>;
}
