//! Claims the lease of a session's orchestrator for this node. If a new incarnation of the team must
//! begin, a state machine ([`planck_cluster::claiming`]) decides each step, and this module performs
//! it. The lease in SQL is the fence. After the claim, the rest of the team is stopped, the team's
//! record is marked dead, and the record of the next incarnation is written. Only then does an agent
//! start.

use std::{collections::BTreeSet, sync::Arc};

use planck_common::{
    NodeId,
    command::StopTeam,
    decision::{DecisionData, DecisionKind},
    registry::TeamEnd,
    reply::Refusal,
};
use tokio::{
    task::JoinSet,
    time::{Duration, Instant, sleep_until},
};

use super::{Purpose, Takeover};
use crate::{actor::SessionContext, handles::ServiceHandles, team_registry::TeamRegistry};
use planck_cluster::{
    cascade::TeamIncarnation,
    claiming::{ClaimEffect, ClaimInput, ClaimPlan, ClaimPolicy, LeadLease, TeamClaim},
    clock,
    moment::Moment,
    planted::{PlantedFault, is_planted},
    recovery::{self, LeadStep, TeamHost},
};
use planck_store::{AgentRecord, HeldLease, LeaseClaim, SessionRecord, StoreError};
use planck_telemetry::metrics;

/// How long the state machine may run. If the registry is unreachable for longer, the next sweep
/// tries again.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long another node may take to stop its members of a team.
const STOPPING: Duration = Duration::from_millis(1_500);

/// The orchestrator's lease, which this node holds now.
pub(super) struct ClaimedLead {
    pub lease: HeldLease,
    /// Whether the claim ended the previous incarnation of the team and began a new one.
    pub is_new_incarnation: bool,
    pub tools_from: Option<Moment>,
}

impl Takeover {
    /// Claims the orchestrator's lease in the way that `step` names. Returns `None` if another node
    /// has the lease or `step` claims none.
    pub(super) async fn claim_lead(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        step: LeadStep,
        purpose: Purpose<'_>,
    ) -> Result<Option<ClaimedLead>, Refusal> {
        let team = incarnation(session, lead.incarnation);
        let after_death = match step {
            LeadStep::Hosted | LeadStep::HostedElsewhere => return Ok(None),
            LeadStep::TakeLease { after_death } => after_death,
            LeadStep::MoveOrBegin if self.teams.is_alive(&team).await? => false,
            LeadStep::MoveOrBegin | LeadStep::BeginIncarnation => {
                return self.begin_incarnation(session, lead, purpose).await;
            }
        };
        let claimed = self.claim_lease(session, lead, lead.epoch, after_death);
        let Some(lease) = claimed.await? else {
            return Ok(None);
        };
        self.move_lead_here(session, lead, step).await?;
        Ok(Some(ClaimedLead {
            lease,
            is_new_incarnation: false,
            tools_from: None,
        }))
    }

    /// Claims the orchestrator's lease at the epoch `seen`. With `after_death` the incarnation
    /// rises.
    async fn claim_lease(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        seen: i64,
        after_death: bool,
    ) -> Result<Option<HeldLease>, StoreError> {
        let _guard = self.handles.host.taking_leases(&session.id);
        let claim = LeaseClaim::Lead { after_death };
        let claimed = self.placement.claim(&session.id, &lead.id, seen, claim);
        let lease = claimed.await?;
        if lease.is_some() {
            self.count_takeover(lead);
        }
        Ok(lease)
    }

    /// Counts an agent that this node took over from another node.
    pub(super) fn count_takeover(&self, agent: &AgentRecord) {
        let other = agent
            .node
            .as_ref()
            .filter(|node| *node != self.handles.view.id());
        if other.is_some() {
            metrics::meters().taken_over();
        }
    }

    /// Records that the orchestrator's team is on this node now. The members continue. A team that
    /// only ends here is recorded too, because the cascade drops its agents before their ends are
    /// written if the team's record names a node that is gone. Such a team ends even if the registry
    /// is away.
    async fn move_lead_here(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        step: LeadStep,
    ) -> Result<(), Refusal> {
        let context = self.handles.lookup.context(session, lead.incarnation)?;
        let is_ending = matches!(step, LeadStep::TakeLease { .. });
        match self.teams.move_lead_here(&context).await {
            Ok(has_moved) if has_moved || is_ending => Ok(()),
            Ok(_) => Err(Refusal::unavailable(
                "the team ended while it was taken over; ask again",
            )),
            Err(refusal) if is_ending => {
                tracing::debug!(session = %session.id, %refusal, "cannot move the ending team in the registry now");
                Ok(())
            }
            Err(refusal) => Err(refusal),
        }
    }

