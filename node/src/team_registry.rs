//! The service for the records of teams in the cluster's registry. It writes the records of a team
//! and of its members, and stops the members on this node when their team ends or its
//! orchestrator's node dies.
//!
//! A node without a registry works alone. No other node could end its teams, so every write
//! succeeds there and changes nothing.

mod reaction;

#[cfg(test)]
mod tests;

use std::sync::Mutex;

use planck_common::{
    AgentId, NodeId, SessionId,
    decision::{DecisionData, DecisionKind},
    registry::{MemberRecord, Nonce, TeamEnd, TeamRecord, TeamStanding},
    reply::{Code, Refusal},
    spec::AgentSpec,
};
use tokio::sync::Notify;

use crate::{actor::context::SessionContext, base::Base};
use planck_cluster::{
    cascade::{Cascade, TeamIncarnation},
    registry::{ClusterRegistry, DeathOf, MembersCreated, RegistryError, TeamWritten},
};

/// The service that keeps the records of the teams with agents on this node.
pub struct TeamRegistry {
    /// The registry, or `None` if this node works alone.
    registry: Option<ClusterRegistry>,
    cascade: Mutex<Cascade>,
    /// Notified when the cascade received an input, because its next wake-up may then be earlier.
    changed: Notify,
    base: Base,
}

impl TeamRegistry {
    pub fn new(base: Base, registry: Option<ClusterRegistry>) -> Self {
        Self {
            registry,
            cascade: Mutex::default(),
            changed: Notify::new(),
            base,
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
                    && found.record.node == *self.base.view.id() =>
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
            self.base.decisions.publish(DecisionKind::TeamDown, data);
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
            node: self.base.view.id().clone(),
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
            .remove_member(&team.team, team.incarnation, agent, self.base.view.id())
            .await
        {
            tracing::debug!(%agent, %error, "cannot remove the member's record from the registry now");
        }
    }

    fn record(&self, session: SessionId, lead: AgentId) -> TeamRecord {
        TeamRecord {
            state: TeamStanding::Alive,
            orchestrator: lead,
            node: self.base.view.id().clone(),
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
