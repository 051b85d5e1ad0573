//! Tells leads which workers have ended. The session's log says whether its lead was told, so that
//! a crash between a worker's end and the row in the lead's log loses nothing, and no end is told
//! twice.

use std::time::Duration;

use planck_common::{SessionId, command::Wake, event::Event, reply::Refusal};
use tokio::time::timeout;

use super::Takeover;
use crate::{
    agent::Command,
    store::{SessionRecord, StoreError},
};

/// How long a lead may take to write an end down; after that the sweep tells it.
const PATIENCE: Duration = Duration::from_secs(5);

impl Takeover {
    /// A worker of the session has ended: its lead is told wherever it is, or by a later sweep. A
    /// lead without a host is told when it is taken up.
    pub(super) async fn report_exits(&self, session: &SessionRecord) {
        let told = match &session.owner {
            Some(node) if node != self.view.id() => {
                let wake = Wake {
                    exits: true,
                    ..Wake::look(&session.id, &session.spec.lead)
                };
                self.peers.wake(node, &wake).await
            }
            Some(_) => self.record_exits(&session.id).await,
            None => Ok(()),
        };
        if let Err(refusal) = told {
            tracing::debug!(session = %session.id, %refusal, "the lead cannot be told of a worker's end yet");
            self.maintenance.look_for_exits(&session.id);
        }
    }

    /// Has the next sweep look for workers of the session that ended.
    pub fn look_for_exits(&self, session: &SessionId) {
        self.maintenance.look_for_exits(session);
    }

    /// Writes the ends that are not in the log of the lead, which is on this node, into it.
    pub async fn record_exits(&self, session: &SessionId) -> Result<(), Refusal> {
        let _guard = self.maintenance.lock_exit_reports(session).await?;
        let record = self.lookup.session(session).await?;
        for exit in self.store.untold_exits(session).await? {
            let told = self
                .host
                .command(&record.spec.lead, Command::Record(Event::WorkerExit(exit)));
            let told = timeout(PATIENCE, told)
                .await
                .map_err(|_| Refusal::unavailable("the lead does not answer"))?;
            told.map_err(|gone| Refusal::unavailable(gone.to_string()))?;
        }
        Ok(())
    }

    /// Reports the ends that are left to report. With `everywhere` it looks at every session that
    /// is led from here: a node that is gone may have left reports undone.
    pub(super) async fn sweep_exits(&self, everywhere: bool) {
        let mut sessions = self.maintenance.take_exits();
        if everywhere {
            let mut leads = self.host.hostings();
            leads.retain(|hosting| hosting.session.lead == hosting.agent);
            sessions.extend(leads.into_iter().map(|lead| lead.session.id.clone()));
        }
        for session in sessions {
            match self.store.session(&session).await {
                Ok(Some(record)) => self.report_exits(&record).await,
                Ok(None) | Err(StoreError::NotFound(_)) => {}
                Err(error) => {
                    tracing::debug!(%session, %error, "the next sweep looks for workers that ended");
                    self.maintenance.look_for_exits(&session);
                }
            }
        }
    }
}
