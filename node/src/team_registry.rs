//! The service for the records of teams in the cluster's registry. It writes the records of a team
//! and of its members, and stops the members on this node when their team ends or its
//! orchestrator's node dies.
//!
//! A node without a registry works alone. No other node could end its teams, so every write
//! succeeds there and changes nothing.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future;
use planck_cluster::{
    Revision,
    cascade::{Cascade, CascadeEffect, CascadeInput, SeenTeam, TeamIncarnation},
    clock,
    planted::{PlantedFault, is_planted},
    registry::{ClusterRegistry, DeathOf, MembersCreated, RegistryError, TeamWritten},
};
use planck_common::{
    AgentId, NodeId, SessionId,
    command::{StopTeam, StoppedTeam},
    decision::{DecisionData, DecisionKind},
    registry::{MemberRecord, Nonce, TeamEnd, TeamRecord, TeamStanding},
    reply::{Code, Refusal},
    spec::AgentSpec,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use crate::{
    actor::{AT_ONCE, Hosting, SessionContext},
    agent::Command,
    handles::ServiceHandles,
};

/// The service that keeps the records of the teams with agents on this node.
pub struct TeamRegistry {
    /// The registry, or `None` if this node works alone.
    registry: Option<ClusterRegistry>,
    cascade: Mutex<Cascade>,
    /// Notified when the cascade received an input, because its next wake-up may then be earlier.
    changed: Notify,
    handles: ServiceHandles,
}

impl TeamRegistry {
    pub fn new(handles: ServiceHandles, registry: Option<ClusterRegistry>) -> Self {
        Self {
            registry,
            cascade: Mutex::default(),
            changed: Notify::new(),
            handles,
        }
    }

    /// Writes the record of a team's incarnation whose orchestrator is on this node. Fails if
    /// another node wrote the record, or the team is dead.
    pub async fn create(&self, session: &SessionContext) -> Result<(), Refusal> {
        let Some(registry) = &self.registry else {
            return Ok(());
        };
        let record = self.record(session.id.clone(), session.lead.clone());
        match registry
            .create_team(&session.team, session.incarnation, &record)
            .await
            .map_err(registry_away)?
        {
            TeamWritten::Mine(_) => Ok(()),
            TeamWritten::Theirs(found)
                if found.record.state == TeamStanding::Alive
                    && found.record.node == *self.handles.view.id() =>
            {
                Ok(())
            }
            TeamWritten::Theirs(_) => Err(team_moved()),
        }
    }

    /// Records that the orchestrator of a live team is on this node now. Its members continue
    /// undisturbed. Returns `false` if the team is dead or has no record, or if its record changed
    /// meanwhile.
    pub async fn move_lead_here(&self, session: &SessionContext) -> Result<bool, Refusal> {
        let Some(registry) = &self.registry else {
            return Ok(true);
        };
        let found = registry
            .team(&session.team, session.incarnation)
            .await
            .map_err(registry_away)?;
        let Some(found) = found.filter(|found| found.record.state == TeamStanding::Alive) else {
            return Ok(false);
        };
        if is_planted(PlantedFault::MoveUnrecorded) {
            return Ok(true);
        }
        let record = self.record(session.id.clone(), session.lead.clone());
        let moved = registry
            .hand_over(&session.team, session.incarnation, &record, found.revision)
            .await;
        Ok(matches!(
            moved.map_err(registry_away)?,
            TeamWritten::Mine(_)
        ))
    }

    /// Returns whether an incarnation of a team is alive according to the registry. Always returns
    /// `true` without a registry.
    pub async fn is_alive(&self, team: &TeamIncarnation) -> Result<bool, Refusal> {
        let Some(registry) = &self.registry else {
            return Ok(true);
        };
        let found = registry
            .team(&team.team, team.incarnation)
            .await
            .map_err(registry_away)?;
        Ok(found.is_some_and(|found| found.record.state == TeamStanding::Alive))
    }

    /// Marks an incarnation of a team as dead, and publishes the decision if this node made it. If
    /// there is no record, creates a dead one, provided that `whose` names the team's session and
    /// orchestrator.
    pub async fn mark_dead(
        &self,
        team: &TeamIncarnation,
        end: TeamEnd,
        whose: Option<(SessionId, AgentId)>,
    ) -> Result<(), RegistryError> {
        self.mark(team, (DeathOf::AnyRecord, end), whose)
            .await
            .map(drop)
    }

    /// Marks an incarnation of a team as dead, as [`Self::mark_dead`] does, if `which` allows it.
    /// Returns whether the team is dead now or has no record.
    async fn mark(
        &self,
        team: &TeamIncarnation,
        (which, end): (DeathOf, TeamEnd),
        whose: Option<(SessionId, AgentId)>,
    ) -> Result<bool, RegistryError> {
        let Some(registry) = &self.registry else {
            return Ok(true);
        };
        let known = match whose {
            Some((session, lead)) => Some(self.record(session, lead)),
            None => registry
                .team(&team.team, team.incarnation)
                .await?
                .map(|found| found.record),
        };
        let Some(otherwise) = known else {
            return Ok(true);
        };
        let otherwise = TeamRecord {
            nonce: nonce(),
            ..otherwise
        };
        let written = registry
            .end_team(&team.team, team.incarnation, (which, end), &otherwise)
            .await?;
        if matches!(written, TeamWritten::Mine(_)) {
            let reason = match end {
                TeamEnd::NodeDead => "the node of its orchestrator died",
                TeamEnd::Stopped => "its orchestrator was stopped",
                TeamEnd::Closed => "its session was closed",
            };
            let data = DecisionData {
                team: Some(team.team.clone()),
                ..DecisionData::because(reason)
            };
            self.handles.decisions.publish(DecisionKind::TeamDown, data);
        }
        Ok(match written {
            TeamWritten::Mine(_) => true,
            TeamWritten::Theirs(found) => found.record.state == TeamStanding::Dead,
        })
    }

    /// Writes the record of an agent that is to run on this node, on condition that its team is
    /// alive.
    pub async fn add_member(
        &self,
        session: &SessionContext,
        agent: &AgentId,
        spec: &AgentSpec,
    ) -> Result<(), Refusal> {
        self.add_members(session, [(agent, spec)]).await
    }

    /// Writes the records of several agents as [`Self::add_member`] does, either all of them or
    /// none.
    pub async fn add_members<'a>(
        &self,
        session: &SessionContext,
        agents: impl IntoIterator<Item = (&'a AgentId, &'a AgentSpec)>,
    ) -> Result<(), Refusal> {
        let Some(registry) = &self.registry else {
            return Ok(());
        };
        let record = |spec: &AgentSpec| MemberRecord {
            node: self.handles.view.id().clone(),
            session: session.id.clone(),
            r#type: spec.r#type.clone(),
            name: spec.name.clone(),
            role: spec.role,
        };
        let members: Vec<_> = agents
            .into_iter()
            .map(|(agent, spec)| (agent.clone(), record(spec)))
            .collect();
        match registry
            .create_members(&session.team, session.incarnation, &members)
            .await
            .map_err(registry_away)?
        {
            MembersCreated::Created => Ok(()),
            MembersCreated::NoTeam(None) => Err(Refusal::unavailable(
                "the registry has no record of the team now; ask again",
            )),
            MembersCreated::NoTeam(Some(_)) => Err(team_moved()),
        }
    }

    /// Removes the record of an agent that was not started on this node after all.
    pub async fn remove_member(&self, session: &SessionContext, agent: &AgentId) {
        self.remove(&incarnation(session), agent).await;
    }

    async fn remove(&self, team: &TeamIncarnation, agent: &AgentId) {
        let Some(registry) = &self.registry else {
            return;
        };
        if let Err(error) = registry
            .remove_member(&team.team, team.incarnation, agent, self.handles.view.id())
            .await
        {
            tracing::debug!(%agent, %error, "cannot remove the member's record from the registry now");
        }
    }

    fn record(&self, session: SessionId, lead: AgentId) -> TeamRecord {
        TeamRecord {
            state: TeamStanding::Alive,
            orchestrator: lead,
            node: self.handles.view.id().clone(),
            session,
            reason: None,
            nonce: nonce(),
        }
    }
}

