//! Takes over a session's orchestrator for this node. A state machine
//! ([`crate::cluster::claiming`]) decides each step, and this module performs it. The lease in SQL
//! is the fence: after it was taken, the rest of the team is stopped, the team's record is marked
//! dead, and the record of the next incarnation is written before anything starts.

use std::{collections::BTreeSet, sync::Arc};

use planck_common::{
    NodeId,
    command::StopTeam,
    decision::{DecisionData, DecisionKind},
    registry::TeamEnd,
    reply::Refusal,
    spec::OnNodeDeath,
};
use tokio::{
    task::JoinSet,
    time::{Duration, Instant, sleep_until},
};

use super::{Takeover, claim::Purpose};
use crate::{
    actor::parts::SessionContext,
    cluster::{
        cascade::Life,
        claiming::{self, Effect, Input, Plan, Policy},
        clock,
        view::ClusterView,
    },
    peers::Peers,
    store::{AgentRecord, HeldLease, LeaseClaim, SessionRecord, StoreError},
    team_registry::TeamRegistry,
};

/// How long a claim may take. If the registry is unreachable for longer, the next sweep tries
/// again.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a node may take to stop its members of a team.
const STOPPING: Duration = Duration::from_millis(1_500);

/// The orchestrator's lease, which this node holds now.
pub(super) struct Won {
    pub lease: HeldLease,
    /// Whether a new incarnation of the team began with it.
    pub is_new_incarnation: bool,
    pub tools_from: Option<Instant>,
}

impl Takeover {
    /// Claims the orchestrator's lease. Returns `None` if another node holds it.
    pub(super) async fn win_lead(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        after_death: bool,
        purpose: Purpose<'_>,
    ) -> Result<Option<Won>, Refusal> {
        if self.view.is_alone() || purpose == Purpose::End {
            return self.take_lease(session, lead, after_death).await;
        }
        let is_planned = lead.node.is_none()
            && self
                .teams
                .is_alive(&incarnation(session, lead.incarnation))
                .await?;
        if !is_planned {
            return self.begin_incarnation(session, lead, purpose).await;
        }
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

    async fn take_lease(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        after_death: bool,
    ) -> Result<Option<Won>, Refusal> {
        let claim = LeaseClaim::Lead { after_death };
        let lease = self.claim(&session.id, lead, claim).await?;
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
        let (claim, effects) = claiming::Claim::begin(plan, clock::now());
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
    ) -> Result<Plan, Refusal> {
        let mut hosts = BTreeSet::new();
        let mut tools_from = clock::now();
        let members = self.lookup.members(&session.id).await?;
        let nodes: BTreeSet<NodeId> = members.into_iter().filter_map(|agent| agent.node).collect();
        for node in nodes {
            if self.view.is_alive(&node).await {
                hosts.insert(node);
            } else if let Some(from) = self.view.tools_from(&node) {
                tools_from = tools_from.max(from);
            }
        }
        let seen = claiming::Lease {
            node: lead.node.clone(),
            epoch: lead.epoch,
            incarnation: lead.incarnation,
        };
        let policy = if purpose == Purpose::Lost {
            Policy::Stop
        } else {
            Policy::Resume
        };
        Ok(Plan {
            me: self.view.id().clone(),
            seen,
            hosts,
            policy,
            tools_from,
            grace: self.view.tool_grace(),
        })
    }

    /// Returns whether the session's node died and the session is not to continue.
    pub(super) async fn is_lost(&self, session: &SessionRecord) -> bool {
        match (&session.owner, session.spec.on_node_death) {
            (Some(node), OnNodeDeath::Stop) if node != self.view.id() => {
                !self.view.is_alive(node).await
            }
            (Some(_) | None, OnNodeDeath::Stop | OnNodeDeath::Resume) => false,
        }
    }

    /// Marks the team of a closed session as dead. If that fails, the claim of the next incarnation
    /// does it.
    pub(super) async fn mark_closed_team_dead(&self, session: &SessionRecord, number: i64) {
        let whose = Some((session.id.clone(), session.spec.lead.clone()));
        let team = incarnation(session, number);
        if let Err(error) = self.teams.mark_dead(&team, TeamEnd::Closed, whose).await {
            tracing::debug!(session = %session.id, %error, "cannot record the team's end in the registry now");
        }
    }
}

fn incarnation(session: &SessionRecord, number: i64) -> Life {
    Life {
        team: session.spec.team_id.clone(),
        incarnation: number,
    }
}

/// One run of the state machine.
struct Claiming<'a> {
    takeover: &'a Takeover,
    session: &'a SessionRecord,
    lead: &'a AgentRecord,
    /// The session in the incarnation that is about to begin.
    next: Arc<SessionContext>,
    claim: claiming::Claim,
    jobs: JoinSet<Option<Input>>,
    taken: Option<HeldLease>,
}

