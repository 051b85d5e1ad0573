//! Takes an agent in: a spawned one that is yet to be born, or one whose lease is to be had. The one path by which a peer or
//! this node itself starts a member here.

use std::{sync::Arc, time::Duration};

use planck_common::{
    command::{HostAgent, Hosted},
    reply::{Code, Refusal},
    spec::AgentSpec,
};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::door::Guest;
use crate::{
    actor::{Hosting, Opening, parts::Facts},
    node::Node,
    store::{Birth, Claim, Lease, NewAgent, Under},
};

/// No dead node's tools go on for longer.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Node {
    /// Idempotent by the agent's id: one that was born before is where its record says.
    pub(crate) async fn host_agent(&self, request: HostAgent) -> Result<Hosted, Refusal> {
        let guest = self.admit()?;
        let facts = self.facts_of(&request).await?;
        let under = Under { lead: request.lead.clone(), incarnation: request.incarnation };
        match &request.spec {
            Some(spec) => self.bear(facts, &request, parse(spec)?, under, guest).await,
            None => self.take_in(facts, &request, under, guest).await,
        }
    }

    /// Local admission: whoever placed the agent here may have looked at old figures.
    fn admit(&self) -> Result<Guest<'_>, Refusal> {
        self.stays()?;
        let capacity = self.settings().capacity;
        let guest = self.door().enter(capacity, || self.host().load().0);
        guest.ok_or_else(|| Refusal::new(Code::Limit, format!("node {} hosts {capacity} agents, its capacity", self.id())))
    }

    async fn bear(
        &self,
        facts: Arc<Facts>,
        request: &HostAgent,
        spec: AgentSpec,
        under: Under,
        guest: Guest<'_>,
    ) -> Result<Hosted, Refusal> {
        self.enter(&facts, &request.agent_id, &spec).await?;
        let agent = NewAgent { session: facts.id.clone(), id: request.agent_id.clone(), spec };
        self.host().may_miss_agents();
        let birth = self.store().birth(agent, under, self.id()).await?;
        if !matches!(&birth, Birth::Born { .. }) && !self.host().has(&request.agent_id) {
            self.did_not_enter(&facts, &request.agent_id).await;
        }
        match birth {
            Birth::Born { lease, name } => Ok(self.start_here(facts, request, lease, name, guest)),
            Birth::Known(record) => {
                let node_id = record.node.clone().unwrap_or_else(|| self.id().clone());
                Ok(Hosted { node_id, epoch: record.epoch, name: record.spec.name })
            }
            Birth::TeamDead => Err(team_moved()),
            Birth::Full { max } => Err(Refusal::new(Code::Limit, format!("the session has had its {max} agents (max_agents)"))),
        }
    }

    async fn take_in(&self, facts: Arc<Facts>, request: &HostAgent, under: Under, guest: Guest<'_>) -> Result<Hosted, Refusal> {
        let record = self.find_agent(&request.agent_id).await?;
        self.enter(&facts, &record.id, &record.spec).await?;
        self.host().may_miss_agents();
        let claim = Claim::Member(under);
        let claimed = self.store().claim(&facts.id, &record.id, request.epoch, claim, self.id()).await?;
        let Some(lease) = claimed else {
            if !self.host().has(&record.id) {
                self.did_not_enter(&facts, &record.id).await;
            }
            return Err(team_moved());
        };
        Ok(self.start_here(facts, request, lease, record.spec.name, guest))
    }

    fn start_here(&self, facts: Arc<Facts>, request: &HostAgent, lease: Lease, name: String, guest: Guest<'_>) -> Hosted {
        let (agent, epoch) = (request.agent_id.clone(), lease.epoch);
        let wait = (request.tools_wait_ms > 0).then(|| Duration::from_millis(request.tools_wait_ms));
        let tools_from = wait.map(|wait| Instant::now() + wait.min(LONGEST_WAIT));
        let hosting = Hosting { session: facts, agent, epoch, opening: Opening::default(), tools_from };
        guest.comes_in(|| self.host().start(hosting));
        Hosted { node_id: self.id().clone(), epoch, name }
    }

    /// Shared with the agents of the session that are here already.
    async fn facts_of(&self, request: &HostAgent) -> Result<Arc<Facts>, Refusal> {
        match self.host().hosting(&request.lead) {
            Some(hosting) if hosting.session.incarnation == request.incarnation => Ok(hosting.session),
            Some(_) | None => {
                let session = self.find_session(&request.session_id).await?;
                Ok(Arc::new(self.facts(&session, request.incarnation)?))
            }
        }
    }
}

fn parse(spec: &RawValue) -> Result<AgentSpec, Refusal> {
    serde_json::from_str(spec.get()).map_err(|error| Refusal::bad_request(format!("the agent's spec cannot be read: {error}")))
}

fn team_moved() -> Refusal {
    Refusal::new(Code::StaleEpoch, "the team moved to another node")
}
