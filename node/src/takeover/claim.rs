//! Takes a session up: claims the leases that no live node holds, and starts the agents from SQL.

use std::sync::Arc;

use futures_util::future;
use planck_common::{
    SessionId,
    command::SessionState,
    event::{Event, SessionResumed},
    reply::Refusal,
};

use super::{SessionGuard, Takeover};
use crate::{
    actor::{AT_ONCE, Hosting, Opening, context::SessionContext},
    agent::OpenTurn,
    placement::claim_request,
};
use planck_cluster::{
    clock,
    recovery::{self, LeadFacts, LeadStep, LedTeam, MemberFacts, MemberPlan, MemberStep},
};
use planck_store::{AgentRecord, HeldLease, LeadIncarnation, LeaseClaim, SessionRecord, Stray};
use planck_telemetry::metrics;

/// The reason for taking a session up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// The session's agents continue, and its log records the reason. A closed session is opened if
    /// `may_open` is set.
    Work { reason: &'a str, may_open: bool },
    /// The session's agents are to end at once, and open turns do not continue.
    End,
    /// The agents' node died and they are not to continue, so open turns end with an error.
    Lost,
}

/// What a take-up does about a closed session.
#[derive(Debug, Clone, Copy)]
pub enum IfClosed<'a> {
    /// Opens the session.
    Open,
    /// Leaves the session closed and does nothing.
    Leave,
    /// Opens the session if one of these agents has an unread prompt.
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

/// What the claims of a session's members depend on.
struct Led {
    context: Arc<SessionContext>,
    team: LedTeam,
}

impl Led {
    fn here(session: &SessionRecord, context: Arc<SessionContext>) -> Self {
        let team = LedTeam::led_here(session.spec.on_node_death);
        Self { context, team }
    }
}

