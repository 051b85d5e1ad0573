//! How a session changes hands. A node that finds a session without a live host takes it up from
//! SQL, a node that drains moves it, and a node that leaves releases it. This module also closes
//! sessions.
//!
//! One path takes a session up for every reason, such as a prompt to a closed session, a resume, a
//! rewind or a node's death. It begins at [`Takeover::take_up`] or [`Takeover::take_up_here`].

mod claim;
mod close;
mod drain;
mod exits;
mod failover;
mod lease;
mod leave;
mod maintenance;
mod session_locks;
mod sweep;
mod team_stopper;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use planck_common::{SessionId, reply::Refusal};
use tokio::sync::watch;

pub use claim::{IfClosed, Purpose};
pub use session_locks::SessionGuard;

use self::{drain::DrainRequest, maintenance::Maintenance, session_locks::SessionLocks};
use crate::{
    actor::Host, base::Base, lookup::Lookup, peers::Peers, placement::Placement,
    team_registry::TeamRegistry,
};
use planck_cluster::{decisions::Decisions, view::ClusterView};
use planck_store::SessionStore;

/// The service that takes sessions up, moves them to other nodes, and closes them.
pub struct Takeover {
    view: Arc<ClusterView>,
    peers: Arc<Peers>,
    store: Arc<dyn SessionStore>,
    lookup: Lookup,
    host: Host,
    teams: Arc<TeamRegistry>,
    placement: Arc<Placement>,
    decisions: Decisions,
    settings: TakeoverSettings,
    locks: SessionLocks,
    maintenance: Maintenance,
    /// The first request to drain this node.
    drain_requested: watch::Sender<Option<DrainRequest>>,
}

/// The parts that takeover is built from.
pub struct TakeoverParts {
    pub base: Base,
    pub teams: Arc<TeamRegistry>,
    pub placement: Arc<Placement>,
    pub decisions: Decisions,
    pub settings: TakeoverSettings,
}

/// The settings of takeover on a node.
#[derive(Debug, Clone)]
pub struct TakeoverSettings {
    /// The time between two sweeps, which varies by up to a fifth.
    pub sweep_every: Duration,
    /// The time without writes after which closed sessions are removed, or `None` to keep them.
    pub retention: Option<Duration>,
    /// How long a drain may take if its request names no time.
    pub drain_timeout: Duration,
}

impl Takeover {
    pub fn new(parts: TakeoverParts) -> Self {
        let TakeoverParts {
            base,
            teams,
            placement,
            decisions,
            settings,
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
            peers,
            store,
            lookup,
            host,
            teams,
            placement,
            decisions,
            settings,
            locks: SessionLocks::default(),
            maintenance: Maintenance::default(),
            drain_requested: watch::channel(None).0,
        }
    }

    /// Locks a session on this node. A caller holds the guard while it starts, takes up, rewinds or
    /// closes the session.
    pub async fn lock(&self, session: &SessionId) -> Result<SessionGuard, Refusal> {
        self.locks.lock(session).await
    }
}
