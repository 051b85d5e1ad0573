//! Tests of teams on a real node, with the registry's records in memory.

use std::{sync::Arc, time::Duration};

use planck_common::{
    NodeId,
    command::{Started, StopTeam},
    registry::TeamEnd,
    reply::Code,
};

use super::*;
use crate::{
    actor::Hosting,
    bus::MemoryRecords,
    services::testing::{TestNode, World},
};

/// A node whose own team registry has no records, and a second team registry with records in
/// memory.
struct TestTeams {
    node: TestNode,
    teams: Arc<TeamRegistry>,
    started: Started,
    session: Arc<SessionContext>,
    _world: World,
}

impl TestTeams {
    async fn new() -> Self {
        let world = World::new().await;
        let node = world.node().await;
        let started = node.start(world.request(&["lead", "worker"])).await;
        let services = node.services();
        let hosting = services
            .handles
            .host
            .hosting(&started.orchestrator)
            .unwrap();
        let records = ClusterRegistry::new(Arc::new(MemoryRecords::default()));
        let teams = TeamRegistry::new(services.handles.clone(), Some(records));
        Self {
            teams: Arc::new(teams),
            session: hosting.session,
            node,
            started,
            _world: world,
        }
    }

    fn team(&self) -> TeamIncarnation {
        incarnation(&self.session)
    }

    async fn add_lead(&self) -> Result<(), Refusal> {
        let lead = self.node.agent(&self.started.orchestrator).await;
        let (session, teams) = (&self.session, &self.teams);
        teams.add_member(session, &lead.id, &lead.spec).await
    }

    fn order(&self, reason: TeamEnd) -> StopTeam {
        StopTeam {
            team_id: self.session.team.clone(),
            incarnation: self.session.incarnation,
            reason,
            log_reason: None,
        }
    }

    /// Returns whether the agent has stopped since it was hosted as `hosted` describes. A sweep of
    /// the node may take it over again at any time, with a later epoch.
    fn is_stopped(&self, hosted: &Hosting) -> bool {
        let now = self.node.services().handles.host.hosting(&hosted.agent);
        now.is_none_or(|now| now.epoch > hosted.epoch)
    }

    async fn end(self) {
        self.node.leave().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn team_is_alive_from_its_record_to_its_end() {
    let scene = TestTeams::new().await;
    let teams = &scene.teams;
    assert!(!teams.is_alive(&scene.team()).await.unwrap());
    let refusal = scene.add_lead().await.unwrap_err();
    assert_eq!(refusal.code, Code::Unavailable, "there is no record yet");

    teams.create(&scene.session).await.unwrap();
    teams.create(&scene.session).await.unwrap();
    assert!(teams.is_alive(&scene.team()).await.unwrap());
    scene.add_lead().await.unwrap();

    teams
        .mark_dead(&scene.team(), TeamEnd::Closed, None)
        .await
        .unwrap();
    assert!(!teams.is_alive(&scene.team()).await.unwrap());
    let refusal = scene.add_lead().await.unwrap_err();
    assert_eq!(refusal.code, Code::StaleEpoch, "the team is dead");
    let refusal = teams.create(&scene.session).await.unwrap_err();
    assert_eq!(refusal.code, Code::StaleEpoch, "it does not come back");
    assert!(!teams.move_lead_here(&scene.session).await.unwrap());
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn team_without_a_record_is_marked_dead_if_its_session_is_known() {
    let scene = TestTeams::new().await;
    let teams = &scene.teams;
    teams
        .mark_dead(&scene.team(), TeamEnd::NodeDead, None)
        .await
        .unwrap();
    teams.create(&scene.session).await.unwrap();
    assert!(
        teams.is_alive(&scene.team()).await.unwrap(),
        "nothing was written"
    );

    let other = TestTeams::new().await;
    let whose = Some((other.session.id.clone(), other.session.lead.clone()));
    let (teams, team) = (&other.teams, other.team());
    teams
        .mark_dead(&team, TeamEnd::NodeDead, whose)
        .await
        .unwrap();
    let refusal = teams.create(&other.session).await.unwrap_err();
    assert_eq!(refusal.code, Code::StaleEpoch);
    other.end().await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orchestrator_of_a_living_team_moves_here() {
    let scene = TestTeams::new().await;
    scene.teams.create(&scene.session).await.unwrap();
    assert!(scene.teams.move_lead_here(&scene.session).await.unwrap());
    assert!(scene.teams.is_alive(&scene.team()).await.unwrap());
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_for_a_dead_node_writes_nothing_and_returns_when_all_are_gone() {
    let scene = TestTeams::new().await;
    let hosted = scene.node.services().handles.host.hostings();
    let stopped = scene.teams.stop_here(&scene.order(TeamEnd::NodeDead)).await;
    assert_eq!(stopped.agents, 2);
    assert!(hosted.iter().all(|hosted| scene.is_stopped(hosted)));
    let lead = scene.node.agent(&scene.started.orchestrator).await;
    assert_eq!(lead.node.as_ref(), Some(scene.node.id()), "the lease stays");
    let again = scene.teams.stop_here(&scene.order(TeamEnd::NodeDead)).await;
    assert_eq!(again.agents, 0);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_of_a_closed_team_releases_its_leases() {
    let scene = TestTeams::new().await;
    let mut earlier = scene.order(TeamEnd::Closed);
    earlier.incarnation -= 1;
    assert_eq!(scene.teams.stop_here(&earlier).await.agents, 0);

    let stopped = scene.teams.stop_here(&scene.order(TeamEnd::Closed)).await;
    assert_eq!(stopped.agents, 2);
    let lead = scene.node.agent(&scene.started.orchestrator).await;
    assert_eq!(lead.node, None);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_here_stop_when_the_node_of_their_orchestrator_dies() {
    let scene = TestTeams::new().await;
    let (host, teams) = (&scene.node.services().handles.host, &scene.teams);
    // According to the registry, another node leads the team.
    let dead = NodeId::mint();
    let record = TeamRecord {
        node: dead.clone(),
        ..teams.record(scene.session.id.clone(), scene.session.lead.clone())
    };
    let registry = teams.registry.as_ref().unwrap();
    registry
        .create_team(&scene.session.team, scene.session.incarnation, &record)
        .await
        .unwrap();
    let worker = host
        .hostings()
        .into_iter()
        .find(|hosting| hosting.agent != scene.session.lead)
        .unwrap();
    teams.agent_started(&worker);
    teams
        .mark_dead(&scene.team(), TeamEnd::NodeDead, None)
        .await
        .unwrap();
    teams.node_died(dead);
    let watching = tokio::spawn(Arc::clone(teams).keep_watching());

    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    while !scene.is_stopped(&worker) && tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(scene.is_stopped(&worker));
    watching.abort();
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_the_registry_lost_are_written_again() {
    let scene = TestTeams::new().await;
    let teams = &scene.teams;
    teams.rewrite_records(&scene.team()).await;
    assert!(teams.is_alive(&scene.team()).await.unwrap());
    scene.end().await;
}
