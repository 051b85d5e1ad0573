//! How a session changes hands. A node that finds a session without a live host takes it over from
//! SQL, a node that drains moves it, and a node that leaves releases it. This module also closes
//! sessions.
//!
//! Each of three words has one meaning here. A node *claims* a lease with one SQL statement. It
//! *takes over* a session, which may begin a new incarnation of the team. It *starts* an agent, whose
//! actor then runs.
//!
//! One path takes a session over for every reason, such as a prompt to a closed session, a resume, a
//! rewind or a node's death. It begins at [`Takeover::take_over`] or [`Takeover::take_over_here`].

mod close;
mod incarnation;
mod leave;
mod maintenance;
mod session;
mod session_locks;
mod stop;
mod sweep;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use planck_common::{SessionId, command::SessionState, reply::Refusal};
use tokio::sync::watch;

pub use session::Purpose;
pub use session_locks::SessionGuard;

use self::{leave::DrainRequest, maintenance::Maintenance, session_locks::SessionLocks};
use crate::{base::Base, placement::Placement, team_registry::TeamRegistry};
use planck_store::Stray;

/// The service that takes sessions over, moves them to other nodes, and closes them.
pub struct Takeover {
    base: Base,
    teams: Arc<TeamRegistry>,
    placement: Arc<Placement>,
    settings: TakeoverSettings,
    locks: SessionLocks,
    maintenance: Maintenance,
    /// The first request to drain this node.
    drain_requested: watch::Sender<Option<DrainRequest>>,
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

/// What a takeover does about a closed session.
#[derive(Debug, Clone, Copy)]
pub enum IfClosed<'a> {
    /// Opens the session.
    Open,
    /// Leaves the session closed and does nothing.
    Leave,
    /// Opens the session if one of these agents has an unread prompt.
    OpenIfPrompted(&'a [Stray]),
}

impl Takeover {
    pub fn new(
        base: Base,
        teams: Arc<TeamRegistry>,
        placement: Arc<Placement>,
        settings: TakeoverSettings,
    ) -> Self {
        Self {
            base,
            teams,
            placement,
            settings,
            locks: SessionLocks::default(),
            maintenance: Maintenance::default(),
            drain_requested: watch::channel(None).0,
        }
    }

    /// Starts every agent of the session that no live node holds, on this node or another one. A
    /// repeated call is harmless, also while another node does the same. A session that is not to
    /// continue after its node's death is closed first.
    ///
    /// The state of the session is read under its lock, because the session may have been closed
    /// after the caller read it.
    pub async fn take_over(
        &self,
        session: &SessionId,
        reason: &str,
        if_closed: IfClosed<'_>,
    ) -> Result<(), Refusal> {
        let guard = self.lock(session).await?;
        let mut session = self.base.lookup.session(session).await?;
        if session.state == SessionState::Open && self.is_lost(&session).await {
            self.close_lost(&session, &guard).await?;
            session = self.base.lookup.session(&session.id).await?;
        }
        let is_closed = session.state == SessionState::Closed;
        let may_open = match if_closed {
            IfClosed::Open => true,
            IfClosed::Leave => false,
            IfClosed::OpenIfPrompted(strays) => is_closed && self.is_prompted(strays).await?,
        };
        if is_closed && !may_open {
            return Ok(());
        }
        let purpose = Purpose::Work { reason, may_open };
        self.take_over_locked(&session, purpose, &guard).await
    }

    /// Locks a session on this node. A caller holds the guard while it starts, takes over, rewinds
    /// or closes the session.
    pub async fn lock(&self, session: &SessionId) -> Result<SessionGuard, Refusal> {
        self.locks.lock(session).await
    }
}
