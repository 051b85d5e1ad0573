//! Closes sessions and stops agents. Running work is ended, waiting inputs get their outcome, and
//! the leases are released. The session's log shows which ends of workers were reported to the
//! orchestrator, so that a crash between a worker's end and the row in the log loses nothing, and
//! no end is reported twice.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future;
use planck_cluster::planted::{PlantedFault, is_planted};
use planck_common::{
    NodeId, SessionId,
    command::{AgentState, SessionState, StopTeam, Wake},
    event::{Event, Reason},
    registry::TeamEnd,
    reply::Refusal,
};
use planck_store::{AgentRecord, SessionRecord, StoreError, Stray};
use tokio::time::timeout;

use super::{Purpose, SessionGuard, Takeover, UnfinishedClose};
use crate::{actor::AT_ONCE, agent::Command};

/// The maximum number of times that a close checks for agents that are still held, because a spawn
/// may have been in progress.
const ROUNDS: usize = 4;

/// How long another node may take to end the session's members that it hosts. This includes the
/// time in which processes end.
const ENDING: Duration = Duration::from_secs(12);

impl Takeover {
    /// Closes a session whose orchestrator is on this node or can be taken over. Its agents end, and
    /// start again when the session is prompted.
    pub async fn close(
        &self,
        session: &SessionRecord,
        reason: &str,
    ) -> Result<SessionState, Refusal> {
        let guard = self.lock(&session.id).await?;
        let session = self.handles.lookup.session(&session.id).await?;
        if session.state == SessionState::Open || !self.held(&session).await?.is_empty() {
            self.close_locked(&session, reason, Purpose::End, &guard)
                .await?;
        }
        Ok(SessionState::Closed)
    }

    /// Finishes a close that was interrupted. Does not close a session that is open: what looked like an
    /// interrupted close was a prompt that had claimed an agent and then opened the session.
    pub(super) async fn finish_close(&self, id: &SessionId) -> Result<(), Refusal> {
        let guard = self.lock(id).await?;
        let session = self.handles.lookup.session(id).await?;
        if session.state == SessionState::Open {
            self.handles.host.may_miss_agents_of(id);
            return Ok(());
        }
        if self.held(&session).await?.is_empty() {
            return Ok(());
        }
        self.close_locked(&session, "closed", Purpose::End, &guard)
            .await
    }

    /// Closes a session whose node died and that is not to continue.
    pub(super) async fn close_lost(
        &self,
        session: &SessionRecord,
        guard: &SessionGuard,
    ) -> Result<(), Refusal> {
        let closed = self.close_locked(session, LOST, Purpose::Lost, guard).await;
        if closed.is_err() {
            // This node may have started the agents, only for their ends. A prompt must not make them
            // work before a sweep repeats the close.
            let here = self.handles.host.agents(Some(&session.id));
            self.handles.host.drop_agents(&here).await;
            self.handles.host.may_miss_agents_of(&session.id);
        }
        closed
    }

    /// Closes the session under its lock. Records the session as closed before any member ends.
    /// From then on no agent is spawned, and a sweep that finds the session partly closed continues
    /// the close.
    pub(super) async fn close_locked(
        &self,
        session: &SessionRecord,
        reason: &str,
        purpose: Purpose<'_>,
        guard: &SessionGuard,
    ) -> Result<(), Refusal> {
        let close = UnfinishedClose {
            reason: reason.to_owned(),
            is_lost: purpose == Purpose::Lost,
        };
        self.maintenance.closing(&session.id, close);
        let lead = self.take_over_here(session, purpose, guard).await?;
        self.handles
            .store
            .set_state(&session.id, lead.epoch, SessionState::Closed)
            .await?;
        self.end_members(session, &lead, reason).await?;
        let closed = Event::SessionClosed(Reason {
            reason: reason.into(),
        });
        self.stop_here(&lead, reason, false, vec![closed]).await?;
        self.mark_closed_team_dead(session, lead.incarnation).await;
        self.maintenance.closed(&session.id);
        Ok(())
    }

    async fn end_members(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        reason: &str,
    ) -> Result<(), Refusal> {
        if is_planted(PlantedFault::ClosedMembersRunOn) {
            return Ok(());
        }
        for _ in 0..ROUNDS {
            let mut held = self.held(session).await?;
            held.retain(|agent| agent.id != lead.id);
            if held.is_empty() {
                return Ok(());
            }
            let (elsewhere, here): (Vec<_>, Vec<_>) = held
                .into_iter()
                .partition(|agent| self.placement.other_host(agent).is_some());
            for some in here.chunks(AT_ONCE) {
                let stops = some
                    .iter()
                    .map(|agent| self.stop_here(agent, reason, false, Vec::new()));
                future::try_join_all(stops).await?;
            }
            self.end_elsewhere(session, lead, elsewhere, reason).await?;
        }
        Ok(())
    }

