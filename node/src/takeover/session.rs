//! Takes a session over: this node claims the orchestrator's lease unless a live node holds it, and
//! starts the agents that no live node hosts from SQL, here or on another node.

use std::sync::Arc;

use futures_util::future;
use planck_common::{
    NodeId,
    command::SessionState,
    event::{Event, SessionResumed},
    reply::Refusal,
};
use tokio::time::Instant;

use super::{SessionGuard, Takeover};
use crate::{
    actor::{AT_ONCE, Hosting, Opening, SessionContext},
    agent::OpenTurn,
    placement::claim_request,
};
use planck_cluster::{
    clock,
    planted::{PlantedFault, is_planted},
    recovery::{
        self, LeadFacts, LeadStep, LeaseHolder, LedTeam, MemberFacts, MemberPlan, MemberStep,
    },
};
use planck_store::{AgentRecord, HeldLease, SessionRecord};
use planck_telemetry::metrics;

/// The reason for taking a session over.
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

impl Purpose<'_> {
    pub(super) fn opening(self, event: impl FnOnce(&str) -> Option<Event>) -> Opening {
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

/// What the takeover of a session's members depends on.
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
    /// Takes the session over for an operation that only its host can perform. Returns the
    /// orchestrator's record, and fails if another node hosts the orchestrator.
    pub async fn take_over_here(
        &self,
        session: &SessionRecord,
        purpose: Purpose<'_>,
        guard: &SessionGuard,
    ) -> Result<AgentRecord, Refusal> {
        self.take_over_locked(session, purpose, guard).await?;
        let lead = self.handles.lookup.lead(session).await?;
        match &lead.node {
            Some(node) if node != self.handles.view.id() && !self.handles.host.has(&lead.id) => {
                Err(Refusal::unavailable(format!(
                    "agent {} is held by node {node}, which may be being replaced; ask again",
                    lead.id
                )))
            }
            Some(_) | None => Ok(lead),
        }
    }

    /// Starts every agent of the session that no live node hosts. A repeated call is harmless, also
    /// while another node does the same.
    pub(super) async fn take_over_locked(
        &self,
        session: &SessionRecord,
        purpose: Purpose<'_>,
        _guard: &SessionGuard,
    ) -> Result<(), Refusal> {
        self.placement.local().check_accepts_work()?;
        // Refuses a session whose workspace is not on this node before anything is claimed.
        self.handles.lookup.context(session, 0)?;
        let agents = self.handles.lookup.members(&session.id).await?;
        let Some(lead) = agents.iter().find(|agent| agent.id == session.spec.lead) else {
            return Err(Refusal::not_found(format!(
                "session {} has no orchestrator; it was stopped",
                session.name
            )));
        };
        let led = match self.take_over_lead(session, lead, purpose).await? {
            Some(led) => led,
            None => {
                let context = self.handles.lookup.context(session, lead.incarnation)?;
                Led {
                    context: Arc::new(context),
                    team: LedTeam::led_elsewhere(
                        session.spec.on_node_death,
                        clock::now(),
                        self.handles.view.tool_grace(),
                    ),
                }
            }
        };
        let members: Vec<&AgentRecord> = agents
            .iter()
            .filter(|agent| agent.id != session.spec.lead)
            .collect();
        for some in members.chunks(AT_ONCE) {
            let takeovers = some
                .iter()
                .map(|member| self.take_over_member(&led, member, purpose));
            future::try_join_all(takeovers).await?;
        }
        Ok(())
    }

    /// Claims the orchestrator's lease and starts the orchestrator, unless it runs on this node
    /// already. Returns `None` if another node hosts it or the session stays closed.
    async fn take_over_lead(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        purpose: Purpose<'_>,
    ) -> Result<Option<Led>, Refusal> {
        let hosting = self.handles.host.hosting(&lead.id);
        let holder = self.holder(lead.node.as_ref()).await;
        // The holder may have become known as dead since the caller asked whether the session is lost.
        if matches!(purpose, Purpose::Work { .. })
            && session.state == SessionState::Open
            && self.is_lost_with(session, holder)
        {
            return Err(Refusal::unavailable(
                "the session's node died, and the session is being closed; ask again",
            ));
        }
        let step = recovery::lead_step(LeadFacts {
            is_hosted_here: hosting.is_some(),
            holder,
            is_alone: self.handles.view.is_alone(),
            is_ending: purpose == Purpose::End,
        });
        if let Some(hosting) = hosting.filter(|_| step == LeadStep::Hosted) {
            return Ok(Some(Led::here(session, hosting.session)));
        }
        let Some(claimed) = self.claim_lead(session, lead, step, purpose).await? else {
            return Ok(None);
        };
        let lease = &claimed.lease;
        let context = Arc::new(self.handles.lookup.context(session, lease.incarnation)?);
        if let Purpose::Work { may_open, .. } = purpose
            && !self.is_open_under(lease, session, may_open).await?
        {
            return Ok(None);
        }
        let resumed = |reason: &str| {
            Some(Event::SessionResumed(SessionResumed {
                from_node: lead.node.clone(),
                reason: reason.into(),
            }))
        };
        let hosting = Hosting {
            session: Arc::clone(&context),
            agent: lead.id.clone(),
            epoch: lease.epoch,
            opening: purpose.opening(resumed),
            tools_from: claimed.tools_from.map(clock::instant),
        };
        self.placement.start(hosting, &lead.spec, None).await?;
        self.maintenance.look_for_exits(&session.id);
        let mut led = Led::here(session, context);
        led.team.is_new_incarnation = claimed.is_new_incarnation;
        led.team.tools_from = claimed.tools_from;
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
        if self.handles.lookup.session(id).await?.state == SessionState::Open {
            return Ok(true);
        }
        if may_open {
            self.handles
                .store
                .set_state(id, lease.epoch, SessionState::Open)
                .await?;
            return Ok(true);
        }
        self.handles
            .store
            .release(id, &spec.lead, lease.epoch, false)
            .await?;
        self.mark_closed_team_dead(session, lease.incarnation).await;
        Ok(false)
    }

    /// Performs what [`recovery::member_plan`] decides about a member, which is to start it on this
    /// node or another one, to stop it, or to leave it.
    async fn take_over_member(
        &self,
        led: &Led,
        member: &AgentRecord,
        purpose: Purpose<'_>,
    ) -> Result<(), Refusal> {
        let facts = MemberFacts {
            is_hosted_here: self.handles.host.has(&member.id),
            holder: self.holder(member.node.as_ref()).await,
            is_for_work: matches!(purpose, Purpose::Work { .. }),
            quiet_from: member
                .node
                .as_ref()
                .and_then(|node| self.handles.view.tools_from(node)),
        };
        let plan = recovery::member_plan(led.team, facts);
        match plan.step {
            MemberStep::Leave => Ok(()),
            MemberStep::StopLost => {
                self.start_member_here(led, member, Purpose::Lost, plan)
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
                self.start_member_here(led, member, purpose, plan).await
            }
        }
    }

    async fn start_member_here(
        &self,
        led: &Led,
        member: &AgentRecord,
        purpose: Purpose<'_>,
        plan: MemberPlan,
    ) -> Result<(), Refusal> {
        let (session, opening) = (Arc::clone(&led.context), purpose.opening(|_| None));
        let tools_from = || tools_from(plan, member, self.handles.view.id());
        let started = self
            .placement
            .start_member(session, member, opening, tools_from, None);
        if started.await?.is_some() {
            self.count_takeover(member);
        }
        Ok(())
    }

    /// Asks another node to start the member. That is the member's previous host if it is alive,
    /// and otherwise the node that placement chooses. Returns `false` if that is this node or if
    /// the other node does not accept.
    async fn hand_to_other_node(&self, led: &Led, member: &AgentRecord, plan: MemberPlan) -> bool {
        let node = match &member.node {
            Some(node)
                if node != self.handles.view.id() && self.handles.view.is_alive(node).await =>
            {
                Some(node.clone())
            }
            Some(_) | None => {
                let workspace = &led.context.workspace;
                self.placement.node_for(workspace, &member.spec).await
            }
        };
        match node.filter(|node| node != self.handles.view.id()) {
            Some(node) => {
                // The request contains how long tools must wait, which the other node counts from
                // its claim.
                let tools_from = tools_from(plan, member, &node);
                let request = claim_request(&led.context, member, tools_from);
                self.placement.hand_over(&node, &request).await
            }
            None => false,
        }
    }

    /// Returns whether the session's node died and the session is not to continue.
    pub(super) async fn is_lost(&self, session: &SessionRecord) -> bool {
        let holder = self.holder(session.owner.as_ref()).await;
        self.is_lost_with(session, holder)
    }

    fn is_lost_with(&self, session: &SessionRecord, holder: LeaseHolder) -> bool {
        let has_begun = self.maintenance.is_closing_lost(&session.id);
        recovery::is_lost(holder, session.spec.on_node_death, has_begun)
    }

    /// Returns the holder of a lease, as this node sees it.
    async fn holder(&self, node: Option<&NodeId>) -> LeaseHolder {
        let is_alive = match node {
            Some(node) if node != self.handles.view.id() => self.handles.view.is_alive(node).await,
            Some(_) | None => true,
        } && !is_planted(PlantedFault::HoldersCountAsGone);
        LeaseHolder::of(node, self.handles.view.id(), is_alive)
    }
}

/// Returns when the tools of a member may start if a node claims it now.
fn tools_from(plan: MemberPlan, member: &AgentRecord, claimer: &NodeId) -> Option<Instant> {
    let is_taken = member.node.as_ref().is_some_and(|node| node != claimer);
    let from = plan.tools_from_claim(clock::now(), is_taken);
    from.map(clock::instant)
}