/// Returns the incarnation of the team to which the agents of a session belong.
pub fn incarnation(session: &SessionContext) -> TeamIncarnation {
    TeamIncarnation {
        team: session.team.clone(),
        incarnation: session.incarnation,
    }
}

fn nonce() -> Nonce {
    NodeId::mint().to_string()
}

fn registry_away(error: RegistryError) -> Refusal {
    Refusal::unavailable(format!("the registry: {error}"))
}

fn team_moved() -> Refusal {
    Refusal::new(Code::StaleEpoch, "the team ended, or moved to another node")
}

/// The time between two comparisons with the registry, which varies by up to a fifth.
const COMPARE: Duration = Duration::from_secs(10);

impl TeamRegistry {
    /// Records that an agent started on this node.
    pub fn agent_started(self: &Arc<Self>, hosting: &Hosting) {
        self.feed(CascadeInput::AgentStarted {
            team: incarnation(&hosting.session),
            agent: hosting.agent.clone(),
            is_lead: hosting.session.lead == hosting.agent,
        });
    }

    /// Records that an agent no longer runs on this node.
    pub fn agent_gone(self: &Arc<Self>, hosting: &Hosting) {
        self.feed(CascadeInput::AgentStopped {
            team: incarnation(&hosting.session),
            agent: hosting.agent.clone(),
        });
    }

