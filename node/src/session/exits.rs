//! Tells leads which workers have ended. Whether a lead was told is read off the session's log, so
//! that no crash between a worker's end and the lead's row loses it, and nobody is told of twice.

use std::time::Duration;

use planck_common::{SessionId, command::Wake, event::Event, reply::Refusal};
use tokio::time::timeout;

use super::deliver::wake;
use crate::{
    agent::Command,
    node::Node,
    store::{SessionRecord, StoreError},
};

/// How long a lead may take to write it down; else the sweep tells it.
const PATIENCE: Duration = Duration::from_secs(5);

impl Node {
    /// A worker of the session has ended: its lead is told wherever it is, or by a later sweep. A
    /// lead that nobody holds is told when it is taken up.
    pub(crate) async fn report_exits(&self, session: &SessionRecord) {
        let told = match &session.owner {
            Some(node) if node != self.id() => {
                self.peers()
                    .wake(
                        node,
                        &Wake {
                            exits: true,
                            ..wake(&session.id, &session.spec.lead)
                        },
                    )
                    .await
            }
            Some(_) => self.tell_exits(&session.id).await,
            None => Ok(()),
        };
        if let Err(refusal) = told {
            tracing::debug!(session = %session.id, %refusal, "the lead cannot be told of a worker's end yet");
            self.chores().look_for_exits(&session.id);
        }
    }

    /// Writes into the log of the lead, which is here, who has ended and is not in it.
    pub(crate) async fn tell_exits(&self, session: &SessionId) -> Result<(), Refusal> {
        let _alone = self.chores().tell_alone(session).await?;
        let record = self.find_session(session).await?;
        for exit in self.store().untold_exits(session).await? {
            let told = self
                .host()
                .command(&record.spec.lead, Command::Record(Event::WorkerExit(exit)));
            let told = timeout(PATIENCE, told)
                .await
                .map_err(|_| Refusal::unavailable("the lead does not answer"))?;
            told.map_err(|gone| Refusal::unavailable(gone.to_string()))?;
        }
        Ok(())
    }

    /// What is left to tell, and what a node that is gone may have left untold.
    pub(super) async fn sweep_exits(&self, look_everywhere: bool) {
        let mut sessions = self.chores().take_exits();
        if look_everywhere {
            sessions.extend(self.led_here());
        }
        for session in sessions {
            match self.store().session(&session).await {
                Ok(Some(record)) => self.report_exits(&record).await,
                Ok(None) | Err(StoreError::NotFound(_)) => {}
                Err(error) => {
                    tracing::debug!(%session, %error, "the next sweep looks for workers that ended");
                    self.chores().look_for_exits(&session);
                }
            }
        }
    }

    fn led_here(&self) -> Vec<SessionId> {
        let hosted = self
            .host()
            .agents(None)
            .into_iter()
            .filter_map(|agent| self.host().hosting(&agent));
        hosted
            .filter(|hosting| hosting.session.lead == hosting.agent)
            .map(|hosting| hosting.session.id.clone())
            .collect()
    }
}
