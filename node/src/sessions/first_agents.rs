//! Starts the agents of a new session from the records that were just written, without reading them
//! back from the store.

use std::{collections::HashMap, sync::Arc};

use futures_util::future;
use planck_common::{
    AgentId,
    event::{Event, SessionStarted, Warning},
    reply::Refusal,
};

use super::Sessions;
use crate::{
    actor::{AT_ONCE, Hosting, Opening, context::SessionContext},
    agent::Memory,
    placement::{AdmissionPermit, AgentNodes, claim_request},
};
use planck_store::{AgentRecord, NewInput, NewSession, SessionRecord};

/// The incarnation of a new session's team.
const FIRST: i64 = 1;

/// The agents of a new session, whose leases this node holds.
pub(super) struct FirstAgents {
    /// The orchestrator, and then the other agents.
    pub(super) agents: Vec<AgentRecord>,
    /// The node that was chosen for each agent.
    pub(super) nodes: AgentNodes,
    /// The permits that [`Sessions::expect_agents`] returned.
    pub(super) permits: HashMap<AgentId, AdmissionPermit>,
    /// The orchestrator's first prompt.
    pub(super) prompt: Option<NewInput>,
    /// Why AGENTS.md or parts of it were not used.
    pub(super) warning: Option<String>,
}

impl Sessions {
    /// Reserves a place for each agent that starts on this node. The caller does so before the
    /// session is recorded. An agent then reads its inbox if an input came before it had started.
    pub(super) fn expect_agents(
        &self,
        session: &NewSession,
        nodes: &AgentNodes,
    ) -> HashMap<AgentId, AdmissionPermit> {
        let is_here = |agent: &&AgentId| {
            nodes
                .get(*agent)
                .is_none_or(|node| node == self.base.view.id())
        };
        let agents = session.agents.iter().map(|agent| &agent.id);
        let admission = self.placement.local().admission();
        agents
            .filter(is_here)
            .map(|agent| (agent.clone(), admission.enter_with_session(agent)))
            .collect()
    }

    /// Starts the orchestrator on this node, and each other agent on its chosen node, or here if
    /// that node refuses it.
    pub(super) async fn host_all(
        &self,
        session: &SessionRecord,
        first: FirstAgents,
    ) -> Result<(), Refusal> {
        let FirstAgents {
            agents,
            nodes,
            mut permits,
            mut prompt,
            warning,
        } = first;
        let context = Arc::new(self.base.lookup.context(session, FIRST)?);
        self.teams.create(&context).await?;
        let (lead, members): (Vec<_>, Vec<_>) = agents
            .into_iter()
            .partition(|agent| agent.id == session.spec.lead);
        for lead in lead {
            let permit = permits.remove(&lead.id);
            let opening = Opening {
                events: first_events(session, warning.clone()),
                known: Some(Box::new((
                    lead.clone(),
                    Memory::of_new_agent(prompt.take()),
                ))),
                ..Opening::default()
            };
            self.start_member(&context, &lead, opening, permit).await?;
        }
        let members: Vec<_> = members
            .into_iter()
            .map(|member| (permits.remove(&member.id), member))
            .collect();
        let mut members = members.into_iter();
        loop {
            let some: Vec<_> = members.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                return Ok(());
            }
            let started = some
                .into_iter()
                .map(|(permit, member)| self.start_on_its_node(&context, member, permit, &nodes));
            future::try_join_all(started).await?;
        }
    }

    async fn start_on_its_node(
        &self,
        context: &Arc<SessionContext>,
        member: AgentRecord,
        permit: Option<AdmissionPermit>,
        nodes: &AgentNodes,
    ) -> Result<(), Refusal> {
        let Some(node) = nodes
            .get(&member.id)
            .filter(|node| *node != self.base.view.id())
        else {
            let opening = Opening {
                known: Some(Box::new((member.clone(), Memory::of_new_agent(None)))),
                ..Opening::default()
            };
            return self.start_member(context, &member, opening, permit).await;
        };
        let claim = claim_request(context, &member, None);
        if self.placement.hand_over(node, &claim).await {
            return Ok(());
        }
        // The other node may have claimed the agent although its answer was lost, so the agent
        // reads its record when it starts.
        self.start_member(context, &member, Opening::default(), permit)
            .await
    }

    async fn start_member(
        &self,
        context: &Arc<SessionContext>,
        agent: &AgentRecord,
        opening: Opening,
        permit: Option<AdmissionPermit>,
    ) -> Result<(), Refusal> {
        let hosting = Hosting {
            session: Arc::clone(context),
            agent: agent.id.clone(),
            epoch: agent.epoch,
            opening,
            tools_from: None,
        };
        self.placement.start(hosting, &agent.spec, permit).await
    }
}

/// Returns the events with which the orchestrator's log begins.
fn first_events(session: &SessionRecord, left_out: Option<String>) -> Vec<Event> {
    let (name, workspace) = (session.name.to_string(), session.spec.workspace.clone());
    let started = Event::SessionStarted(SessionStarted { name, workspace });
    let warning = left_out.map(|message| Warning::new("instructions_left_out", message));
    std::iter::once(started)
        .chain(warning.map(Event::Warning))
        .collect()
}
