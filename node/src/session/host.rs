//! Takes an agent in: a spawned one that is yet to be born, or one whose lease is to be had. The
//! one path by which a peer or this node itself starts a member here.

use std::{sync::Arc, time::Duration};

use planck_common::{
    AgentId,
    command::{HostAgent, Hosted},
    event::{Event, SessionResumed},
    reply::{Code, Refusal},
    spec::AgentSpec,
};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::door::Guest;
use crate::{
    actor::{Hosting, Opening, parts::Facts},
    node::Node,
    store::{AgentRecord, Claim, Lease, Under},
};

/// No dead node's tools go on for longer.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Node {
    /// Idempotent by the agent's id: one that was born before is where its record says.
    pub(crate) async fn host_agent(&self, request: HostAgent) -> Result<Hosted, Refusal> {
        let guest = self.admit(&request.agent_id)?;
        match &request.spec {
            Some(spec) => {
                let spec = parse(spec)?;
                self.bear(request, spec, guest).await
            }
            None => self.take_in(&request, guest).await,
        }
    }

    /// Local admission: whoever placed the agent here may have looked at old figures.
    fn admit(&self, agent: &AgentId) -> Result<Guest, Refusal> {
        self.stays()?;
        let capacity = self.settings().capacity;
        let guest = self.door().enter(agent, capacity, || self.host().load().0);
        guest.ok_or_else(|| {
            Refusal::new(
                Code::Limit,
                format!("node {} hosts {capacity} agents, its capacity", self.id()),
            )
        })
    }

    async fn take_in(&self, request: &HostAgent, guest: Guest) -> Result<Hosted, Refusal> {
        let facts = self.facts_of(request).await?;
        let record = self.find_agent(&request.agent_id).await?;
        if record.id == request.lead {
            return self.take_in_lead(facts, request, &record, guest).await;
        }
        self.enter(&facts, &record.id, &record.spec).await?;
        self.host().may_miss_agents();
        let claim = Claim::Member(Under {
            lead: request.lead.clone(),
            incarnation: request.incarnation,
        });
        let claimed = self
            .store()
            .claim(&facts.id, &record.id, request.epoch, claim, self.id())
            .await?;
        let Some(lease) = claimed else {
            if !self.host().has(&record.id) {
                self.did_not_enter(&facts, &record.id).await;
            }
            return Err(team_moved());
        };
        Ok(self.start_here(facts, request, lease, record.spec.name, guest))
    }

    /// The orchestrator of a living team comes here as it is, and no member is disturbed.
    async fn take_in_lead(
        &self,
        facts: Arc<Facts>,
        request: &HostAgent,
        lead: &AgentRecord,
        guest: Guest,
    ) -> Result<Hosted, Refusal> {
        self.host().may_miss_agents();
        let claim = Claim::Lead { after_death: false };
        let claimed = self
            .store()
            .claim(&facts.id, &lead.id, request.epoch, claim, self.id())
            .await?;
        let lease = claimed.ok_or_else(team_moved)?;
        if !self.hand_over_team(&facts).await? {
            return Err(team_moved());
        }
        self.enter(&facts, &lead.id, &lead.spec).await?;
        let resumed = SessionResumed {
            from_node: lead.node.clone(),
            reason: "its node is drained".into(),
        };
        let opening = Opening::with(Event::SessionResumed(resumed));
        let hosting = Hosting {
            session: facts,
            agent: lead.id.clone(),
            epoch: lease.epoch,
            opening,
            tools_from: None,
        };
        guest.comes_in(|| self.host().start(hosting));
        Ok(Hosted {
            node_id: self.id().clone(),
            epoch: lease.epoch,
            name: lead.spec.name.clone(),
            has_task: false,
        })
    }

    fn start_here(
        &self,
        facts: Arc<Facts>,
        request: &HostAgent,
        lease: Lease,
        name: String,
        guest: Guest,
    ) -> Hosted {
        let (agent, epoch) = (request.agent_id.clone(), lease.epoch);
        let wait =
            (request.tools_wait_ms > 0).then(|| Duration::from_millis(request.tools_wait_ms));
        let tools_from = wait.map(|wait| Instant::now() + wait.min(LONGEST_WAIT));
        let hosting = Hosting {
            session: facts,
            agent,
            epoch,
            opening: Opening::default(),
            tools_from,
        };
        guest.comes_in(|| self.host().start(hosting));
        Hosted {
            node_id: self.id().clone(),
            epoch,
            name,
            has_task: false,
        }
    }

    /// Shared with the agents of the session that are here already.
    pub(super) async fn facts_of(&self, request: &HostAgent) -> Result<Arc<Facts>, Refusal> {
        match self.host().hosting(&request.lead) {
            Some(hosting) if hosting.session.incarnation == request.incarnation => {
                Ok(hosting.session)
            }
            Some(_) | None => {
                let session = self.find_session(&request.session_id).await?;
                Ok(Arc::new(self.facts(&session, request.incarnation)?))
            }
        }
    }
}

fn parse(spec: &RawValue) -> Result<AgentSpec, Refusal> {
    serde_json::from_str(spec.get())
        .map_err(|error| Refusal::bad_request(format!("the agent's spec cannot be read: {error}")))
}

pub(super) fn team_moved() -> Refusal {
    Refusal::new(Code::StaleEpoch, "the team moved to another node")
}