    /// Asks the other nodes to end the members that they host.
    async fn end_elsewhere(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        members: Vec<AgentRecord>,
        reason: &str,
    ) -> Result<(), Refusal> {
        let mut by_node: BTreeMap<NodeId, Vec<AgentRecord>> = BTreeMap::new();
        for member in members {
            if let Some(node) = member.node.clone() {
                by_node.entry(node).or_default().push(member);
            }
        }
        let order = StopTeam {
            team_id: session.spec.team_id.clone(),
            incarnation: lead.incarnation,
            reason: TeamEnd::Closed,
            log_reason: Some(reason.to_owned()),
        };
        let mut ends = Vec::with_capacity(by_node.len());
        for (node, members) in &by_node {
            ends.push(self.end_on(node, session, &order, members));
        }
        future::try_join_all(ends).await.map(drop)
    }

    /// Asks a node to end its members. If the node hosts none of them although their records name it,
    /// starts them here for their ends: the node may have dropped them in the middle of a call, because
    /// the orchestrator's node died.
    async fn end_on(
        &self,
        node: &NodeId,
        session: &SessionRecord,
        order: &StopTeam,
        members: &[AgentRecord],
    ) -> Result<(), Refusal> {
        let ended = self.handles.peers.stop_team(node, order, ENDING).await?;
        if ended.agents > 0 {
            return Ok(());
        }
        let context = Arc::new(self.handles.lookup.context(session, order.incarnation)?);
        for some in members.chunks(AT_ONCE) {
            let starts = some.iter().map(|member| {
                let (context, opening) = (Arc::clone(&context), Purpose::End.opening(|_| None));
                let tools_from = || None;
                self.placement
                    .start_member(context, member, opening, tools_from, None)
            });
            future::try_join_all(starts).await?;
        }
        Ok(())
    }

    /// Returns the agents of a session whose leases some node holds, alive or not.
    pub(super) async fn held(&self, session: &SessionRecord) -> Result<Vec<AgentRecord>, Refusal> {
        let mut agents = self.handles.store.agents(&session.id).await?;
        agents.retain(|agent| agent.node.is_some());
        Ok(agents)
    }

    /// Releases the leases of agents that were stopped for good, because the release after the stop
    /// failed or was cut short. No node takes such an agent over.
    pub(super) async fn release_stopped(
        &self,
        session: &SessionRecord,
        strays: &[Stray],
    ) -> Result<(), StoreError> {
        let store = &self.handles.store;
        let mut agents = store.agents(&session.id).await?;
        agents.retain(|agent| agent.node.is_some() && !agent.is_there());
        for agent in agents {
            let is_stray = |stray: &Stray| stray.agent == agent.id && stray.epoch == agent.epoch;
            if strays.iter().any(is_stray) {
                let released = store.release(&session.id, &agent.id, agent.epoch, true);
                released.await?;
            }
        }
        Ok(())
    }

    /// Stops for good an agent that this node hosts or that no node holds. Stopping the
    /// orchestrator closes its session.
    pub async fn stop_agent(
        &self,
        agent: &AgentRecord,
        reason: &str,
    ) -> Result<AgentState, Refusal> {
        let session = self.handles.lookup.session(&agent.session).await?;
        if agent.id == session.spec.lead {
            self.close(&session, reason).await?;
            return Ok(AgentState::Stopped);
        }
        self.stop_here(agent, reason, true, Vec::new()).await?;
        self.report_exits(&session).await;
        Ok(AgentState::Stopped)
    }
}

/// The reason that is recorded when sessions or members end because their node died.
const LOST: &str = "node_lost";

/// How long an orchestrator may take to record the end of a worker. After that, a sweep reports the
/// end again.
const PATIENCE: Duration = Duration::from_secs(5);

impl Takeover {
    /// Stops for good a member whose node died, in a session whose members are not to continue.
    pub(super) async fn stop_lost(&self, member: &AgentRecord) -> Result<(), Refusal> {
        self.stop_here(member, LOST, true, Vec::new()).await?;
        let session = self.handles.lookup.session(&member.session).await?;
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
        if self.handles.host.command(&agent.id, stop).await.is_ok() {
            return Ok(());
        }
        // No node hosts the agent, or only its record says that this node holds the lease.
        Ok(self
            .handles
            .store
            .release(&agent.session, &agent.id, agent.epoch, for_good)
            .await?)
    }

    /// Reports the ends of workers of the session to its orchestrator, on this node or another one.
    /// If the attempt fails, the next sweep repeats it. An orchestrator without a host is informed
    /// when its session is taken over.
    pub(super) async fn report_exits(&self, session: &SessionRecord) {
        let told = match &session.owner {
            Some(node) if node != self.handles.view.id() => {
                let wake = Wake {
                    exits: true,
                    ..Wake::look(&session.id, &session.spec.lead)
                };
                self.handles.peers.wake(node, &wake).await
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
        let record = self.handles.lookup.session(session).await?;
        for exit in self.handles.store.unreported_exits(session).await? {
            let told = self
                .handles
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
            let mut leads = self.handles.host.hostings();
            leads.retain(|hosting| hosting.session.lead == hosting.agent);
            sessions.extend(leads.into_iter().map(|lead| lead.session.id.clone()));
        }
        for session in sessions {
            match self.handles.store.session(&session).await {
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
