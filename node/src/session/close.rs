//! The end of a session or of an agent, on request: what runs is ended, what waits gets its
//! outcome, leases are released.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future;
use planck_common::{
    AgentId, NodeId,
    command::{Aborted, AgentState, RemovedCounts, SessionState, SessionVerb, StopTeam},
    event::{Event, Reason},
    registry::TeamEnd,
    reply::Refusal,
    subject::Address,
};

use super::{claim::Purpose, elsewhere::Hop};
use crate::{
    actor::turnstile::Alone,
    agent::Command,
    node::Node,
    store::{AgentRecord, SessionRecord},
};

/// Agents of a session that are stopped or aborted at once.
pub(super) const AT_ONCE: usize = 32;

/// Why what a dead node hosted ends.
const LOST: &str = "node_lost";

/// How often it is looked who of a closing session is still held: a birth may have been under way.
const ROUNDS: usize = 4;

/// How long another node has to end what it hosts of a session; processes are given time to die.
const ENDING: Duration = Duration::from_secs(12);

impl Node {
    /// Closes a session whose lead is here or to be had: its agents end, and come back with it when
    /// it is prompted again.
    pub(crate) async fn close(
        &self,
        session: &SessionRecord,
        reason: &str,
    ) -> Result<SessionState, Refusal> {
        let alone = self.host().alone(&session.id).await?;
        let session = self.find_session(&session.id).await?;
        if session.state == SessionState::Closed && self.held(&session).await?.is_empty() {
            return Ok(SessionState::Closed);
        }
        self.chores().closing(&session.id, reason);
        self.close_alone(&session, reason, &alone).await?;
        self.chores().closed(&session.id);
        Ok(SessionState::Closed)
    }

    /// Closes a session whose node died and that is not to go on.
    pub(super) async fn close_lost(
        &self,
        session: &SessionRecord,
        alone: &Alone,
    ) -> Result<(), Refusal> {
        self.chores().closing(&session.id, LOST);
        self.end_alone(session, LOST, Purpose::Lost, alone).await?;
        self.chores().closed(&session.id);
        Ok(())
    }

    async fn close_alone(
        &self,
        session: &SessionRecord,
        reason: &str,
        alone: &Alone,
    ) -> Result<(), Refusal> {
        self.end_alone(session, reason, Purpose::End, alone).await
    }

    /// Recorded as closed first: from then on nobody is born, and whoever finds the session half
    /// closed goes on closing it.
    async fn end_alone(
        &self,
        session: &SessionRecord,
        reason: &str,
        purpose: Purpose<'_>,
        alone: &Alone,
    ) -> Result<(), Refusal> {
        let lead = self.take_up_here(session, purpose, alone).await?;
        self.store()
            .set_state(&session.id, lead.epoch, SessionState::Closed)
            .await?;
        self.end_members(session, &lead, reason).await?;
        let closed = Event::SessionClosed(Reason {
            reason: reason.into(),
        });
        self.stop_here(&lead, reason, false, vec![closed]).await?;
        self.bury_closed(session, lead.incarnation).await;
        Ok(())
    }

    async fn end_members(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        reason: &str,
    ) -> Result<(), Refusal> {
        for _ in 0..ROUNDS {
            let mut held = self.held(session).await?;
            held.retain(|agent| agent.id != lead.id);
            if held.is_empty() {
                return Ok(());
            }
            let (there, here): (Vec<_>, Vec<_>) = held
                .into_iter()
                .partition(|agent| self.elsewhere(agent).is_some());
            for some in here.chunks(AT_ONCE) {
                future::try_join_all(
                    some.iter()
                        .map(|agent| self.stop_here(agent, reason, false, Vec::new())),
                )
                .await?;
            }
            self.end_there(session, lead, there, reason).await?;
        }
        Ok(())
    }

