//! Wins a session's lead for this node, as the claim machine says: the lease in SQL is the fence;
//! then what is left of the team is stopped and its record set dead, and the next life's record is
//! written before anything starts.

use std::collections::BTreeSet;

use planck_common::{
    AgentId, NodeId,
    command::{StopTeam, StoppedTeam},
    decision::{Decided, DecisionKind},
    registry::TeamEnd,
    reply::Refusal,
    spec::OnNodeDeath,
};
use tokio::{
    task::JoinSet,
    time::{Duration, Instant, sleep_until},
};

use super::claim::Purpose;
use crate::{
    actor::parts::Facts,
    cluster::{
        cascade::Life,
        claiming::{self, Effect, Input, Plan, Policy},
        clock,
    },
    node::Node,
    store::{AgentRecord, Claim, Lease, SessionRecord, StoreError},
};

/// How long a claim may take; a registry that is away longer is for the next sweep.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a node may take to stop its members of a team.
const STOPPING: Duration = Duration::from_millis(1_500);

/// The lead's lease.
pub(super) struct Won {
    pub lease: Lease,
    /// Whether a new life of the team began with it.
    pub is_raised: bool,
    pub tools_from: Option<Instant>,
}

impl Node {
    /// `None`: another node has it.
    pub(super) async fn win(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        after_death: bool,
        purpose: Purpose<'_>,
    ) -> Result<Option<Won>, Refusal> {
        if self.settings().alone || purpose == Purpose::End {
            return self.take_lease(session, lead, after_death).await;
        }
        let is_planned = lead.node.is_none()
            && self
                .is_team_alive(&life_of(session, lead.incarnation))
                .await?;
        if !is_planned {
            return self.raise(session, lead, purpose).await;
        }
        let Some(won) = self.take_lease(session, lead, false).await? else {
            return Ok(None);
        };
        match self
            .hand_over_team(&self.facts(session, lead.incarnation)?)
            .await?
        {
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
        let lease = self
            .claim(&session.id, lead, Claim::Lead { after_death })
            .await?;
        Ok(lease.map(|lease| Won {
            lease,
            is_raised: false,
            tools_from: None,
        }))
    }

    /// When the tools of a dead node cannot act any more.
    pub(super) fn grace_of(&self, dead: &NodeId) -> Option<Instant> {
        self.tools_from(dead).map(clock::instant)
    }

    async fn raise(
        &self,
        session: &SessionRecord,
        lead: &AgentRecord,
        purpose: Purpose<'_>,
    ) -> Result<Option<Won>, Refusal> {
        let plan = self.plan(session, lead, purpose).await?;
        let (claim, effects) = claiming::Claim::begin(plan, clock::now());
        let claiming = Claiming {
            node: self,
            session,
            lead,
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
            is_raised: true,
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
        let members = self.members(&session.id).await?;
        let nodes: BTreeSet<NodeId> = members.into_iter().filter_map(|agent| agent.node).collect();
        for node in nodes {
            match self.liveness().is_alive(&node).await {
                true => drop(hosts.insert(node)),
                false => tools_from = tools_from.max(self.tools_from(&node).unwrap_or(tools_from)),
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
            me: self.id().clone(),
            seen,
            hosts,
            policy,
            tools_from,
            grace: self.tool_grace(),
        })
    }

    /// Whether a session whose node died is not to go on.
    pub(super) async fn is_lost(&self, session: &SessionRecord) -> Result<bool, Refusal> {
        match (&session.owner, session.spec.on_node_death) {
            (Some(node), OnNodeDeath::Stop) if node != self.id() => self.is_dead(node).await,
            (Some(_) | None, OnNodeDeath::Stop | OnNodeDeath::Resume) => Ok(false),
        }
    }
}

impl Node {
    /// The team of a closed session is dead; where the registry does not take it, the next life's
    /// claim says it.
    pub(super) async fn bury_closed(&self, session: &SessionRecord, incarnation: i64) {
        let whose = Some((session.id.clone(), session.spec.lead.clone()));
        if let Err(error) = self
            .bury(&life_of(session, incarnation), TeamEnd::Closed, whose)
            .await
        {
            tracing::debug!(session = %session.id, %error, "the registry does not take the team's end now");
        }
    }
}

fn life_of(session: &SessionRecord, incarnation: i64) -> Life {
    Life {
        team: session.spec.team_id.clone(),
        incarnation,
    }
}

/// What came of a job.
type Done = Option<Input>;

struct Claiming<'a> {
    node: &'a Node,
    session: &'a SessionRecord,
    lead: &'a AgentRecord,
    claim: claiming::Claim,
    jobs: JoinSet<Done>,
    taken: Option<Lease>,
}

impl Claiming<'_> {
    /// The lease, and from when on tools may start with it.
    async fn run(mut self, first: Vec<Effect>) -> Result<Option<(Lease, Instant)>, Refusal> {
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
                        let input = self.lease(&effect).await?;
                        effects.extend(
                            input
                                .into_iter()
                                .flat_map(|input| self.claim.on(clock::now(), input))
                                .collect::<Vec<_>>(),
                        );
                    }
                    Effect::StopTeam { .. } | Effect::Bury { .. } | Effect::CreateTeam { .. } => {
                        self.begin(effect)?
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

    /// Nothing is told of an outcome that is not known: the machine asks again.
    async fn lease(&mut self, effect: &Effect) -> Result<Option<Input>, Refusal> {
        let read = matches!(effect, Effect::ReadLease);
        let outcome = if read {
            self.read_lease().await
        } else {
            self.take_lease().await
        };
        match outcome {
            Ok(input) => Ok(Some(input)),
            Err(StoreError::Away(reason)) => {
                tracing::debug!(session = %self.session.id, reason, "the outcome of a claim is not known");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn take_lease(&mut self) -> Result<Input, StoreError> {
        self.taken = self
            .node
            .claim(
                &self.session.id,
                self.lead,
                Claim::Lead { after_death: true },
            )
            .await?;
        let Some(_) = &self.taken else {
            return Ok(Input::LeaseRefused);
        };
        let data = Decided {
            session: Some(self.session.id.clone()),
            team: Some(self.session.spec.team_id.clone()),
            node: self.lead.node.clone(),
            ..Decided::because("nobody alive held it")
        };
        self.node.decided(DecisionKind::SessionClaimed, data);
        Ok(Input::LeaseTaken)
    }

    async fn read_lease(&mut self) -> Result<Input, StoreError> {
        let found = self.node.store().find_agent(&self.lead.id).await?;
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
        self.taken = Some(Lease {
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

    fn begin(&mut self, effect: Effect) -> Result<(), Refusal> {
        let Some(node) = self.node.own() else {
            return Err(Refusal::unavailable("this node is leaving"));
        };
        let session = self.session.clone();
        let next = self.node.facts(self.session, self.lead.incarnation + 1)?;
        self.jobs.spawn(async move {
            match effect {
                Effect::StopTeam {
                    node: host,
                    incarnation,
                } => Some(node.have_stopped(&session, host, incarnation).await),
                Effect::Bury { incarnation } => {
                    let whose: Option<(_, AgentId)> =
                        Some((session.id.clone(), session.spec.lead.clone()));
                    let buried = node
                        .bury(&life_of(&session, incarnation), TeamEnd::NodeDead, whose)
                        .await;
                    buried.is_ok().then_some(Input::Buried)
                }
                Effect::CreateTeam { .. } => node.create_team(&next).await,
                Effect::TakeLease { .. }
                | Effect::ReadLease
                | Effect::Start { .. }
                | Effect::Close { .. }
                | Effect::Lost => None,
            }
        });
        Ok(())
    }
}

impl Node {
    async fn have_stopped(&self, session: &SessionRecord, host: NodeId, incarnation: i64) -> Input {
        let team_id = session.spec.team_id.clone();
        let order = StopTeam {
            team_id,
            incarnation,
            reason: TeamEnd::NodeDead,
            said: None,
        };
        let stopped: Result<StoppedTeam, Refusal> = if host == *self.id() {
            self.stop_team(order).await
        } else {
            self.peers().stop_team(&host, &order, STOPPING).await
        };
        // One that left meanwhile has nothing to stop.
        if let Err(refusal) = stopped
            && self.liveness().is_alive(&host).await
        {
            tracing::warn!(session = %session.id, node = %host, %refusal, "a node does not say that it stopped the team's members");
        }
        Input::Stopped { node: host }
    }

    async fn create_team(&self, next: &Facts) -> Done {
        match self.raise_team(next).await {
            Ok(()) => Some(Input::TeamCreated),
            Err(refusal) if refusal.retryable => None,
            Err(_) => Some(Input::TeamTaken),
        }
    }
}
