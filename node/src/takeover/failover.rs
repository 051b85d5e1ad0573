//! Takes over a session's orchestrator for this node. If a new incarnation of the team must begin,
//! a state machine ([`planck_cluster::claiming`]) decides each step, and this module performs it.
//! The lease in SQL is the fence. After the lease was taken, the rest of the team is stopped, the
//! team's record is marked dead, and the record of the next incarnation is written. Only then does
//! an agent start.

use std::{collections::BTreeSet, sync::Arc};

use planck_common::{
    NodeId,
    decision::{DecisionData, DecisionKind},
    registry::TeamEnd,
    reply::Refusal,
};
use tokio::{
    task::JoinSet,
    time::{Duration, Instant, sleep_until},
};

use super::{Takeover, claim::Purpose, team_stopper::TeamStopper};
use crate::actor::parts::SessionContext;
use planck_cluster::{
    cascade::TeamIncarnation,
    claiming::{ClaimEffect, ClaimInput, ClaimPlan, ClaimPolicy, LeadLease, TeamClaim},
    clock,
    moment::Moment,
    recovery::{self, LeadStep, TeamHost},
};
use planck_store::{AgentRecord, HeldLease, LeaseClaim, SessionRecord, StoreError};

/// How long the state machine may run. If the registry is unreachable for longer, the next sweep
/// tries again.
const PATIENCE: Duration = Duration::from_secs(20);

/// The orchestrator's lease, which this node holds now.
pub(super) struct Won {
    pub lease: HeldLease,
    /// Whether the claim ended the previous incarnation of the team and began a new one.
    pub is_new_incarnation: bool,
    pub tools_from: Option<Moment>,
}

impl Takeover {
    /// Takes the orchestrator's lease in the way that `step` names. Returns `None` if another node
    /// has the lease or `step` takes none.
    pub(super) async fn win_lead(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        step: LeadStep,
        purpose: Purpose<'_>,
    ) -> Result<Option<Won>, Refusal> {
        match step {
            LeadStep::Hosted | LeadStep::HostedElsewhere => Ok(None),
            LeadStep::TakeLease { after_death } => {
                let won = self.take_lease(session, lead, after_death).await?;
                if won.is_some() {
                    self.move_ending_team(session, lead).await?;
                }
                Ok(won)
            }
            LeadStep::MoveOrBegin if self.is_team_alive(session, lead).await? => {
                self.move_lead(session, lead).await
            }
            LeadStep::MoveOrBegin | LeadStep::BeginIncarnation => {
                self.begin_incarnation(session, lead, purpose).await
            }
        }
    }

    async fn is_team_alive(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
    ) -> Result<bool, Refusal> {
        let team = incarnation(session, lead.incarnation);
        self.teams.is_alive(&team).await
    }

    /// Moves the orchestrator of a living team to this node. The members continue.
    async fn move_lead(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
    ) -> Result<Option<Won>, Refusal> {
        let Some(won) = self.take_lease(session, lead, false).await? else {
            return Ok(None);
        };
        let context = self.lookup.context(session, lead.incarnation)?;
        match self.teams.move_lead_here(&context).await? {
            true => Ok(Some(won)),
            false => Err(Refusal::unavailable(
                "the team ended while it was taken over; ask again",
            )),
        }
    }

    /// Records that the team, which only ends here, is on this node. Otherwise the cascade drops its
    /// agents before their ends are written, if the team's record names a node that is gone. Without
    /// the registry the team ends nevertheless.
    async fn move_ending_team(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
    ) -> Result<(), Refusal> {
        let context = self.lookup.context(session, lead.incarnation)?;
        if let Err(refusal) = self.teams.move_lead_here(&context).await {
            tracing::debug!(session = %session.id, %refusal, "cannot move the ending team in the registry now");
        }
        Ok(())
    }

    async fn take_lease(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        after_death: bool,
    ) -> Result<Option<Won>, Refusal> {
        let claim = LeaseClaim::Lead { after_death };
        let lease = self.claim(&session.id, lead, lead.epoch, claim).await?;
        Ok(lease.map(|lease| Won {
            lease,
            is_new_incarnation: false,
            tools_from: None,
        }))
    }