    /// Records that a node died. The cascade then stops the members on this node whose orchestrator
    /// was on the dead node.
    pub fn node_died(self: &Arc<Self>, node: NodeId) {
        self.feed(CascadeInput::NodeDied { node });
    }

    /// Wakes the cascade at the times that it requests, and makes it compare the teams on this node
    /// with the registry at intervals. Returns only if there is no registry.
    pub async fn keep_watching(self: Arc<Self>) {
        if self.registry.is_none() {
            return;
        }
        let mut compare = Instant::now() + COMPARE;
        loop {
            let next = self
                .cascade()
                .next_wake()
                .map_or(compare, |wake| clock::instant(wake).min(compare));
            if timeout_at(next, self.changed.notified()).await.is_ok() {
                continue;
            }
            if Instant::now() < compare {
                self.feed(CascadeInput::Woken);
            } else {
                compare = Instant::now() + COMPARE.mul_f64(0.8 + 0.4 * fastrand::f64());
                self.feed(CascadeInput::Sweep);
            }
        }
    }

    /// Passes an input to the cascade, and starts a task for each effect. Does nothing without a
    /// registry.
    fn feed(self: &Arc<Self>, input: CascadeInput) {
        let Some(registry) = &self.registry else {
            return;
        };
        let effects = self.cascade().on(clock::now(), input);
        self.changed.notify_one();
        for effect in effects {
            let (teams, registry) = (Arc::clone(self), registry.clone());
            self.handles
                .tasks
                .spawn(async move { teams.perform(&registry, effect).await });
        }
    }

    async fn perform(self: &Arc<Self>, registry: &ClusterRegistry, effect: CascadeEffect) {
        match effect {
            CascadeEffect::ReadTeam { team } => {
                match registry.team(&team.team, team.incarnation).await {
                    Ok(found) => {
                        let seen = found.map(|found| self.seen(found.revision, &found.record));
                        self.feed(CascadeInput::TeamRead { team, seen });
                    }
                    Err(error) => {
                        tracing::debug!(team = %team.team, %error, "cannot read the team's record now")
                    }
                }
            }
            CascadeEffect::MarkDead { team, expects, end } => {
                self.mark_dead_as_decided(team, expects, end).await
            }
            CascadeEffect::RewriteRecords { team } => self.rewrite_records(&team).await,
            CascadeEffect::StopMembers { team, agents, end } => {
                self.stop_members(team, agents, end).await
            }
            CascadeEffect::RemoveMember { team, agent } => self.remove(&team, &agent).await,
        }
    }

    fn seen(&self, revision: u64, record: &TeamRecord) -> SeenTeam {
        SeenTeam {
            revision,
            standing: record.state,
            reason: record.reason,
            node: record.node.clone(),
            is_node_gone: self.handles.view.is_gone(&record.node),
        }
    }

    /// Returns the agents on this node of one incarnation of a team.
    fn hosted_in(&self, team: &TeamIncarnation) -> Vec<Hosting> {
        let mut hosted = self.handles.host.hostings();
        hosted.retain(|hosting| incarnation(&hosting.session) == *team);
        hosted
    }

