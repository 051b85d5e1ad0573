//! The teams that have agents on this node, as the registry has them: their records are written
//! here, and what the cascade decides of them is performed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use planck_common::{
    AgentId, NodeId, SessionId,
    command::StopTeam,
    decision::{Decided, Decision, DecisionKind},
    event::json,
    registry::{MemberRecord, Nonce, TeamEnd, TeamRecord, TeamStanding},
    reply::{Code, Refusal},
    spec::AgentSpec,
    subject::Topic,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::Node;
use crate::{
    actor::{Hosting, parts::Facts},
    cluster::{
        cascade::{Cascade, Effect, Input, Life, SeenTeam},
        clock,
        moment::Moment,
        registry::{Birth, Registry, RegistryError, Settled},
    },
};

/// How long the cascade may rest.
const REST: Duration = Duration::from_secs(10);

/// What a node in a cluster knows of its teams.
pub(super) struct TeamWatch {
    registry: Registry,
    cascade: Mutex<Cascade>,
    moved: Notify,
    /// Since when nodes that died cannot have done anything.
    quiet: Mutex<BTreeMap<NodeId, Moment>>,
}

impl TeamWatch {
    pub(super) fn new(registry: Registry) -> Self {
        Self {
            registry,
            cascade: Mutex::default(),
            moved: Notify::new(),
            quiet: Mutex::default(),
        }
    }

    fn cascade(&self) -> MutexGuard<'_, Cascade> {
        self.cascade.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn quiet(&self) -> MutexGuard<'_, BTreeMap<NodeId, Moment>> {
        self.quiet.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn life(facts: &Facts) -> Life {
    Life {
        team: facts.team.clone(),
        incarnation: facts.incarnation,
    }
}

impl Node {
    fn watch(&self) -> Option<&TeamWatch> {
        self.belonging.teams.as_ref()
    }

    /// Tells the cascade, and performs what it decides.
    pub(crate) fn cascade(&self, input: Input) {
        let (Some(watch), Some(own)) = (self.watch(), self.own.upgrade()) else {
            return;
        };
        let effects = watch.cascade().on(clock::now(), input);
        watch.moved.notify_one();
        for effect in effects {
            let node = Arc::clone(&own);
            self.tasks.spawn(async move { node.perform(effect).await });
        }
    }

    /// Wakes the cascade when it wants to be, and has it compare with the registry now and then.
    pub(super) async fn keep_watching(self: Arc<Self>) {
        let Some(watch) = self.watch() else { return };
        let mut sweep = Instant::now() + REST;
        loop {
            let next = watch
                .cascade()
                .next_wake()
                .map_or(sweep, |wake| clock::instant(wake).min(sweep));
            if timeout_at(next, watch.moved.notified()).await.is_ok() {
                continue;
            }
            if Instant::now() < sweep {
                self.cascade(Input::Woken);
            } else {
                sweep = Instant::now() + REST.mul_f64(0.8 + 0.4 * fastrand::f64());
                self.cascade(Input::Sweep);
            }
        }
    }

    /// A peer is dead: what its orchestrators led ends here, and its tools cannot act from
    /// `quiet_since` on.
    pub(super) fn peer_died(&self, node: NodeId, quiet_since: Moment) {
        if let Some(watch) = self.watch() {
            watch.quiet().insert(node.clone(), quiet_since);
            self.cascade(Input::NodeDied { node });
        }
    }

    /// From when on tools may start where such a node's were.
    pub(crate) fn tools_from(&self, dead: &NodeId) -> Option<Moment> {
        let grace = self.belonging.tool_grace()?;
        self.watch()?.quiet().get(dead).map(|since| *since + grace)
    }

    /// After so long nothing runs any more on a node that is stopped.
    pub(crate) fn tool_grace(&self) -> Duration {
        self.belonging.tool_grace().unwrap_or_default()
    }

    pub(super) fn agent_is_here(&self, hosting: &Hosting) {
        let lead = hosting.session.lead == hosting.agent;
        self.cascade(Input::Up {
            life: life(&hosting.session),
            agent: hosting.agent.clone(),
            lead,
        });
    }

    pub(super) fn agent_is_gone(&self, hosting: &Hosting) {
        self.cascade(Input::Down {
            life: life(&hosting.session),
            agent: hosting.agent.clone(),
        });
    }

