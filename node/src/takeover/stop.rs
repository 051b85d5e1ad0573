//! Stops agents, and reports to orchestrators which workers have ended. The session's log shows
//! which ends were reported, so that a crash between a worker's end and the row in the log loses
//! nothing, and no end is reported twice.

use std::time::Duration;

use planck_common::{SessionId, command::Wake, event::Event, reply::Refusal};
use tokio::time::timeout;

use super::Takeover;
use crate::agent::Command;
use planck_store::{AgentRecord, SessionRecord, StoreError};

/// The reason that is recorded when sessions or members end because their node died.
pub(super) const LOST: &str = "node_lost";

/// How long an orchestrator may take to record the end of a worker. After that, a sweep reports the
/// end again.
const PATIENCE: Duration = Duration::from_secs(5);

impl Takeover {
    /// Stops for good a member whose node died, in a session whose members are not to continue.
    pub(super) async fn stop_lost(&self, member: &AgentRecord) -> Result<(), Refusal> {
        self.stop_here(member, LOST, true, Vec::new()).await?;
        let session = self.base.lookup.session(&member.session).await?;
        self.report_exits(&session).await;
        Ok(())
    }

    /// Stops an agent on this node. If its actor is not here, releases its lease.
    pub(super) async fn stop_here(
        &self,
        agent: &AgentRecord,
        reason: &str,
        for_good: bool,
        last: Vec<Event>,
    ) -> Result<(), Refusal> {
        let stop = Command::Stop {
            reason: reason.into(),
            for_good,
            last,
        };
        if self.base.host.command(&agent.id, stop).await.is_ok() {
            return Ok(());
        }
        // No node hosts the agent, or only its record says that this node holds the lease.
        Ok(self
            .base
            .store
            .release(&agent.session, &agent.id, agent.epoch, for_good)
            .await?)
    }

    /// Reports the ends of workers of the session to its orchestrator, on this node or another one.
    /// If the attempt fails, the next sweep repeats it. An orchestrator without a host is informed
    /// when its session is taken over.
    pub(super) async fn report_exits(&self, session: &SessionRecord) {
        let told = match &session.owner {
            Some(node) if node != self.base.view.id() => {
                let wake = Wake {
                    exits: true,
                    ..Wake::look(&session.id, &session.spec.lead)
                };
                self.base.peers.wake(node, &wake).await
            }
            Some(_) => self.record_exits(&session.id).await,
            None => Ok(()),
        };
        if let Err(refusal) = told {
            tracing::debug!(session = %session.id, %refusal, "cannot report a worker's end to the orchestrator yet");
            self.maintenance.look_for_exits(&session.id);
        }
    }

    /// Makes the next sweep check for workers of the session that ended.
    pub fn look_for_exits(&self, session: &SessionId) {
        self.maintenance.look_for_exits(session);
    }

    /// Records the unreported ends of workers in the log of their orchestrator, which must be on
    /// this node.
    pub async fn record_exits(&self, session: &SessionId) -> Result<(), Refusal> {
        let _guard = self.maintenance.lock_exit_reports(session).await?;
        let record = self.base.lookup.session(session).await?;
        for exit in self.base.store.unreported_exits(session).await? {
            let told = self
                .base
                .host
                .command(&record.spec.lead, Command::Record(Event::WorkerExit(exit)));
            let told = timeout(PATIENCE, told)
                .await
                .map_err(|_| Refusal::unavailable("the orchestrator does not answer"))?;
            told.map_err(|gone| Refusal::unavailable(gone.to_string()))?;
        }
        Ok(())
    }

    /// Reports the ends of workers that may not have been reported yet. With `everywhere`, also
    /// checks every session whose orchestrator is here, because a node that is gone may have left
    /// reports unfinished.
    pub(super) async fn sweep_exits(&self, everywhere: bool) {
        let mut sessions = self.maintenance.take_exits();
        if everywhere {
            let mut leads = self.base.host.hostings();
            leads.retain(|hosting| hosting.session.lead == hosting.agent);
            sessions.extend(leads.into_iter().map(|lead| lead.session.id.clone()));
        }
        for session in sessions {
            match self.base.store.session(&session).await {
                Ok(Some(record)) => self.report_exits(&record).await,
                Ok(None) | Err(StoreError::NotFound(_)) => {}
                Err(error) => {
                    tracing::debug!(%session, %error, "cannot read which workers ended; the next sweep tries again");
                    self.maintenance.look_for_exits(&session);
                }
            }
        }
    }
}
