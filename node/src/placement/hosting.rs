//! Starts agents for which this node was chosen. Such an agent is new, has no host, or is handed
//! over by its host.

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

use super::{Placement, admission::AdmissionPermit};
use crate::actor::{Hosting, Opening, context::SessionContext};
use planck_store::{AgentRecord, HeldLease, LeadIncarnation, LeaseClaim};

/// The maximum time that tools wait for the tools of a dead node to end.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Placement {
    /// Starts an agent on this node. Repeating the request is harmless. If the agent of a spawn
    /// request already exists, returns the node in its record.
    pub async fn host_agent(self: &Arc<Self>, request: HostAgent) -> Result<Hosted, Refusal> {
        let permit = self.local.admit(&request.agent_id)?;
        match &request.spec {
            Some(spec) => {
                let spec = parse(spec)?;
                self.spawn_here(request, spec, permit).await
            }
            None => self.claim_here(&request, permit).await,
        }
    }

    /// Claims and starts an existing agent that has no host, or whose lease the requesting node
    /// gives up.
    async fn claim_here(
        &self,
        request: &HostAgent,
        permit: AdmissionPermit,
    ) -> Result<Hosted, Refusal> {
        let _guard = self.host.taking_leases(&request.session_id);
        let context = self.context_of(request).await?;
        let record = self.lookup.agent(&request.agent_id).await?;
        if record.id == request.lead {
            return self
                .claim_lead_here(context, request, &record, permit)
                .await;
        }
        self.teams
            .add_member(&context, &record.id, &record.spec)
            .await?;
        let claim = LeaseClaim::Member(LeadIncarnation {
            lead: request.lead.clone(),
            incarnation: request.incarnation,
        });
        let Some(lease) = self
            .claim(&context, &record.id, request.epoch, claim)
            .await?
        else {
            if !self.host.has(&record.id) {
                self.teams.remove_member(&context, &record.id).await;
            }
            return Err(team_moved());
        };
        let wait =
            (request.tools_wait_ms > 0).then(|| Duration::from_millis(request.tools_wait_ms));
        let hosting = Hosting {
            session: context,
            agent: record.id,
            epoch: lease.epoch,
            opening: Opening::default(),
            tools_from: wait.map(|wait| Instant::now() + wait.min(LONGEST_WAIT)),
        };
        Ok(self.start(hosting, record.spec.name, permit))
    }

    /// Claims and starts the orchestrator of a live team, whose other members continue to run.
    async fn claim_lead_here(
        &self,
        context: Arc<SessionContext>,
        request: &HostAgent,
        lead: &AgentRecord,
        permit: AdmissionPermit,
    ) -> Result<Hosted, Refusal> {
        let claim = LeaseClaim::Lead { after_death: false };
        let lease = self
            .claim(&context, &lead.id, request.epoch, claim)
            .await?
            .ok_or_else(team_moved)?;
        if !self.teams.move_lead_here(&context).await? {
            return Err(team_moved());
        }
        self.teams
            .add_member(&context, &lead.id, &lead.spec)
            .await?;
        let resumed = SessionResumed {
            from_node: lead.node.clone(),
            reason: "its node is drained".into(),
        };
        let hosting = Hosting {
            session: context,
            agent: lead.id.clone(),
            epoch: lease.epoch,
            opening: Opening::with(Event::SessionResumed(resumed)),
            tools_from: None,
        };
        Ok(self.start(hosting, lead.spec.name.clone(), permit))
    }

    async fn claim(
        &self,
        session: &SessionContext,
        agent: &AgentId,
        epoch: i64,
        claim: LeaseClaim,
    ) -> Result<Option<HeldLease>, Refusal> {
        Ok(self
            .store
            .claim(&session.id, agent, epoch, claim, self.view.id())
            .await?)
    }

    fn start(&self, hosting: Hosting, name: String, permit: AdmissionPermit) -> Hosted {
        let hosted = Hosted {
            node_id: self.view.id().clone(),
            epoch: hosting.epoch,
            name,
            has_task: false,
        };
        // The result is not needed, because a starting agent always reads its inbox.
        let _has_news = permit.use_to_start(|| self.host.start(hosting));
        hosted
    }

    /// Returns the context of the agent's session. The agent shares the context of its orchestrator
    /// if that runs on this node in the requested incarnation.
    pub(super) async fn context_of(
        &self,
        request: &HostAgent,
    ) -> Result<Arc<SessionContext>, Refusal> {
        match self.host.hosting(&request.lead) {
            Some(hosting) if hosting.session.incarnation == request.incarnation => {
                Ok(hosting.session)
            }
            Some(_) | None => {
                let session = self.lookup.session(&request.session_id).await?;
                Ok(Arc::new(
                    self.lookup.context(&session, request.incarnation)?,
                ))
            }
        }
    }
}

/// Returns a request for another node to claim and start an existing agent of the session.
pub(crate) fn claim_request(
    session: &SessionContext,
    member: &AgentRecord,
    tools_from: Option<Instant>,
) -> HostAgent {
    let wait = tools_from.map_or(0, |from| {
        from.saturating_duration_since(Instant::now()).as_millis()
    });
    HostAgent {
        session_id: session.id.clone(),
        agent_id: member.id.clone(),
        epoch: member.epoch,
        incarnation: session.incarnation,
        lead: session.lead.clone(),
        team_id: session.team.clone(),
        spec: None,
        task: None,
        tools_wait_ms: u64::try_from(wait).unwrap_or(u64::MAX),
    }
}

fn parse(spec: &RawValue) -> Result<AgentSpec, Refusal> {
    serde_json::from_str(spec.get())
        .map_err(|error| Refusal::bad_request(format!("the agent's spec cannot be read: {error}")))
}

pub(super) fn team_moved() -> Refusal {
    Refusal::new(Code::StaleEpoch, "the team moved to another node")
}