    async fn perform(&self, effect: Effect) {
        let Some(watch) = self.watch() else { return };
        match effect {
            Effect::Read { life } => {
                match watch.registry.team(&life.team, life.incarnation).await {
                    Ok(found) => {
                        let seen = found.map(|found| self.seen(found.revision, &found.record));
                        self.cascade(Input::Read { life, seen });
                    }
                    Err(error) => {
                        tracing::debug!(team = %life.team, %error, "the team's record cannot be read now")
                    }
                }
            }
            Effect::MarkDead { life, end, .. } => self.mark_dead(life, end).await,
            Effect::Reassert { life } => self.reassert(&life).await,
            Effect::Stop { life, agents, end } => self.stop_members(life, agents, end).await,
            Effect::Purge { life, agent } => self.leave_team(&life, &agent).await,
        }
    }

    fn seen(&self, revision: u64, record: &TeamRecord) -> SeenTeam {
        let node_died = self
            .belonging
            .census
            .as_ref()
            .is_some_and(|census| census.is_gone(&record.node) == Some(true));
        let (standing, reason, node) = (record.state, record.reason, record.node.clone());
        SeenTeam {
            revision,
            standing,
            reason,
            node,
            node_died,
        }
    }

    /// The agents here of one life of a team.
    fn hosted_in<'a>(&'a self, of: &'a Life) -> impl Iterator<Item = Hosting> + 'a {
        let hosted = self
            .host
            .agents(None)
            .into_iter()
            .filter_map(|agent| self.host.hosting(&agent));
        hosted.filter(move |hosting| life(&hosting.session) == *of)
    }

    async fn mark_dead(&self, life: Life, end: TeamEnd) {
        let whose = self
            .hosted_in(&life)
            .next()
            .map(|hosting| (hosting.session.id.clone(), hosting.session.lead.clone()));
        let done = match self.bury(&life, end, whose).await {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(team = %life.team, %error, "the team cannot be set dead now");
                false
            }
        };
        self.cascade(Input::Marked { life, done });
    }

    /// Sets a life of a team dead, and says so if it was not. Without a record there is one then,
    /// if it is known whose.
    pub(crate) async fn bury(
        &self,
        life: &Life,
        end: TeamEnd,
        whose: Option<(SessionId, AgentId)>,
    ) -> Result<(), RegistryError> {
        let Some(watch) = self.watch() else {
            return Ok(());
        };
        let known = match whose {
            Some((session, orchestrator)) => Some(self.team_record(session, orchestrator)),
            None => watch
                .registry
                .team(&life.team, life.incarnation)
                .await?
                .map(|found| found.record),
        };
        let Some(otherwise) = known else {
            return Ok(());
        };
        let otherwise = TeamRecord {
            nonce: nonce(),
            ..otherwise
        };
        let settled = watch
            .registry
            .end_team(&life.team, life.incarnation, end, &otherwise)
            .await?;
        if matches!(settled, Settled::Mine(_)) {
            let reason = match end {
                TeamEnd::NodeDead => "the node of its orchestrator died",
                TeamEnd::Stopped => "its orchestrator was stopped",
                TeamEnd::Closed => "its session was closed",
            };
            self.decided(
                DecisionKind::TeamDown,
                Decided {
                    team: Some(life.team.clone()),
                    ..Decided::because(reason)
                },
            );
        }
        Ok(())
    }

    async fn stop_members(&self, life: Life, agents: Vec<AgentId>, end: TeamEnd) {
        let order = StopTeam {
            team_id: life.team.clone(),
            incarnation: life.incarnation,
            reason: end,
            said: None,
        };
        if let Err(refusal) = self.stop_team(order).await {
            tracing::warn!(team = %life.team, %refusal, "the team's members here do not end");
        }
        for agent in agents {
            self.leave_team(&life, &agent).await;
        }
        self.belonging.sweep_now();
    }

    /// The registry lost the records: what is led here, and its members here, are written again.
    async fn reassert(&self, life: &Life) {
        let hosted: Vec<Hosting> = self.hosted_in(life).collect();
        for lead in hosted
            .iter()
            .filter(|hosting| hosting.session.lead == hosting.agent)
        {
            if let Err(refusal) = self.raise_team(&lead.session).await {
                tracing::debug!(team = %life.team, %refusal, "the team's record cannot be written again now");
                return;
            }
        }
        for member in hosted {
            let entered = async {
                let record = self.find_agent(&member.agent).await?;
                self.enter(&member.session, &member.agent, &record.spec)
                    .await
            };
            if let Err(refusal) = entered.await {
                tracing::debug!(agent = %member.agent, %refusal, "the member's record cannot be written again now");
            }
        }
    }