impl Claiming<'_> {
    /// Runs the state machine. Returns the lease and the time from which tools may start under it.
    async fn run(mut self, first: Vec<Effect>) -> Result<Option<(HeldLease, Instant)>, Refusal> {
        let mut effects = first;
        loop {
            for effect in std::mem::take(&mut effects) {
                match effect {
                    Effect::Start { tools_from, .. } => {
                        return Ok(self.taken.map(|lease| (lease, clock::instant(tools_from))));
                    }
                    Effect::Close { .. } => {
                        return Ok(self.taken.map(|lease| (lease, Instant::now())));
                    }
                    Effect::Lost => return Ok(None),
                    Effect::TakeLease { .. } | Effect::ReadLease => {
                        if let Some(input) = self.lease(&effect).await? {
                            effects.extend(self.claim.on(clock::now(), input));
                        }
                    }
                    Effect::StopTeam { .. } | Effect::Bury { .. } | Effect::CreateTeam { .. } => {
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
                Some(done) = self.jobs.join_next() => done.ok().flatten(),
                () = sleep_until(wake) => Some(Input::Woken),
            };
            effects = input
                .map(|input| self.claim.on(clock::now(), input))
                .unwrap_or_default();
        }
    }

    /// Reads or takes the lease. Returns `None` if the outcome is unknown; the state machine then
    /// asks again.
    async fn lease(&mut self, effect: &Effect) -> Result<Option<Input>, Refusal> {
        let outcome = if matches!(effect, Effect::ReadLease) {
            self.read_lease().await
        } else {
            self.take_lease().await
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

    async fn take_lease(&mut self) -> Result<Input, StoreError> {
        let claim = LeaseClaim::Lead { after_death: true };
        self.taken = self
            .takeover
            .claim(&self.session.id, self.lead, claim)
            .await?;
        if self.taken.is_none() {
            return Ok(Input::LeaseRefused);
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
        Ok(Input::LeaseTaken)
    }

    async fn read_lease(&mut self) -> Result<Input, StoreError> {
        let found = self.takeover.store.find_agent(&self.lead.id).await?;
        let Some(AgentRecord {
            node,
            epoch,
            incarnation,
            last_seq,
            ..
        }) = found
        else {
            return Ok(Input::LeaseRefused);
        };
        self.taken = Some(HeldLease {
            epoch,
            incarnation,
            last_seq,
        });
        Ok(Input::LeaseRead(claiming::Lease {
            node,
            epoch,
            incarnation,
        }))
    }

    /// Starts an effect that takes time. Its result becomes an input.
    fn begin(&mut self, effect: Effect) {
        let session = self.session.clone();
        let teams = Arc::clone(&self.takeover.teams);
        match effect {
            Effect::StopTeam { node, incarnation } => {
                let nodes = OtherNodes {
                    view: Arc::clone(&self.takeover.view),
                    peers: Arc::clone(&self.takeover.peers),
                    teams,
                };
                self.jobs
                    .spawn(async move { Some(nodes.stop_team(&session, node, incarnation).await) });
            }
            Effect::Bury {
                incarnation: number,
            } => {
                let team = incarnation(&session, number);
                let whose = Some((session.id.clone(), session.spec.lead.clone()));
                self.jobs.spawn(async move {
                    let marked = teams.mark_dead(&team, TeamEnd::NodeDead, whose).await;
                    marked.is_ok().then_some(Input::Buried)
                });
            }
            Effect::CreateTeam { .. } => {
                let next = Arc::clone(&self.next);
                self.jobs.spawn(async move {
                    match teams.create(&next).await {
                        Ok(()) => Some(Input::TeamCreated),
                        Err(refusal) if refusal.retryable => None,
                        Err(_) => Some(Input::TeamTaken),
                    }
                });
            }
            Effect::TakeLease { .. }
            | Effect::ReadLease
            | Effect::Start { .. }
            | Effect::Close { .. }
            | Effect::Lost => {}
        }
    }
}

/// The nodes that may still run members of the previous incarnation. This node may be among them.
struct OtherNodes {
    view: Arc<ClusterView>,
    peers: Arc<Peers>,
    teams: Arc<TeamRegistry>,
}

impl OtherNodes {
    async fn stop_team(&self, session: &SessionRecord, node: NodeId, incarnation: i64) -> Input {
        let order = StopTeam {
            team_id: session.spec.team_id.clone(),
            incarnation,
            reason: TeamEnd::NodeDead,
            log_reason: None,
        };
        if node == *self.view.id() {
            self.teams.stop_here(&order).await;
        } else if let Err(refusal) = self.peers.stop_team(&node, &order, STOPPING).await
            // A node that has left meanwhile has nothing to stop.
            && self.view.is_alive(&node).await
        {
            tracing::warn!(session = %session.id, %node, %refusal, "a node does not confirm that it stopped the team's members");
        }
        Input::Stopped { node }
    }
}
