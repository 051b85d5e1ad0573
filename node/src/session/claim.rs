//! Takes a session up: claims the leases that nobody holds or that a dead node held, and starts the
//! agents from SQL.

use std::sync::Arc;

use futures_util::future;
use planck_common::{
    NodeId, SessionId,
    command::SessionState,
    event::{Event, SessionResumed},
    reply::Refusal,
    spec::OnNodeDeath,
};
use tokio::time::Instant;

use super::{close::AT_ONCE, start::claim_of};

use crate::{
    actor::{Hosting, Opening, parts::Facts, turnstile::Alone},
    agent::OpenTurn,
    node::Node,
    store::{AgentRecord, Claim, Lease, SessionRecord, StoreError, Stray, Under},
    telemetry::metrics,
};

/// What a session is taken up for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose<'a> {
    /// Its agents go on, and its log is told why.
    Work { reason: &'a str, may_open: bool },
    /// Its agents are ended at once; open turns do not go on.
    End,
    /// Its node died, and it is not to go on: open turns end with an error.
    Lost,
}

/// What taking a session up does where the session is closed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum IfClosed<'a> {
    Open,
    Leave,
    /// Opens it if one of these agents has an unread prompt.
    OpenIfPrompted(&'a [Stray]),
}

impl Purpose<'_> {
    fn opening(self, event: impl FnOnce(&str) -> Option<Event>) -> Opening {
        match self {
            Self::Work { reason, .. } => Opening {
                events: event(reason).into_iter().collect(),
                open_turn: OpenTurn::Resume,
                ..Opening::default()
            },
            Self::End => Opening {
                open_turn: OpenTurn::Close,
                ..Opening::default()
            },
            Self::Lost => Opening {
                open_turn: OpenTurn::Lost,
                ..Opening::default()
            },
        }
    }
}

/// A session whose agents are taken up.
struct Led {
    facts: Arc<Facts>,
    /// Whether its lead is here.
    is_here: bool,
    /// Whether a new life of its team began: all that ran of the last one was stopped.
    is_raised: bool,
    tools_from: Option<Instant>,
    on_node_death: OnNodeDeath,
}

impl Led {
    fn of(session: &SessionRecord, facts: Arc<Facts>) -> Self {
        Self {
            facts,
            is_here: true,
            is_raised: false,
            tools_from: None,
            on_node_death: session.spec.on_node_death,
        }
    }
}

impl Node {
    /// Hosts every agent of the session that no living node holds. Idempotent, and harmless beside
    /// another node's try. A session that is not to go on after its node's death is closed first.
    ///
    /// Whether the session is closed is decided here, while nothing else changes it on this node:
    /// a close may have come between the caller's look and this one.
    pub(crate) async fn take_up(
        &self,
        session: &SessionId,
        reason: &str,
        if_closed: IfClosed<'_>,
    ) -> Result<(), Refusal> {
        let alone = self.host().alone(session).await?;
        let mut session = self.find_session(session).await?;
        if session.state == SessionState::Open && self.is_lost(&session).await? {
            self.close_lost(&session, &alone).await?;
            session = self.find_session(&session.id).await?;
        }
        let is_closed = session.state == SessionState::Closed;
        let may_open = match if_closed {
            IfClosed::Open => true,
            IfClosed::Leave => false,
            IfClosed::OpenIfPrompted(strays) => is_closed && self.is_prompted(strays).await?,
        };
        if is_closed && !may_open {
            return Ok(());
        }
        let purpose = Purpose::Work { reason, may_open };
        self.take_up_alone(&session, purpose, &alone).await
    }