    /// Writes the record of a life of a team that is led from here.
    pub(crate) async fn raise_team(&self, facts: &Facts) -> Result<(), Refusal> {
        let Some(watch) = self.watch() else {
            return Ok(());
        };
        let record = self.team_record(facts.id.clone(), facts.lead.clone());
        match watch
            .registry
            .bear_team(&facts.team, facts.incarnation, &record)
            .await
            .map_err(registry_away)?
        {
            Settled::Mine(_) => Ok(()),
            Settled::Theirs(found)
                if found.record.state == TeamStanding::Alive && found.record.node == self.id =>
            {
                Ok(())
            }
            Settled::Theirs(_) => Err(team_moved()),
        }
    }

    /// The orchestrator of a living team moves here, and no member is disturbed; whether it was
    /// alive.
    pub(crate) async fn hand_over_team(&self, facts: &Facts) -> Result<bool, Refusal> {
        let Some(watch) = self.watch() else {
            return Ok(true);
        };
        let found = watch
            .registry
            .team(&facts.team, facts.incarnation)
            .await
            .map_err(registry_away)?;
        let Some(found) = found.filter(|found| found.record.state == TeamStanding::Alive) else {
            return Ok(false);
        };
        let record = self.team_record(facts.id.clone(), facts.lead.clone());
        let moved = watch
            .registry
            .hand_over(&facts.team, facts.incarnation, &record, found.revision)
            .await;
        Ok(matches!(moved.map_err(registry_away)?, Settled::Mine(_)))
    }

    /// Whether a life of a team goes on by the registry.
    pub(crate) async fn is_team_alive(&self, life: &Life) -> Result<bool, Refusal> {
        let Some(watch) = self.watch() else {
            return Ok(true);
        };
        let found = watch
            .registry
            .team(&life.team, life.incarnation)
            .await
            .map_err(registry_away)?;
        Ok(found.is_some_and(|found| found.record.state == TeamStanding::Alive))
    }

    fn team_record(&self, session: SessionId, orchestrator: AgentId) -> TeamRecord {
        let (state, node) = (TeamStanding::Alive, self.id.clone());
        TeamRecord {
            state,
            orchestrator,
            node,
            session,
            reason: None,
            nonce: nonce(),
        }
    }

    /// Writes the record of an agent that is to run here, on condition that its team is alive.
    pub(crate) async fn enter(
        &self,
        facts: &Facts,
        agent: &AgentId,
        spec: &AgentSpec,
    ) -> Result<(), Refusal> {
        self.enter_all(facts, [(agent, spec)]).await
    }

    /// [`Self::enter`] of several: all, or none.
    pub(crate) async fn enter_all<'a>(
        &self,
        facts: &Facts,
        agents: impl IntoIterator<Item = (&'a AgentId, &'a AgentSpec)>,
    ) -> Result<(), Refusal> {
        let Some(watch) = self.watch() else {
            return Ok(());
        };
        let record = |spec: &AgentSpec| MemberRecord {
            node: self.id.clone(),
            session: facts.id.clone(),
            r#type: spec.r#type.clone(),
            name: spec.name.clone(),
            role: spec.role,
        };
        let members: Vec<_> = agents
            .into_iter()
            .map(|(agent, spec)| (agent.clone(), record(spec)))
            .collect();
        match watch
            .registry
            .bear_members(&facts.team, facts.incarnation, &members)
            .await
            .map_err(registry_away)?
        {
            Birth::Born => Ok(()),
            Birth::NoTeam(None) => Err(Refusal::unavailable(
                "the registry has no record of the team now; ask again",
            )),
            Birth::NoTeam(Some(_)) => Err(team_moved()),
        }
    }

    /// What SQL refused has no record either.
    pub(crate) async fn did_not_enter(&self, facts: &Facts, agent: &AgentId) {
        self.leave_team(&life(facts), agent).await;
    }

    async fn leave_team(&self, life: &Life, agent: &AgentId) {
        let Some(watch) = self.watch() else { return };
        if let Err(error) = watch
            .registry
            .remove_member(&life.team, life.incarnation, agent, &self.id)
            .await
        {
            tracing::debug!(%agent, %error, "the member's record stays for now");
        }
    }

    /// Tells everybody what this node decided.
    pub(crate) fn decided(&self, kind: DecisionKind, data: Decided) {
        let decision = Decision::new(kind, &self.id, data);
        self.bus().publish(
            Topic::Cluster(kind.name()).to_string(),
            json(&decision).into(),
        );
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