    async fn mark_dead_as_decided(
        self: &Arc<Self>,
        team: TeamIncarnation,
        expects: Option<Revision>,
        end: TeamEnd,
    ) {
        let hosted = self.hosted_in(&team);
        let whose = hosted
            .first()
            .map(|hosting| (hosting.session.id.clone(), hosting.session.lead.clone()));
        let death = (DeathOf::RecordAt(expects), end);
        let done = match self.mark(&team, death, whose).await {
            Ok(is_dead) => is_dead,
            Err(error) => {
                tracing::debug!(team = %team.team, %error, "cannot mark the team as dead now");
                false
            }
        };
        self.feed(CascadeInput::MarkedDead { team, done });
    }

    async fn stop_members(&self, team: TeamIncarnation, agents: Vec<AgentId>, end: TeamEnd) {
        if is_planted(PlantedFault::DeadTeamRunsOn) {
            return;
        }
        let order = StopTeam {
            team_id: team.team.clone(),
            incarnation: team.incarnation,
            reason: end,
            log_reason: None,
        };
        self.stop_here(&order).await;
        for agent in agents {
            self.remove(&team, &agent).await;
        }
        self.handles.view.request_sweep();
    }

    /// Stops the agents on this node of a team's incarnation and of earlier ones. Returns how many
    /// agents there were, once none of their model calls and processes runs any more.
    pub async fn stop_here(&self, order: &StopTeam) -> StoppedTeam {
        let ended = TeamIncarnation {
            team: order.team_id.clone(),
            incarnation: order.incarnation,
        };
        let mut hosted = self.handles.host.hostings();
        hosted.retain(|hosting| ended.ends_with_it(&incarnation(&hosting.session)));
        if order.reason == TeamEnd::NodeDead {
            // Nothing is written, so this node keeps their leases until another node claims them.
            // If none does, a sweep of this node finds them.
            for hosting in &hosted {
                self.handles.host.may_miss_agents_of(&hosting.session.id);
            }
        }
        let members: Vec<AgentId> = hosted.into_iter().map(|hosting| hosting.agent).collect();
        match order.reason {
            TeamEnd::NodeDead => self.handles.host.drop_agents(&members).await,
            TeamEnd::Stopped | TeamEnd::Closed => self.end(&members, order).await,
        }
        StoppedTeam {
            agents: u32::try_from(members.len()).unwrap_or(u32::MAX),
        }
    }

    async fn end(&self, members: &[AgentId], order: &StopTeam) {
        let reason = order
            .log_reason
            .clone()
            .unwrap_or_else(|| match order.reason {
                TeamEnd::NodeDead | TeamEnd::Stopped => "stopped".into(),
                TeamEnd::Closed => "closed".into(),
            });
        for some in members.chunks(AT_ONCE) {
            let stops = some.iter().map(|agent| {
                let stop = Command::Stop {
                    reason: reason.clone(),
                    for_good: false,
                    last: Vec::new(),
                };
                self.handles.host.command(agent, stop)
            });
            future::join_all(stops).await;
        }
    }

    /// Writes the records of the team and of its members on this node again, because the registry
    /// lost them. Skips the team's record if its orchestrator is not on this node. If the team's
    /// record cannot be written, writes none for the members.
    async fn rewrite_records(&self, team: &TeamIncarnation) {
        let hosted = self.hosted_in(team);
        let led_here = hosted
            .iter()
            .find(|hosting| hosting.session.lead == hosting.agent);
        if let Some(lead) = led_here
            && let Err(refusal) = self.create(&lead.session).await
        {
            tracing::debug!(team = %team.team, %refusal, "cannot write the team's record again now");
            return;
        }
        for member in hosted {
            let written = async {
                let record = self.handles.lookup.agent(&member.agent).await?;
                self.add_member(&member.session, &member.agent, &record.spec)
                    .await
            };
            if let Err(refusal) = written.await {
                tracing::debug!(agent = %member.agent, %refusal, "cannot write the member's record again now");
            }
        }
    }

    fn cascade(&self) -> MutexGuard<'_, Cascade> {
        self.cascade.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