    async fn begin_incarnation(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        purpose: Purpose<'_>,
    ) -> Result<Option<Won>, Refusal> {
        let plan = self.plan(session, lead, purpose).await?;
        let next = self.lookup.context(session, lead.incarnation + 1)?;
        let (claim, effects) = TeamClaim::begin(plan, clock::now());
        let claiming = Claiming {
            takeover: self,
            session,
            lead,
            next: Arc::new(next),
            claim,
            jobs: JoinSet::new(),
            taken: None,
        };
        let won = tokio::time::timeout(PATIENCE, Box::pin(claiming.run(effects))).await;
        let won = won.map_err(|_| {
            Refusal::unavailable(
                "the session cannot be taken over now: the registry does not answer",
            )
        })??;
        Ok(won.map(|(lease, tools_from)| Won {
            lease,
            is_new_incarnation: true,
            tools_from: Some(tools_from),
        }))
    }

    async fn plan(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        purpose: Purpose<'_>,
    ) -> Result<ClaimPlan, Refusal> {
        let members = self.lookup.members(&session.id).await?;
        let nodes: BTreeSet<NodeId> = members.into_iter().filter_map(|agent| agent.node).collect();
        let mut hosts = Vec::with_capacity(nodes.len());
        for node in nodes {
            hosts.push(TeamHost {
                is_alive: self.view.is_alive(&node).await,
                quiet_from: self.view.tools_from(&node),
                node,
            });
        }
        let seen = LeadLease {
            node: lead.node.clone(),
            epoch: lead.epoch,
            incarnation: lead.incarnation,
        };
        let policy = if purpose == Purpose::Lost {
            ClaimPolicy::Stop
        } else {
            ClaimPolicy::Resume
        };
        Ok(recovery::claim_plan(
            (self.view.id().clone(), seen),
            hosts,
            policy,
            clock::now(),
            self.view.tool_grace(),
        ))
    }

    /// Returns whether the session's node died and the session is not to continue.
    pub(super) async fn is_lost(&self, session: &SessionRecord) -> bool {
        let holder = self.holder(session.owner.as_ref()).await;
        let has_begun = self.maintenance.is_closing_lost(&session.id);
        recovery::is_lost(holder, session.spec.on_node_death, has_begun)
    }

    /// Marks the team of a closed session as dead. If the write fails, the claim of the next
    /// incarnation repeats it.
    pub(super) async fn mark_closed_team_dead(&self, session: &SessionRecord, number: i64) {
        let whose = Some((session.id.clone(), session.spec.lead.clone()));
        let team = incarnation(session, number);
        if let Err(error) = self.teams.mark_dead(&team, TeamEnd::Closed, whose).await {
            tracing::debug!(session = %session.id, %error, "cannot record the team's end in the registry now");
        }
    }
}

fn incarnation(session: &SessionRecord, number: i64) -> TeamIncarnation {
    TeamIncarnation {
        team: session.spec.team_id.clone(),
        incarnation: number,
    }
}

/// One run of the state machine, with what its effects need.
struct Claiming<'a> {
    takeover: &'a Takeover,
    session: &'a SessionRecord,
    lead: &'a AgentRecord,
    /// The session in the incarnation that is about to begin.
    next: Arc<SessionContext>,
    claim: TeamClaim,
    jobs: JoinSet<Option<ClaimInput>>,
    taken: Option<HeldLease>,
}

