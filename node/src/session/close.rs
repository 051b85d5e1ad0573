//! The end of a session or of an agent, on request: what runs is ended, what waits gets its outcome, leases are released.

use futures_util::future;
use planck_common::{
    AgentId,
    command::{AgentState, RemovedCounts, SessionState},
    event::{Event, Reason, WorkerExit},
    reply::{Code, Refusal},
};

use crate::{
    agent::Command,
    node::Node,
    store::{AgentRecord, SessionRecord},
};

/// Agents of a session that are stopped or aborted at once.
const AT_ONCE: usize = 32;

impl Node {
    /// Closes a session: its agents end, and come back with it when it is prompted again.
    pub async fn close(&self, session: &SessionRecord, reason: &str) -> Result<SessionState, Refusal> {
        let alone = self.host().alone(&session.id).await?;
        let session = self.find_session(&session.id).await?;
        if session.state == SessionState::Closed && session.owner.is_none() {
            return Ok(SessionState::Closed);
        }
        let lead = self.take_up_here(&session, "to be closed", &alone).await?;
        for members in self.members(&session.id).await?.chunks(AT_ONCE) {
            let mut stops = Vec::with_capacity(AT_ONCE);
            for member in members.iter().filter(|member| member.id != lead.id) {
                stops.push(self.stop_here(member, reason, false, Vec::new()));
            }
            future::try_join_all(stops).await?;
        }
        self.store().set_state(&session.id, lead.epoch, SessionState::Closed).await?;
        let closed = Event::SessionClosed(Reason { reason: reason.into() });
        self.stop_here(&lead, reason, false, vec![closed]).await?;
        Ok(SessionState::Closed)
    }

    /// Closes a session if it runs, and removes it.
    pub async fn delete(&self, session: &SessionRecord, reason: &str) -> Result<RemovedCounts, Refusal> {
        self.close(session, reason).await?;
        Ok(self.store().delete(&session.id).await?)
    }

    /// Stops an agent for good; a lead takes its session with it.
    pub async fn stop_agent(&self, agent: &AgentRecord, reason: &str) -> Result<AgentState, Refusal> {
        let session = self.find_session(&agent.session).await?;
        if agent.id == session.spec.lead {
            self.close(&session, reason).await?;
            return Ok(AgentState::Stopped);
        }
        self.stop_here(agent, reason, true, Vec::new()).await?;
        let exit = WorkerExit { id: agent.id.clone(), name: agent.spec.name.clone(), reason: reason.into() };
        let _ = self.host().tell(&session.spec.lead, Command::Record(Event::WorkerExit(exit))).await;
        Ok(AgentState::Stopped)
    }

    /// Ends the running turns of a session; the agents that had one.
    pub async fn abort_session(&self, session: &SessionRecord) -> Result<Vec<AgentId>, Refusal> {
        let members = self.members(&session.id).await?;
        members.iter().filter(|agent| !self.host().has(&agent.id)).try_for_each(|agent| self.check_nobody_elses(agent))?;
        let mut aborted = Vec::new();
        for agents in members.chunks(AT_ONCE) {
            let mut aborts = Vec::with_capacity(AT_ONCE);
            for agent in agents {
                aborts.push(self.abort_if_busy(&agent.id));
            }
            aborted.extend(future::join_all(aborts).await.into_iter().flatten());
        }
        Ok(aborted)
    }

    async fn abort_if_busy(&self, agent: &AgentId) -> Option<AgentId> {
        if self.host().is_parked(agent) || self.host().info(agent).await.ok()?.state == AgentState::Idle {
            return None;
        }
        let aborted = self.host().command(agent, Command::Abort { reason: None }).await;
        aborted.ok().map(|_| agent.clone())
    }

    async fn stop_here(&self, agent: &AgentRecord, reason: &str, for_good: bool, last: Vec<Event>) -> Result<(), Refusal> {
        let stop = Command::Stop { reason: reason.into(), for_good, last };
        if self.host().command(&agent.id, stop).await.is_ok() {
            return Ok(());
        }
        match &agent.node {
            Some(node) if *node != *self.id() => {
                let message = format!("agent {} is on node {node}, which did not stop it", agent.id);
                Err(Refusal::new(Code::Unavailable, message))
            }
            Some(_) | None => Ok(self.store().release(&agent.session, &agent.id, agent.epoch, for_good).await?),
        }
    }
}
