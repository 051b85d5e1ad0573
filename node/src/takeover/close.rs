//! Closes sessions and stops agents. Running work is ended, waiting inputs get their outcome, and
//! the leases are released.

use std::collections::BTreeMap;

use futures_util::future;
use planck_common::{
    NodeId, SessionId,
    command::{AgentState, SessionState, StopTeam},
    event::{Event, Reason},
    registry::TeamEnd,
    reply::Refusal,
};
use tokio::time::Duration;

use super::{Purpose, SessionGuard, Takeover, maintenance::UnfinishedClose, stop::LOST};
use crate::actor::AT_ONCE;
use planck_cluster::planted::{PlantedFault, is_planted};
use planck_store::{AgentRecord, LeaseRelease, SessionRecord};

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
        let session = self.base.lookup.session(&session.id).await?;
        if session.state == SessionState::Open || !self.held(&session).await?.is_empty() {
            self.close_locked(&session, reason, Purpose::End, &guard)
                .await?;
        }
        Ok(SessionState::Closed)
    }

    /// Closes a session whose node died and that is not to continue.
    pub(super) async fn close_lost(
        &self,
        session: &SessionRecord,
        guard: &SessionGuard,
    ) -> Result<(), Refusal> {
        self.close_locked(session, LOST, Purpose::Lost, guard).await
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
        self.base
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
        if is_planted(PlantedFault::CloseKeepsMembers) {
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
            ends.push(self.end_on(node, &session.id, &order, members));
        }
        future::try_join_all(ends).await.map(drop)
    }

    /// Asks a node to end its members. If the node hosts none of them although their records name
    /// it, releases their leases for it.
    async fn end_on(
        &self,
        node: &NodeId,
        session: &SessionId,
        order: &StopTeam,
        members: &[AgentRecord],
    ) -> Result<(), Refusal> {
        let ended = self.base.peers.stop_team(node, order, ENDING).await?;
        if ended.agents > 0 {
            return Ok(());
        }
        let release = |member: &AgentRecord| LeaseRelease {
            agent: member.id.clone(),
            epoch: member.epoch,
            stopped: false,
        };
        let releases: Vec<LeaseRelease> = members.iter().map(release).collect();
        let results = self.base.store.release_all(session, &releases).await?;
        Ok(results.into_iter().collect::<Result<(), _>>()?)
    }

    /// Returns the agents of a session whose leases some node holds, alive or not.
    pub(super) async fn held(&self, session: &SessionRecord) -> Result<Vec<AgentRecord>, Refusal> {
        let mut agents = self.base.store.agents(&session.id).await?;
        agents.retain(|agent| agent.node.is_some());
        Ok(agents)
    }

    /// Stops for good an agent that this node hosts or that no node holds. Stopping the
    /// orchestrator closes its session.
    pub async fn stop_agent(
        &self,
        agent: &AgentRecord,
        reason: &str,
    ) -> Result<AgentState, Refusal> {
        let session = self.base.lookup.session(&agent.session).await?;
        if agent.id == session.spec.lead {
            self.close(&session, reason).await?;
            return Ok(AgentState::Stopped);
        }
        self.stop_here(agent, reason, true, Vec::new()).await?;
        self.report_exits(&session).await;
        Ok(AgentState::Stopped)
    }
}
