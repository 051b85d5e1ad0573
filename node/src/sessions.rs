//! The operations that clients and agents request on sessions: starting and resuming a session,
//! accepting a prompt, notifying an agent of an input, rewinding, aborting, stopping and deleting.
//! Clients can request each operation from any node. That node asks another node for what only the
//! other node can do.

mod abort;
mod author;
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

pub use author::checked_author;
pub use outcome::read_outcome;
pub use prompt::PromptTarget;
pub use reach::AgentHost;
pub use remote::CommandOrigin;
pub use waits::store_answer;

use crate::{
    actor::{Host, waiters::Waiters},
    base::Base,
    bus::Bus,
    lookup::Lookup,
    peers::Peers,
    placement::Placement,
    takeover::Takeover,
    team::TeamLibrary,
    team_registry::TeamRegistry,
};
use planck_cluster::view::ClusterView;
use planck_store::{SessionRecord, SessionStore};

/// The operations on sessions and their agents.
pub struct Sessions {
    view: Arc<ClusterView>,
    bus: Arc<dyn Bus>,
    peers: Arc<Peers>,
    store: Arc<dyn SessionStore>,
    lookup: Lookup,
    host: Host,
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

/// The services and limits with which [`Sessions`] is built.
pub struct SessionsParts {
    pub base: Base,
    pub bus: Arc<dyn Bus>,
    pub teams: Arc<TeamRegistry>,
    pub placement: Arc<Placement>,
    pub takeover: Arc<Takeover>,
    pub library: Arc<TeamLibrary>,
    pub limits: SessionsLimits,
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
    pub fn new(parts: SessionsParts) -> Self {
        let SessionsParts {
            base,
            bus,
            teams,
            placement,
            takeover,
            library,
            limits,
        } = parts;
        let Base {
            view,
            peers,
            store,
            lookup,
            host,
        } = base;
        Self {
            view,
            bus,
            peers,
            store,
            lookup,
            host,
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
        Ok(self.store.delete(&session.id).await?)
    }
}
