//! Starts agents on this node. The steps of a start are here once: the agent is registered as a
//! member of its team, its lease is claimed if this node does not hold it yet, and then its actor
//! starts.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use planck_common::{
    AgentId, NodeId, SessionId,
    command::{HostAgent, Hosted},
    event::{Event, SessionResumed},
    reply::{Code, Refusal},
    spec::AgentSpec,
};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{AdmissionPermit, Placement};
use crate::{
    actor::{Hosting, Opening, SessionContext},
    agent::OpenTurn,
};
use planck_store::{AgentRecord, HeldLease, LeadIncarnation, LeaseClaim, StoreError};

/// The maximum time that tools wait for the tools of a dead node to end.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Placement {
    /// Starts an agent on this node, for which this node was chosen. Repeating the request is
    /// harmless. If the agent of a spawn request already exists, returns the node in its record.
    pub async fn host_agent(self: &Arc<Self>, request: HostAgent) -> Result<Hosted, Refusal> {
        let permit = self.local.admit(&request.agent_id)?;
        if let Some(spec) = &request.spec {
            let spec = parse(spec)?;
            return self.spawn_here(request, spec, permit).await;
        }
        let session = self.context_of(&request).await?;
        let agent = AgentRecord {
            epoch: request.epoch,
            ..self.handles.lookup.agent(&request.agent_id).await?
        };
        let epoch = if agent.id == request.lead {
            self.start_lead(session, &agent, permit).await?
        } else {
            let wait = Duration::from_millis(request.tools_wait_ms).min(LONGEST_WAIT);
            let tools_from = || (!wait.is_zero()).then(|| Instant::now() + wait);
            let opening = Opening::default();
            self.start_member(session, &agent, opening, tools_from, Some(permit))
                .await?
                .ok_or_else(team_moved)?
        };
        Ok(self.hosted(epoch, agent.spec.name, false))
    }

    /// Claims and starts the orchestrator of a live team, whose other members continue to run.
    /// Returns the epoch of the lease.
    async fn start_lead(
        &self,
        session: Arc<SessionContext>,
        lead: &AgentRecord,
        permit: AdmissionPermit,
    ) -> Result<i64, Refusal> {
        let _guard = self.handles.host.taking_leases(&session.id);
        let claim = LeaseClaim::Lead { after_death: false };
        let lease = self.claim(&session.id, &lead.id, lead.epoch, claim).await?;
        let lease = lease.ok_or_else(team_moved)?;
        if !self.teams.move_lead_here(&session).await? {
            return Err(team_moved());
        }
        let resumed = SessionResumed {
            from_node: lead.node.clone(),
            reason: "its node is drained".into(),
        };
        let hosting = Hosting {
            session,
            agent: lead.id.clone(),
            epoch: lease.epoch,
            opening: Opening::with(Event::SessionResumed(resumed)),
            tools_from: None,
        };
        self.start(hosting, &lead.spec, Some(permit)).await?;
        Ok(lease.epoch)
    }

    /// Claims and starts a member that has no host, or whose lease its host gives up.
    /// `tools_from` is called after the claim. Returns the epoch of the lease, or `None` if the
    /// member's epoch or the team's incarnation has changed.
    pub async fn start_member(
        &self,
        session: Arc<SessionContext>,
        member: &AgentRecord,
        opening: Opening,
        tools_from: impl FnOnce() -> Option<Instant>,
        permit: Option<AdmissionPermit>,
    ) -> Result<Option<i64>, Refusal> {
        let (id, epoch) = (&member.id, member.epoch);
        let _guard = self.handles.host.taking_leases(&session.id);
        self.register(&session, id, &member.spec, &opening).await?;
        let claim = LeaseClaim::Member(LeadIncarnation {
            lead: session.lead.clone(),
            incarnation: session.incarnation,
        });
        let Some(lease) = self.claim(&session.id, id, epoch, claim).await? else {
            if !self.handles.host.has(id) {
                self.teams.remove_member(&session, id).await;
            }
            return Ok(None);
        };
        let hosting = Hosting {
            session,
            agent: id.clone(),
            epoch: lease.epoch,
            opening,
            tools_from: tools_from(),
        };
        self.start_registered(hosting, permit).await;
        Ok(Some(lease.epoch))
    }

    /// Registers an agent whose lease this node holds as a member of its team, and starts it.
    pub async fn start(
        &self,
        hosting: Hosting,
        spec: &AgentSpec,
        permit: Option<AdmissionPermit>,
    ) -> Result<(), Refusal> {
        let (session, agent) = (&hosting.session, &hosting.agent);
        self.register(session, agent, spec, &hosting.opening)
            .await?;
        self.start_registered(hosting, permit).await;
        Ok(())
    }

    /// Starts the actor of an agent whose lease this node holds. With a permit, makes the agent
    /// read its inbox if an input came while it was about to start.
    pub(super) async fn start_registered(&self, hosting: Hosting, permit: Option<AdmissionPermit>) {
        let (host, agent) = (&self.handles.host, hosting.agent.clone());
        let Some(permit) = permit else {
            return host.start(hosting);
        };
        if permit.use_to_start(|| host.start(hosting)) {
            // If the call fails, the agent has already left the node, and reads its inbox on the
            // node where it continues.
            let _ = host.look(&agent).await;
        }
    }

    /// Writes the record of a member. An agent that only ends gets none, so that a session can be
    /// closed while the registry is away.
    async fn register(
        &self,
        session: &SessionContext,
        agent: &AgentId,
        spec: &AgentSpec,
        opening: &Opening,
    ) -> Result<(), Refusal> {
        match opening.open_turn {
            OpenTurn::Resume => self.teams.add_member(session, agent, spec).await,
            OpenTurn::Close | OpenTurn::Lost | OpenTurn::Refused(_) => Ok(()),
        }
    }

    /// Claims a lease. Returns `None` if its epoch has changed, or if the orchestrator does not
    /// have the incarnation that `claim` names. If a stopped process of a dead node may block the
    /// store, kills that process and tries again. The caller holds a guard of
    /// [`Host::taking_leases`](crate::actor::Host::taking_leases), so that the next sweep finds the
    /// agent if the outcome is unknown or the agent is not started afterwards.
    pub async fn claim(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        claim: LeaseClaim,
    ) -> Result<Option<HeldLease>, StoreError> {
        let (store, by) = (&self.handles.store, self.handles.view.id());
        let claimed = store.claim(session, agent, epoch, claim.clone(), by).await;
        let is_blocked = matches!(claimed, Err(StoreError::Away(_)));
        if is_blocked && self.end_stopped_hosts(session).await {
            return store.claim(session, agent, epoch, claim, by).await;
        }
        claimed
    }

    /// Kills the stopped processes of a session's hosts that left or were declared dead. Such a
    /// process may hold the lock of the session's database, in which case every claim fails until
    /// the process ends. Returns whether a process was killed.
    async fn end_stopped_hosts(&self, session: &SessionId) -> bool {
        let Ok(agents) = self.handles.store.agents(session).await else {
            return false;
        };
        let hosts: BTreeSet<NodeId> = agents.into_iter().filter_map(|agent| agent.node).collect();
        let mut has_ended = false;
        for node in hosts.iter().filter(|node| self.handles.view.is_gone(node)) {
            match self.handles.store.end_stopped_node(node).await {
                Ok(false) => {}
                Ok(true) => {
                    tracing::warn!(%session, %node, "killed the stopped process of a dead node: it may hold the lock of the session's database");
                    has_ended = true;
                }
                Err(error) => {
                    tracing::warn!(%session, %node, %error, "cannot end the stopped process of a dead node");
                }
            }
        }
        has_ended
    }

    /// Returns the answer to a request, with this node as the host.
    pub(super) fn hosted(&self, epoch: i64, name: String, has_task: bool) -> Hosted {
        Hosted {
            node_id: self.handles.view.id().clone(),
            epoch,
            name,
            has_task,
        }
    }

    /// Returns the context of the agent's session. The agent shares the context of its orchestrator
    /// if that runs on this node in the requested incarnation.
    pub(super) async fn context_of(
        &self,
        request: &HostAgent,
    ) -> Result<Arc<SessionContext>, Refusal> {
        match self.handles.host.hosting(&request.lead) {
            Some(hosting) if hosting.session.incarnation == request.incarnation => {
                Ok(hosting.session)
            }
            Some(_) | None => {
                let session = self.handles.lookup.session(&request.session_id).await?;
                Ok(Arc::new(
                    self.handles.lookup.context(&session, request.incarnation)?,
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
