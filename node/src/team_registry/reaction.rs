//! Performs what the cascade decides when an orchestrator, its node or a team ends, and stops the
//! members on this node of a team that ended.

use std::{
    sync::{Arc, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future;
use planck_common::{
    AgentId, NodeId,
    command::{StopTeam, StoppedTeam},
    registry::{TeamEnd, TeamRecord},
};
use tokio::time::{Instant, timeout_at};

use super::{TeamRegistry, incarnation};
use crate::{
    actor::{AT_ONCE, Hosting},
    agent::Command,
};
use planck_cluster::{
    Revision,
    cascade::{Cascade, CascadeEffect, CascadeInput, SeenTeam, TeamIncarnation},
    clock,
    registry::{ClusterRegistry, DeathOf},
};

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
            self.base
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
            is_node_gone: self.base.view.is_gone(&record.node),
        }
    }

    /// Returns the agents on this node of one incarnation of a team.
    fn hosted_in(&self, team: &TeamIncarnation) -> Vec<Hosting> {
        let mut hosted = self.base.host.hostings();
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
        self.base.view.request_sweep();
    }

    /// Stops the agents on this node of a team's incarnation and of earlier ones. Returns how many
    /// agents there were, once none of their model calls and processes runs any more.
    pub async fn stop_here(&self, order: &StopTeam) -> StoppedTeam {
        let ended = TeamIncarnation {
            team: order.team_id.clone(),
            incarnation: order.incarnation,
        };
        let mut hosted = self.base.host.hostings();
        hosted.retain(|hosting| ended.ends_with_it(&incarnation(&hosting.session)));
        if order.reason == TeamEnd::NodeDead {
            // Nothing is written, so this node keeps their leases until another node claims them.
            // If none does, a sweep of this node finds them.
            for hosting in &hosted {
                self.base.host.may_miss_agents_of(&hosting.session.id);
            }
        }
        let members: Vec<AgentId> = hosted.into_iter().map(|hosting| hosting.agent).collect();
        match order.reason {
            TeamEnd::NodeDead => self.base.host.drop_agents(&members).await,
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
                self.base.host.command(agent, stop)
            });
            future::join_all(stops).await;
        }
    }

    /// Writes the records of the team and of its members on this node again, because the registry
    /// lost them. Skips the team's record if its orchestrator is not on this node. If the team's
    /// record cannot be written, writes none for the members.
    pub(super) async fn rewrite_records(&self, team: &TeamIncarnation) {
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
                let record = self.base.lookup.agent(&member.agent).await?;
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