impl Takeover {
    /// Starts every agent of the session that no live node holds, on this node or another one. A
    /// repeated call is harmless, also while another node does the same. A session that is not to
    /// continue after its node's death is closed first.
    ///
    /// The state of the session is read under its lock, because the session may have been closed
    /// after the caller read it.
    pub async fn take_up(
        &self,
        session: &SessionId,
        reason: &str,
        if_closed: IfClosed<'_>,
    ) -> Result<(), Refusal> {
        let guard = self.lock(session).await?;
        let mut session = self.lookup.session(session).await?;
        if session.state == SessionState::Open && self.is_lost(&session).await {
            self.close_lost(&session, &guard).await?;
            session = self.lookup.session(&session.id).await?;
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
        self.take_up_locked(&session, purpose, &guard).await
    }

    /// Takes the session up for an operation that only its host can perform. Returns the
    /// orchestrator's record, and fails if another node hosts the orchestrator.
    pub async fn take_up_here(
        &self,
        session: &SessionRecord,
        purpose: Purpose<'_>,
        guard: &SessionGuard,
    ) -> Result<AgentRecord, Refusal> {
        self.take_up_locked(session, purpose, guard).await?;
        let lead = self.lookup.lead(session).await?;
        match &lead.node {
            Some(node) if node != self.view.id() && !self.host.has(&lead.id) => {
                Err(Refusal::unavailable(format!(
                    "agent {} is held by node {node}, which may be being replaced; ask again",
                    lead.id
                )))
            }
            Some(_) | None => Ok(lead),
        }
    }

    async fn take_up_locked(
        &self,
        session: &SessionRecord,
        purpose: Purpose<'_>,
        _guard: &SessionGuard,
    ) -> Result<(), Refusal> {
        self.placement.local().check_accepts_work()?;
        // Refuses a session whose workspace is not on this node before anything is claimed.
        self.lookup.context(session, 0)?;
        let agents = self.lookup.members(&session.id).await?;
        let Some(lead) = agents.iter().find(|agent| agent.id == session.spec.lead) else {
            return Err(Refusal::not_found(format!(
                "session {} has no orchestrator; it was stopped",
                session.name
            )));
        };
        let led = match self.claim_lead(session, lead, purpose).await? {
            Some(led) => led,
            None => {
                let context = self.lookup.context(session, lead.incarnation)?;
                Led {
                    context: Arc::new(context),
                    team: LedTeam::led_elsewhere(
                        session.spec.on_node_death,
                        clock::now(),
                        self.view.tool_grace(),
                    ),
                }
            }
        };
        let members: Vec<&AgentRecord> = agents
            .iter()
            .filter(|agent| agent.id != session.spec.lead)
            .collect();
        for some in members.chunks(AT_ONCE) {
            let claims = some
                .iter()
                .map(|member| self.claim_member(&led, member, purpose));
            future::try_join_all(claims).await?;
        }
        Ok(())
    }

    /// Claims the orchestrator's lease and starts the orchestrator, unless it runs on this node
    /// already. Returns `None` if another node hosts it or the session stays closed.
    async fn claim_lead(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        purpose: Purpose<'_>,
    ) -> Result<Option<Led>, Refusal> {
        let hosting = self.host.hosting(&lead.id);
        let step = recovery::lead_step(LeadFacts {
            is_hosted_here: hosting.is_some(),
            holder: self.holder(lead.node.as_ref()).await,
            is_alone: self.view.is_alone(),
            is_ending: purpose == Purpose::End,
        });
        if let Some(hosting) = hosting.filter(|_| step == LeadStep::Hosted) {
            return Ok(Some(Led::here(session, hosting.session)));
        }
        let Some(won) = self.win_lead(session, lead, step, purpose).await? else {
            return Ok(None);
        };
        let context = Arc::new(self.lookup.context(session, won.lease.incarnation)?);
        if let Purpose::Work { may_open, .. } = purpose {
            if !self.is_open_under(&won.lease, session, may_open).await? {
                return Ok(None);
            }
            self.teams
                .add_member(&context, &lead.id, &lead.spec)
                .await?;
        }
        let resumed = |reason: &str| {
            Some(Event::SessionResumed(SessionResumed {
                from_node: lead.node.clone(),
                reason: reason.into(),
            }))
        };
        self.host.start(Hosting {
            session: Arc::clone(&context),
            agent: lead.id.clone(),
            epoch: won.lease.epoch,
            opening: purpose.opening(resumed),
            tools_from: won.tools_from.map(clock::instant),
        });
        self.maintenance.look_for_exits(&session.id);
        let mut led = Led::here(session, context);
        led.team.is_new_incarnation = won.is_new_incarnation;
        led.team.tools_from = won.tools_from;
        Ok(Some(led))
    }

    /// Returns whether the session is open under a lease that this node just claimed. No other node
    /// can close the session after the claim, but one may have closed it just before. In that case,
    /// opens the session if `may_open` is set, and otherwise releases the lease and marks the team
    /// dead.
    async fn is_open_under(
        &self,
        lease: &HeldLease,
        session: &SessionRecord,
        may_open: bool,
    ) -> Result<bool, Refusal> {
        let SessionRecord { id, spec, .. } = session;
        if self.lookup.session(id).await?.state == SessionState::Open {
            return Ok(true);
        }
        if may_open {
            self.store
                .set_state(id, lease.epoch, SessionState::Open)
                .await?;
            return Ok(true);
        }
        self.store
            .release(id, &spec.lead, lease.epoch, false)
            .await?;
        self.mark_closed_team_dead(session, lease.incarnation).await;
        Ok(false)
    }

    /// Performs what [`recovery::member_plan`] decides about a member, which is to start it on this
    /// node or another one, to stop it, or to leave it.
    async fn claim_member(
        &self,
        led: &Led,
        member: &AgentRecord,
        purpose: Purpose<'_>,
    ) -> Result<(), Refusal> {
        let facts = MemberFacts {
            is_hosted_here: self.host.has(&member.id),
            holder: self.holder(member.node.as_ref()).await,
            is_for_work: matches!(purpose, Purpose::Work { .. }),
            quiet_from: member
                .node
                .as_ref()
                .and_then(|node| self.view.tools_from(node)),
        };
        let plan = recovery::member_plan(led.team, facts);
        match plan.step {
            MemberStep::Leave => Ok(()),
            MemberStep::StopLost => {
                self.claim_member_here(led, member, Purpose::Lost, plan)
                    .await?;
                self.stop_lost(member).await
            }
            MemberStep::Place if self.hand_to_other_node(led, member, plan).await => {
                if plan.after_death {
                    metrics::meters().taken_over();
                }
                Ok(())
            }
            MemberStep::Place | MemberStep::ClaimHere => {
                self.claim_member_here(led, member, purpose, plan).await
            }
        }
    }

    async fn claim_member_here(
        &self,
        led: &Led,
        member: &AgentRecord,
        purpose: Purpose<'_>,
        plan: MemberPlan,
    ) -> Result<(), Refusal> {
        let context = &led.context;
        if matches!(purpose, Purpose::Work { .. }) {
            self.teams
                .add_member(context, &member.id, &member.spec)
                .await?;
        }
        let claim = LeaseClaim::Member(LeadIncarnation {
            lead: context.lead.clone(),
            incarnation: context.incarnation,
        });
        match self.claim(&context.id, member, member.epoch, claim).await? {
            Some(HeldLease { epoch, .. }) => self.host.start(Hosting {
                session: Arc::clone(context),
                agent: member.id.clone(),
                epoch,
                opening: purpose.opening(|_| None),
                tools_from: plan.tools_from_claim(clock::now()).map(clock::instant),
            }),
            None if self.host.has(&member.id) => {}
            None => self.teams.remove_member(context, &member.id).await,
        }
        Ok(())
    }

    /// Asks another node to start the member. That is the member's previous host if it is alive,
    /// and otherwise the node that placement chooses. Returns `false` if that is this node or if
    /// the other node does not accept.
    async fn hand_to_other_node(&self, led: &Led, member: &AgentRecord, plan: MemberPlan) -> bool {
        let node = match &member.node {
            Some(node) if node != self.view.id() && self.view.is_alive(node).await => {
                Some(node.clone())
            }
            Some(_) | None => self
                .placement
                .node_for(&led.context.workspace, &member.spec),
        };
        match node.filter(|node| node != self.view.id()) {
            Some(node) => {
                // The request contains how long tools must wait, which the other node counts from
                // its claim.
                let tools_from = plan.tools_from_claim(clock::now()).map(clock::instant);
                let request = claim_request(&led.context, member, tools_from);
                self.placement.hand_over(&node, &request).await
            }
            None => false,
        }
    }
}
