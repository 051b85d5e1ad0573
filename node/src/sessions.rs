//! The operations that clients and agents request on sessions: starting and resuming a session,
//! accepting a prompt, notifying an agent of an input, rewinding, aborting, stopping and deleting.
//! Clients can request each operation from any node. That node asks another node for what only the
//! other node can do.

mod abort;
mod delivery;
mod first_agents;
mod outcome;
mod prompt;
mod reach;
mod remote;
mod rewind;
mod start;
mod waits;
mod work;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use planck_common::{
    InputId, SessionId, command::RemovedCounts, reply::Refusal, spec::SessionLimits,
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use outcome::read_outcome;
pub use prompt::{PromptTarget, checked_author};
pub use reach::AgentHost;
pub use remote::CommandOrigin;
pub use waits::store_answer;

use crate::{
    actor::waiters::Waiters, base::Base, placement::Placement, takeover::Takeover,
    team::TeamLibrary, team_registry::TeamRegistry,
};
use planck_store::SessionRecord;

/// The operations on sessions and their agents.
pub struct Sessions {
    base: Base,
    teams: Arc<TeamRegistry>,
    placement: Arc<Placement>,
    takeover: Arc<Takeover>,
    library: Arc<TeamLibrary>,
    limits: SessionsLimits,
    waiting: Waiting,
}

/// The callers on this node that wait.
struct Waiting {
    /// Those that wait for the outcome of an input.
    inputs: Waiters<InputId>,
    /// Those that wait for the end of work in a session.
    works: Waiters<SessionId>,
    /// The places for callers that wait for the end of work.
    places: Semaphore,
    /// Cancelled when the node leaves. From then on no caller waits for the end of work.
    leaving: CancellationToken,
}

/// The limits that the configuration sets for sessions.
#[derive(Debug, Clone)]
pub struct SessionsLimits {
    /// The default limits of a session.
    pub session: SessionLimits,
    /// The maximum size of a prompt, in bytes of JSON.
    pub max_prompt: u64,
}

impl Sessions {
    pub fn new(
        base: Base,
        teams: Arc<TeamRegistry>,
        placement: Arc<Placement>,
        takeover: Arc<Takeover>,
        library: Arc<TeamLibrary>,
        limits: SessionsLimits,
    ) -> Self {
        Self {
            base,
            teams,
            placement,
            takeover,
            library,
            limits,
            waiting: Waiting {
                inputs: Waiters::default(),
                works: Waiters::default(),
                places: Semaphore::new(outcome::MOST_WAITING),
                leaving: CancellationToken::new(),
            },
        }
    }

    /// Returns the callers on this node that wait for the outcome of an input.
    pub fn waiters(&self) -> &Waiters<InputId> {
        &self.waiting.inputs
    }

    /// Tells the callers that wait for the end of work in a session that some of it has ended.
    pub fn some_work_ended(&self, session: &SessionId) {
        self.waiting.works.settle(session);
    }

    /// Closes a session, and removes it with its log.
    pub async fn delete(
        &self,
        session: &SessionRecord,
        reason: &str,
    ) -> Result<RemovedCounts, Refusal> {
        self.takeover.close(session, reason).await?;
        Ok(self.base.store.delete(&session.id).await?)
    }
}