    async fn take_up_alone(
        &self,
        session: &SessionRecord,
        purpose: Purpose<'_>,
        _alone: &Alone,
    ) -> Result<(), Refusal> {
        self.stays()?;
        // Nothing is claimed that cannot work here.
        self.workspaces()
            .place(&session.spec.workspace, &session.spec.dir)?;
        let agents = self.members(&session.id).await?;
        let Some(lead) = agents.iter().find(|agent| agent.id == session.spec.lead) else {
            return Err(Refusal::not_found(format!(
                "session {} has no lead; it was stopped",
                session.name
            )));
        };
        let led = match self.claim_lead(session, lead, purpose).await? {
            Some(led) => led,
            None => Led {
                is_here: false,
                ..Led::of(session, Arc::new(self.facts(session, lead.incarnation)?))
            },
        };
        let members: Vec<&AgentRecord> = agents
            .iter()
            .filter(|agent| agent.id != session.spec.lead)
            .collect();
        for some in members.chunks(AT_ONCE) {
            future::try_join_all(
                some.iter()
                    .map(|member| self.claim_member(&led, member, purpose)),
            )
            .await?;
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

    /// Refuses what another node would have to do that is not asked here: it is away, or being
    /// replaced.
    fn check_nobody_elses(&self, agent: &AgentRecord) -> Result<(), Refusal> {
        match &agent.node {
            Some(node) if node != self.id() => Err(Refusal::unavailable(format!(
                "agent {} is held by node {node}, which may be being replaced; ask again",
                agent.id
            ))),
            Some(_) | None => Ok(()),
        }
    }

    /// The session if its lead is here now.
    async fn claim_lead(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        purpose: Purpose<'_>,
    ) -> Result<Option<Led>, Refusal> {
        if let Some(hosting) = self.host().hosting(&lead.id) {
            return Ok(Some(Led::of(session, hosting.session)));
        }
        let Some(after_death) = self.may_claim(lead).await? else {
            return Ok(None);
        };
        let Some(won) = self.win(session, lead, after_death, purpose).await? else {
            return Ok(None);
        };
        let facts = Arc::new(self.facts(session, won.lease.incarnation)?);
        if let Purpose::Work { may_open, .. } = purpose {
            if !self.is_open_under(&won.lease, session, may_open).await? {
                return Ok(None);
            }
            self.enter(&facts, &lead.id, &lead.spec).await?;
        }
        let resumed = |reason: &str| {
            Some(Event::SessionResumed(SessionResumed {
                from_node: lead.node.clone(),
                reason: reason.into(),
            }))
        };
        self.host().start(Hosting {
            session: Arc::clone(&facts),
            agent: lead.id.clone(),
            epoch: won.lease.epoch,
            opening: purpose.opening(resumed),
            tools_from: won.tools_from,
        });
        self.chores().look_for_exits(&session.id);
        Ok(Some(Led {
            is_raised: won.is_raised,
            tools_from: won.tools_from,
            ..Led::of(session, facts)
        }))
    }

    /// Whether the session is open now that this node has its lead. From the claim on no other node
    /// can close it, but one may have closed it since it was looked at; then it opens if it may, and
    /// else the lead is given back.
    async fn is_open_under(
        &self,
        lease: &Lease,
        session: &SessionRecord,
        may_open: bool,
    ) -> Result<bool, Refusal> {
        let SessionRecord { id, spec, .. } = session;
        if self.find_session(id).await?.state == SessionState::Open {
            return Ok(true);
        }
        if may_open {
            self.store()
                .set_state(id, lease.epoch, SessionState::Open)
                .await?;
            return Ok(true);
        }
        self.store()
            .release(id, &spec.lead, lease.epoch, false)
            .await?;
        self.bury_closed(session, lease.incarnation).await;
        Ok(false)
    }

    /// A member that no living node hosts, or that was stopped with its team's last life, is
    /// started: where it was, or where it is placed. Where the lead is elsewhere, who else has no
    /// host is for the lead's node.
    async fn claim_member(
        &self,
        led: &Led,
        member: &AgentRecord,
        purpose: Purpose<'_>,
    ) -> Result<(), Refusal> {
        let is_ours = led.is_here || member.node.as_ref() == Some(self.id());
        if !is_ours || self.host().has(&member.id) {
            return Ok(());
        }
        let Some(after_death) = self
            .may_claim(member)
            .await?
            .or(led.is_raised.then_some(false))
        else {
            return Ok(());
        };
        let grace = member
            .node
            .as_ref()
            .filter(|_| after_death)
            .and_then(|node| self.grace_of(node));
        let tools_from = led.tools_from.max(grace);
        if after_death && led.is_here && !led.is_raised && led.on_node_death == OnNodeDeath::Stop {
            self.claim_member_here(led, member, Purpose::Lost, tools_from)
                .await?;
            return self.stop_lost(member).await;
        }
        if let Purpose::Work { .. } = purpose
            && led.is_here
            && self.rehome(led, member, tools_from).await
        {
            if after_death {
                metrics::meters().taken_over();
            }
            return Ok(());
        }
        self.claim_member_here(led, member, purpose, tools_from)
            .await
    }

    async fn claim_member_here(
        &self,
        led: &Led,
        member: &AgentRecord,
        purpose: Purpose<'_>,
        tools_from: Option<Instant>,
    ) -> Result<(), Refusal> {
        let facts = &led.facts;
        if matches!(purpose, Purpose::Work { .. }) {
            self.enter(facts, &member.id, &member.spec).await?;
        }
        let claim = Claim::Member(Under {
            lead: facts.lead.clone(),
            incarnation: facts.incarnation,
        });
        match self.claim(&facts.id, member, claim).await? {
            Some(Lease { epoch, .. }) => {
                let (session, agent) = (Arc::clone(facts), member.id.clone());
                self.host().start(Hosting {
                    session,
                    agent,
                    epoch,
                    opening: purpose.opening(|_| None),
                    tools_from,
                });
            }
            None if self.host().has(&member.id) => {}
            None => self.did_not_enter(facts, &member.id).await,
        }
        Ok(())
    }

    /// Has another node start the member, the one it was on if that lives; whether it did.
    async fn rehome(&self, led: &Led, member: &AgentRecord, tools_from: Option<Instant>) -> bool {
        let home = match &member.node {
            Some(node) if node != self.id() && self.liveness().is_alive(node).await => {
                Some(node.clone())
            }
            Some(_) | None => self.home_of(&led.facts.workspace, &member.spec),
        };
        match home.filter(|home| home != self.id()) {
            Some(home) => {
                self.hand_over(&home, &claim_of(&led.facts, member, tools_from))
                    .await
            }
            None => false,
        }
    }

    /// Of a claim with an unknown outcome, or one that leads nowhere, the next sweep finds out.
    pub(super) async fn claim(
        &self,
        session: &SessionId,
        agent: &AgentRecord,
        claim: Claim,
    ) -> Result<Option<Lease>, StoreError> {
        self.host().may_miss_agents();
        let lease = self
            .store()
            .claim(session, &agent.id, agent.epoch, claim, self.id())
            .await?;
        if lease.is_some() && agent.node.as_ref().is_some_and(|node| node != self.id()) {
            metrics::meters().taken_over();
        }
        Ok(lease)
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
    pub(crate) fn facts(
        &self,
        session: &SessionRecord,
        incarnation: i64,
    ) -> Result<Facts, Refusal> {
        let place = self
            .workspaces()
            .place(&session.spec.workspace, &session.spec.dir)?;
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