    async fn begin_incarnation(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        purpose: Purpose<'_>,
    ) -> Result<Option<ClaimedLead>, Refusal> {
        let plan = self.plan(session, lead, purpose).await?;
        let context = self.handles.lookup.context(session, lead.incarnation + 1)?;
        let (claim, effects) = TeamClaim::begin(plan, clock::now());
        let next = NextIncarnation {
            takeover: self,
            session,
            lead,
            context: Arc::new(context),
            claim,
            jobs: JoinSet::new(),
            claimed: None,
        };
        let begun = tokio::time::timeout(PATIENCE, Box::pin(next.run(effects))).await;
        let begun = begun.map_err(|_| {
            Refusal::unavailable(
                "the session cannot be taken over now: the registry does not answer",
            )
        })??;
        Ok(begun.map(|(lease, tools_from)| ClaimedLead {
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
        let members = self.handles.lookup.members(&session.id).await?;
        let nodes: BTreeSet<NodeId> = members.into_iter().filter_map(|agent| agent.node).collect();
        let mut hosts = Vec::with_capacity(nodes.len());
        for node in nodes {
            hosts.push(TeamHost {
                is_alive: self.handles.view.is_alive(&node).await,
                quiet_from: self.handles.view.tools_from(&node),
                node,
            });
        }
        let policy = if purpose == Purpose::Lost {
            ClaimPolicy::Stop
        } else {
            ClaimPolicy::Resume
        };
        Ok(recovery::claim_plan(
            (self.handles.view.id().clone(), seen(lead)),
            hosts,
            policy,
            clock::now(),
            self.handles.view.tool_grace(),
        ))
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

fn seen(lead: &AgentRecord) -> LeadLease {
    LeadLease {
        node: lead.node.clone(),
        epoch: lead.epoch,
        incarnation: lead.incarnation,
    }
}

fn incarnation(session: &SessionRecord, number: i64) -> TeamIncarnation {
    TeamIncarnation {
        team: session.spec.team_id.clone(),
        incarnation: number,
    }
}

/// One run of the state machine, with what its effects need.
struct NextIncarnation<'a> {
    takeover: &'a Takeover,
    session: &'a SessionRecord,
    lead: &'a AgentRecord,
    /// The session in the incarnation that is about to begin.
    context: Arc<SessionContext>,
    claim: TeamClaim,
    jobs: JoinSet<Option<ClaimInput>>,
    claimed: Option<HeldLease>,
}

impl NextIncarnation<'_> {
    /// Runs the state machine. Returns the lease and the time from which tools may start under it,
    /// or `None` if the claim is lost.
    async fn run(
        mut self,
        mut effects: Vec<ClaimEffect>,
    ) -> Result<Option<(HeldLease, Moment)>, Refusal> {
        loop {
            for effect in std::mem::take(&mut effects) {
                match effect {
                    ClaimEffect::Start { tools_from, .. } => {
                        return Ok(self.claimed.map(|lease| (lease, tools_from)));
                    }
                    ClaimEffect::Close { .. } => {
                        return Ok(self.claimed.map(|lease| (lease, clock::now())));
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

    /// Claims or reads the lease, whichever the effect requests. Returns `None` if the outcome is
    /// unknown, in which case the state machine reads the lease later.
    async fn lease(&mut self, effect: &ClaimEffect) -> Result<Option<ClaimInput>, Refusal> {
        let outcome = if let ClaimEffect::TakeLease { seen } = effect {
            self.claim_lease(*seen).await
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

    async fn claim_lease(&mut self, seen: i64) -> Result<ClaimInput, StoreError> {
        let claimed = self
            .takeover
            .claim_lease(self.session, self.lead, seen, true);
        self.claimed = claimed.await?;
        if self.claimed.is_none() {
            return Ok(ClaimInput::LeaseRefused);
        }
        let data = DecisionData {
            session: Some(self.session.id.clone()),
            team: Some(self.session.spec.team_id.clone()),
            node: self.lead.node.clone(),
            ..DecisionData::because("no live node held it")
        };
        self.takeover
            .handles
            .decisions
            .publish(DecisionKind::SessionClaimed, data);
        Ok(ClaimInput::LeaseTaken)
    }

    async fn read_lease(&mut self) -> Result<ClaimInput, StoreError> {
        let found = self
            .takeover
            .handles
            .store
            .find_agent(&self.lead.id)
            .await?;
        let Some(lead) = found else {
            return Ok(ClaimInput::LeaseRefused);
        };
        self.claimed = Some(HeldLease {
            epoch: lead.epoch,
            incarnation: lead.incarnation,
            last_seq: lead.last_seq,
        });
        Ok(ClaimInput::LeaseRead(seen(&lead)))
    }

    /// Starts a task for an effect. Its outcome becomes an input of the state machine later.
    fn begin(&mut self, effect: ClaimEffect) {
        let session = self.session.clone();
        let teams = Arc::clone(&self.takeover.teams);
        match effect {
            ClaimEffect::StopTeam { node, incarnation } => {
                let handles = self.takeover.handles.clone();
                self.jobs
                    .spawn(stop_team(handles, teams, session, node, incarnation));
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
                let context = Arc::clone(&self.context);
                self.jobs.spawn(async move {
                    match teams.create(&context).await {
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

/// Makes a node, possibly this one, stop its members of a team before the team's next incarnation
/// begins. Returns `None` if the node does not confirm this. The claim then delays tools, because
/// those of the members may still be running.
pub(super) async fn stop_team(
    handles: ServiceHandles,
    teams: Arc<TeamRegistry>,
    session: SessionRecord,
    node: NodeId,
    incarnation: i64,
) -> Option<ClaimInput> {
    let order = StopTeam {
        team_id: session.spec.team_id,
        incarnation,
        reason: TeamEnd::NodeDead,
        log_reason: None,
    };
    if node == *handles.view.id() {
        teams.stop_here(&order).await;
    } else if is_planted(PlantedFault::StopUnasked) {
        return Some(ClaimInput::Stopped { node });
    } else if let Err(refusal) = handles.peers.stop_team(&node, &order, STOPPING).await {
        if handles.view.is_alive(&node).await {
            tracing::warn!(session = %session.id, %node, %refusal, "a node does not confirm that it stopped the team's members; tools start later");
        }
        return None;
    }
    Some(ClaimInput::Stopped { node })
}
