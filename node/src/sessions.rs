//! The operations that clients and agents request on sessions: start one, store a prompt, a task or
//! a question in an inbox, rewind, stop. Each operation works on any node; the parts that only
//! another node can perform are requested from it.

mod delivery;
mod prompt;
mod remote;
mod rewind;
mod start;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use planck_common::{command::RemovedCounts, reply::Refusal, spec::SessionLimits};

pub use remote::CommandOrigin;

use crate::{
    actor::{Host, waiters::Waiters},
    base::Base,
    bus::Bus,
    cluster::view::ClusterView,
    lookup::Lookup,
    peers::Peers,
    placement::Placement,
    store::{SessionRecord, SessionStore},
    takeover::Takeover,
    team::TeamLibrary,
    team_registry::TeamRegistry,
};

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
    waiters: Waiters,
}

/// The parts that the operations are built from.
pub struct SessionsParts {
    pub base: Base,
    pub bus: Arc<dyn Bus>,
    pub teams: Arc<TeamRegistry>,
    pub placement: Arc<Placement>,
    pub takeover: Arc<Takeover>,
    pub library: Arc<TeamLibrary>,
    pub limits: SessionsLimits,
}

/// The limits of sessions.
#[derive(Debug, Clone)]
pub struct SessionsLimits {
    /// The limits of sessions that name none.
    pub session: SessionLimits,
    /// The largest prompt, in bytes of JSON.
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
            waiters: Waiters::default(),
        }
    }

    /// Returns the callers on this node that wait for the outcome of an input.
    pub fn waiters(&self) -> &Waiters {
        &self.waiters
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