impl Claiming<'_> {
    /// Runs the state machine. Returns the lease and the time from which tools may start under it,
    /// or `None` if the claim is lost.
    async fn run(
        mut self,
        first: Vec<ClaimEffect>,
    ) -> Result<Option<(HeldLease, Moment)>, Refusal> {
        let mut effects = first;
        loop {
            for effect in std::mem::take(&mut effects) {
                match effect {
                    ClaimEffect::Start { tools_from, .. } => {
                        return Ok(self.taken.map(|lease| (lease, tools_from)));
                    }
                    ClaimEffect::Close { .. } => {
                        return Ok(self.taken.map(|lease| (lease, clock::now())));
                    }
                    ClaimEffect::Lost => return Ok(None),
                    ClaimEffect::TakeLease { .. } | ClaimEffect::ReadLease => {
                        if let Some(input) = self.lease(&effect).await? {
                            effects.extend(self.claim.on(clock::now(), input));
                        }
                    }
                    ClaimEffect::StopTeam { .. }
                    | ClaimEffect::MarkTeamDead { .. }
                    | ClaimEffect::CreateTeam { .. } => {
                        self.begin(effect);
                    }
                }
            }
            if !effects.is_empty() {
                continue;
            }
            let wake = self
                .claim
                .next_wake()
                .map_or_else(|| Instant::now() + PATIENCE, clock::instant);
            let input = tokio::select! {
                biased;
                Some(done) = self.jobs.join_next() => done.ok().flatten(),
                () = sleep_until(wake) => Some(ClaimInput::Woken),
            };
            effects = input
                .map(|input| self.claim.on(clock::now(), input))
                .unwrap_or_default();
        }
    }

    /// Takes or reads the lease, whichever the effect requests. Returns `None` if the outcome is
    /// unknown, in which case the state machine reads the lease later.
    async fn lease(&mut self, effect: &ClaimEffect) -> Result<Option<ClaimInput>, Refusal> {
        let outcome = if let ClaimEffect::TakeLease { seen } = effect {
            self.take_lease(*seen).await
        } else {
            self.read_lease().await
        };
        match outcome {
            Ok(input) => Ok(Some(input)),
            Err(StoreError::Away(reason)) => {
                tracing::debug!(session = %self.session.id, reason, "the outcome of a claim is unknown");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn take_lease(&mut self, seen: i64) -> Result<ClaimInput, StoreError> {
        let claim = LeaseClaim::Lead { after_death: true };
        self.taken = self
            .takeover
            .claim(&self.session.id, self.lead, seen, claim)
            .await?;
        if self.taken.is_none() {
            return Ok(ClaimInput::LeaseRefused);
        }
        let data = DecisionData {
            session: Some(self.session.id.clone()),
            team: Some(self.session.spec.team_id.clone()),
            node: self.lead.node.clone(),
            ..DecisionData::because("no live node held it")
        };
        self.takeover
            .decisions
            .publish(DecisionKind::SessionClaimed, data);
        Ok(ClaimInput::LeaseTaken)
    }

    async fn read_lease(&mut self) -> Result<ClaimInput, StoreError> {
        let found = self.takeover.store.find_agent(&self.lead.id).await?;
        let Some(AgentRecord {
            node,
            epoch,
            incarnation,
            last_seq,
            ..
        }) = found
        else {
            return Ok(ClaimInput::LeaseRefused);
        };
        self.taken = Some(HeldLease {
            epoch,
            incarnation,
            last_seq,
        });
        Ok(ClaimInput::LeaseRead(LeadLease {
            node,
            epoch,
            incarnation,
        }))
    }

    /// Starts a task for an effect. Its outcome becomes an input of the state machine later.
    fn begin(&mut self, effect: ClaimEffect) {
        let session = self.session.clone();
        let teams = Arc::clone(&self.takeover.teams);
        match effect {
            ClaimEffect::StopTeam { node, incarnation } => {
                let stopper = TeamStopper {
                    view: Arc::clone(&self.takeover.view),
                    peers: Arc::clone(&self.takeover.peers),
                    teams,
                };
                self.jobs
                    .spawn(async move { stopper.stop_team(&session, node, incarnation).await });
            }
            ClaimEffect::MarkTeamDead {
                incarnation: number,
            } => {
                let team = incarnation(&session, number);
                let whose = Some((session.id.clone(), session.spec.lead.clone()));
                self.jobs.spawn(async move {
                    let marked = teams.mark_dead(&team, TeamEnd::NodeDead, whose).await;
                    marked.is_ok().then_some(ClaimInput::TeamMarkedDead)
                });
            }
            ClaimEffect::CreateTeam { .. } => {
                let next = Arc::clone(&self.next);
                self.jobs.spawn(async move {
                    match teams.create(&next).await {
                        Ok(()) => Some(ClaimInput::TeamCreated),
                        Err(refusal) if refusal.retryable => None,
                        Err(_) => Some(ClaimInput::TeamTaken),
                    }
                });
            }
            ClaimEffect::TakeLease { .. }
            | ClaimEffect::ReadLease
            | ClaimEffect::Start { .. }
            | ClaimEffect::Close { .. }
            | ClaimEffect::Lost => {}
        }
    }
}