    /// Has other nodes end the members they host. One that a node holds by its record only, and had
    /// no time to start, is taken from it.
    async fn end_there(
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
            said: Some(reason.to_owned()),
        };
        let mut ends = Vec::with_capacity(by_node.len());
        for (node, members) in &by_node {
            ends.push(self.end_on(node, &order, members));
        }
        future::try_join_all(ends).await.map(drop)
    }

    async fn end_on(
        &self,
        node: &NodeId,
        order: &StopTeam,
        members: &[AgentRecord],
    ) -> Result<(), Refusal> {
        let ended = self.peers().stop_team(node, order, ENDING).await?;
        if ended.agents == 0 {
            for member in members {
                self.store()
                    .release(&member.session, &member.id, member.epoch, false)
                    .await?;
            }
        }
        Ok(())
    }

    /// The agents of a session that some node holds.
    async fn held(&self, session: &SessionRecord) -> Result<Vec<AgentRecord>, Refusal> {
        let mut agents = self.store().agents(&session.id).await?;
        agents.retain(|agent| agent.node.is_some());
        Ok(agents)
    }

    /// Closes a session if it runs, and removes it.
    pub(crate) async fn delete(
        &self,
        session: &SessionRecord,
        reason: &str,
    ) -> Result<RemovedCounts, Refusal> {
        self.close(session, reason).await?;
        Ok(self.store().delete(&session.id).await?)
    }

    /// Stops an agent that is here, or nowhere, for good; a lead takes its session with it.
    pub(crate) async fn stop_agent_here(
        &self,
        agent: &AgentRecord,
        reason: &str,
    ) -> Result<AgentState, Refusal> {
        let session = self.find_session(&agent.session).await?;
        if agent.id == session.spec.lead {
            self.close(&session, reason).await?;
            return Ok(AgentState::Stopped);
        }
        self.stop_here(agent, reason, true, Vec::new()).await?;
        self.report_exits(&session).await;
        Ok(AgentState::Stopped)
    }

    /// Ends the running turns of a session on every node, or only here where another node was asked
    /// first; the agents that had one.
    pub(crate) async fn abort_session(
        &self,
        session: &SessionRecord,
        hop: Hop,
    ) -> Result<Vec<AgentId>, Refusal> {
        let members = self.members(&session.id).await?;
        let (there, here): (Vec<_>, Vec<_>) = members
            .iter()
            .partition(|agent| self.elsewhere(agent).is_some());
        let (aborted, also) = tokio::join!(
            self.abort_here(&here),
            self.abort_there(session, &there, hop)
        );
        Ok(aborted.into_iter().chain(also?).collect())
    }

    async fn abort_here(&self, agents: &[&AgentRecord]) -> Vec<AgentId> {
        let mut aborted = Vec::new();
        for some in agents.chunks(AT_ONCE) {
            aborted.extend(
                future::join_all(some.iter().map(|agent| self.abort_if_busy(&agent.id)))
                    .await
                    .into_iter()
                    .flatten(),
            );
        }
        aborted
    }

    /// Every node is asked, whatever another one answers.
    async fn abort_there(
        &self,
        session: &SessionRecord,
        agents: &[&AgentRecord],
        hop: Hop,
    ) -> Result<Vec<AgentId>, Refusal> {
        let mut nodes: Vec<&NodeId> = agents
            .iter()
            .filter_map(|agent| self.elsewhere(agent))
            .collect();
        nodes.sort();
        nodes.dedup();
        if hop == Hop::Last {
            return Ok(Vec::new());
        }
        let mut asked = Vec::with_capacity(nodes.len());
        for node in nodes {
            asked.push(self.abort_on(node, session));
        }
        let answers: Result<Vec<Vec<AgentId>>, Refusal> =
            future::join_all(asked).await.into_iter().collect();
        Ok(answers?.into_iter().flatten().collect())
    }

    async fn abort_on(
        &self,
        node: &NodeId,
        session: &SessionRecord,
    ) -> Result<Vec<AgentId>, Refusal> {
        let address = Address::session(&session.id, SessionVerb::Abort.name());
        let ok = self.pass_on(Hop::First, node, &address, &[]).await?;
        let answer: Result<Aborted, _> = serde_json::from_str(&ok);
        answer
            .map(|answer| answer.aborted)
            .map_err(|error| Refusal::unavailable(format!("node {node}: {error}")))
    }

    async fn abort_if_busy(&self, agent: &AgentId) -> Option<AgentId> {
        if self.host().is_at_rest(agent)
            || self.host().info(agent).await.ok()?.state == AgentState::Idle
        {
            return None;
        }
        let aborted = self
            .host()
            .command(agent, Command::Abort { reason: None })
            .await;
        aborted.ok().map(|_| agent.clone())
    }

    /// A member whose node died ends for good, where the session's members are not to go on.
    pub(super) async fn stop_lost(&self, member: &AgentRecord) -> Result<(), Refusal> {
        self.stop_here(member, LOST, true, Vec::new()).await?;
        self.report_exits(&self.find_session(&member.session).await?)
            .await;
        Ok(())
    }

    async fn stop_here(
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
        if self.host().command(&agent.id, stop).await.is_ok() {
            return Ok(());
        }
        // Nobody holds it, or this node by the record only.
        Ok(self
            .store()
            .release(&agent.session, &agent.id, agent.epoch, for_good)
            .await?)
    }
}
