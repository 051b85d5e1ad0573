//! Takes a session up: claims the leases that nobody holds or that a dead node held, and starts the agents from SQL.

use std::sync::Arc;

use planck_common::{
    NodeId, SessionId,
    command::SessionState,
    event::{Event, SessionResumed},
    reply::Refusal,
};

use crate::{
    actor::{Hosting, Opening, parts::Facts, turnstile::Alone},
    agent::OpenTurn,
    node::Node,
    store::{AgentRecord, Claim, Lease, SessionRecord, StoreError, Under},
};

/// What a session is taken up for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose<'a> {
    /// Its agents go on, and its log is told why. A closed session opens.
    Work(&'a str),
    /// Its agents are ended at once; open turns do not go on.
    End,
}

impl Purpose<'_> {
    fn opening(self, event: impl FnOnce(&str) -> Option<Event>) -> Opening {
        match self {
            Self::Work(reason) => Opening { events: event(reason).into_iter().collect(), open_turn: OpenTurn::Resume },
            Self::End => Opening { events: Vec::new(), open_turn: OpenTurn::Close },
        }
    }
}

impl Node {
    /// Hosts every agent of the session that no living node holds. Idempotent, and harmless beside another node's try.
    pub(crate) async fn take_up(&self, session: &SessionRecord, reason: &str) -> Result<(), Refusal> {
        let alone = self.host().alone(&session.id).await?;
        let session = self.find_session(&session.id).await?;
        self.take_up_alone(&session, Purpose::Work(reason), &alone).await
    }

    async fn take_up_alone(&self, session: &SessionRecord, purpose: Purpose<'_>, _alone: &Alone) -> Result<(), Refusal> {
        self.stays()?;
        // Nothing is claimed that cannot work here.
        self.workspaces().place(&session.spec.workspace, &session.spec.dir)?;
        let agents = self.members(&session.id).await?;
        let Some(lead) = agents.iter().find(|agent| agent.id == session.spec.lead) else {
            return Err(Refusal::not_found(format!("session {} has no lead; it was stopped", session.name)));
        };
        let (facts, is_lead_here) = match self.claim_lead(session, lead, purpose).await? {
            Some(facts) => (facts, true),
            None => (Arc::new(self.facts(session, lead.incarnation)?), false),
        };
        for member in agents.iter().filter(|agent| agent.id != session.spec.lead) {
            // Where the lead is elsewhere, who else has no host is for the lead's node.
            if is_lead_here || member.node.as_ref() == Some(self.id()) {
                self.claim_member(&facts, member, purpose).await?;
            }
        }
        Ok(())
    }

    /// Takes the session up for what only its host can do; the lead as it is recorded then.
    pub(super) async fn take_up_here(
        &self,
        session: &SessionRecord,
        purpose: Purpose<'_>,
        alone: &Alone,
    ) -> Result<AgentRecord, Refusal> {
        self.take_up_alone(session, purpose, alone).await?;
        let lead = self.find_lead(session).await?;
        if !self.host().has(&lead.id) {
            self.check_nobody_elses(&lead)?;
        }
        Ok(lead)
    }

    /// Refuses what another node would have to do that is not asked here: it is away, or being replaced.
    fn check_nobody_elses(&self, agent: &AgentRecord) -> Result<(), Refusal> {
        match &agent.node {
            Some(node) if node != self.id() => Err(Refusal::unavailable(format!(
                "agent {} is held by node {node}, which may be being replaced; ask again",
                agent.id
            ))),
            Some(_) | None => Ok(()),
        }
    }

    /// The facts of the session if its lead is here now.
    async fn claim_lead(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        purpose: Purpose<'_>,
    ) -> Result<Option<Arc<Facts>>, Refusal> {
        if let Some(hosting) = self.host().hosting(&lead.id) {
            return Ok(Some(hosting.session));
        }
        let Some(after_death) = self.may_claim(lead).await? else { return Ok(None) };
        let claim = Claim::Lead { after_death };
        let Some(lease) = self.claim(&session.id, lead, claim).await? else { return Ok(None) };
        if session.state == SessionState::Closed && purpose != Purpose::End {
            self.store().set_state(&session.id, lease.epoch, SessionState::Open).await?;
        }
        let facts = Arc::new(self.facts(session, lease.incarnation)?);
        let resumed =
            |reason: &str| Some(Event::SessionResumed(SessionResumed { from_node: lead.node.clone(), reason: reason.into() }));
        self.host().start(Hosting {
            session: Arc::clone(&facts),
            agent: lead.id.clone(),
            epoch: lease.epoch,
            opening: purpose.opening(resumed),
        });
        self.chores().look_for_exits(&session.id);
        Ok(Some(facts))
    }

    async fn claim_member(&self, facts: &Arc<Facts>, member: &AgentRecord, purpose: Purpose<'_>) -> Result<(), Refusal> {
        if self.host().has(&member.id) || self.may_claim(member).await?.is_none() {
            return Ok(());
        }
        let claim = Claim::Member(Under { lead: facts.lead.clone(), incarnation: facts.incarnation });
        if let Some(Lease { epoch, .. }) = self.claim(&facts.id, member, claim).await? {
            let (session, agent) = (Arc::clone(facts), member.id.clone());
            self.host().start(Hosting { session, agent, epoch, opening: purpose.opening(|_| None) });
        }
        Ok(())
    }

    /// Of a claim with an unknown outcome, or one that leads nowhere, the next sweep finds out.
    async fn claim(&self, session: &SessionId, agent: &AgentRecord, claim: Claim) -> Result<Option<Lease>, StoreError> {
        self.host().may_miss_agents();
        self.store().claim(session, &agent.id, agent.epoch, claim, self.id()).await
    }

    /// Whether the agent's lease is to be had, and if so whether its holder died.
    async fn may_claim(&self, agent: &AgentRecord) -> Result<Option<bool>, Refusal> {
        match &agent.node {
            None => Ok(Some(false)),
            Some(node) if *node == *self.id() => Ok(Some(false)),
            Some(node) => Ok(self.is_dead(node).await?.then_some(true)),
        }
    }

    /// What the agents of a session need to know of it.
    pub(crate) fn facts(&self, session: &SessionRecord, incarnation: i64) -> Result<Facts, Refusal> {
        let place = self.workspaces().place(&session.spec.workspace, &session.spec.dir)?;
        Ok(Facts {
            id: session.id.clone(),
            team: session.spec.team_id.clone(),
            lead: session.spec.lead.clone(),
            workspace: session.spec.workspace.clone(),
            incarnation,
            dir: place.dir,
            root: place.root,
            limits: session.spec.limits,
        })
    }

    /// Whether a node is known to be dead, by whatever this store and this cluster judge with.
    pub(super) async fn is_dead(&self, node: &NodeId) -> Result<bool, Refusal> {
        Ok(!self.liveness().is_alive(node).await)
    }
}
