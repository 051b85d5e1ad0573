//! Tests of the registry with records in memory, which behave like those on a server. Tests of
//! races use a server.

use planck_common::{
    AgentId, NodeId, SessionId, TeamId,
    registry::{
        DeathRecord, MemberRecord, NodeRecord, NodeStanding, TeamEnd, TeamRecord, TeamStanding,
    },
    spec::AgentRole,
};
use planck_tests::nats::NatsServer;
use tokio::task::JoinSet;

use super::*;
use planck_bus::{MemoryRecords, NatsBus, NatsOptions};

fn registry() -> ClusterRegistry {
    ClusterRegistry::new(Arc::new(MemoryRecords::default()))
}

fn id<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Debug,
{
    text.parse().unwrap()
}

fn node(state: NodeStanding) -> NodeRecord {
    NodeRecord {
        version: "1".into(),
        capacity: 10,
        nonce: "mine".into(),
        ..placeholder_record("build-3", state)
    }
}

fn team(node: &str, nonce: &str) -> TeamRecord {
    TeamRecord {
        state: TeamStanding::Alive,
        orchestrator: id("lead"),
        node: id(node),
        session: id::<SessionId>("s"),
        reason: None,
        nonce: nonce.into(),
    }
}

fn member(node: &str) -> MemberRecord {
    MemberRecord {
        node: id(node),
        session: id("s"),
        r#type: "worker".into(),
        name: "w".into(),
        role: AgentRole::Worker,
    }
}

fn mine(settled: TeamWritten) -> u64 {
    match settled {
        TeamWritten::Mine(revision) => revision,
        TeamWritten::Theirs(found) => panic!("{found:?}"),
    }
}

#[tokio::test]
async fn another_store_is_refused_and_named_until_it_replaces_the_first() {
    let registry = registry();
    let store = |id: &str| StoreRecord {
        id: id.into(),
        address: Some(format!("sqlite:/{id}")),
    };
    let (first, second, third) = (store("first"), store("second"), store("third"));
    registry.check_store(&first).await.unwrap();
    registry
        .check_store(&StoreRecord {
            address: None,
            ..first.clone()
        })
        .await
        .unwrap();
    let error = registry.check_store(&second).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "this node's store is sqlite:/second (id second), and the nodes of this cluster share store sqlite:/first (id first); give all nodes the same `store.url`, or give this one a cluster of its own with `nats.subject_prefix`"
    );
    registry.replace_store(&first, &second).await.unwrap();
    registry.check_store(&second).await.unwrap();
    registry.replace_store(&first, &third).await.unwrap();
    registry
        .check_store(&third)
        .await
        .expect_err("somebody replaced the first one before");
}

#[tokio::test]
async fn only_a_live_node_declares_another_dead_and_once() {
    let registry = registry();
    let (observer, suspect, other): (NodeId, NodeId, NodeId) =
        (id("observer"), id("suspect"), id("other"));
    let own = registry
        .write_node(&observer, &node(NodeStanding::Alive), None)
        .await
        .unwrap();
    let expects = registry
        .write_node(&suspect, &node(NodeStanding::Alive), None)
        .await
        .unwrap();
    let verdict = DeathRecord {
        by: observer.clone(),
        reason: "silent".into(),
        silent_ms: 2_600,
    };
    let dead = NodeRecord {
        verdict: Some(verdict),
        ..node(NodeStanding::Dead)
    };
    let death = |own, suspect, expects| NodeDeath {
        observer: &observer,
        own,
        suspect,
        expects,
        record: &dead,
    };

    assert!(
        registry
            .mark_node_dead(death(own + 9, &suspect, Some(expects)))
            .await
            .unwrap_err()
            .is_refused()
    );
    assert!(
        registry
            .mark_node_dead(death(own, &suspect, None))
            .await
            .unwrap_err()
            .is_refused(),
        "it has a record"
    );
    registry.prove(&suspect, expects).await.unwrap();
    registry
        .mark_node_dead(death(own, &suspect, Some(expects)))
        .await
        .unwrap();
    assert!(
        registry
            .mark_node_dead(death(own, &suspect, Some(expects)))
            .await
            .unwrap_err()
            .is_refused()
    );
    assert!(
        registry
            .prove(&suspect, expects)
            .await
            .unwrap_err()
            .is_refused()
    );
    registry.prove(&observer, own).await.unwrap();
    assert_eq!(registry.node(&suspect).await.unwrap().unwrap().record, dead);

    registry
        .mark_node_dead(death(own, &other, None))
        .await
        .unwrap();
    let found = registry.nodes().await.unwrap();
    let standing: Vec<_> = found
        .iter()
        .map(|(node, found)| (node.as_str(), found.record.state))
        .collect();
    let dead = NodeStanding::Dead;
    assert_eq!(
        standing,
        [
            ("observer", NodeStanding::Alive),
            ("suspect", dead),
            ("other", dead)
        ]
    );
}

#[tokio::test]
async fn a_removed_record_is_written_again() {
    let registry = registry();
    let me: NodeId = id("me");
    registry
        .write_node(&me, &node(NodeStanding::Alive), None)
        .await
        .unwrap();
    registry
        .0
        .write(vec![Write::remove(Key::Node(me.clone()).to_string())])
        .await
        .unwrap();
    assert_eq!(registry.node(&me).await.unwrap(), None);
    let revision = registry
        .write_node(&me, &node(NodeStanding::Alive), None)
        .await
        .unwrap();
    assert_eq!(
        registry.node(&me).await.unwrap().unwrap().revision,
        revision
    );
}

#[tokio::test]
async fn a_team_is_created_moves_and_dies_once() {
    let (registry, t) = (registry(), id::<TeamId>("t"));
    let created = mine(registry.create_team(&t, 1, &team("a", "x")).await.unwrap());
    assert_eq!(
        registry.create_team(&t, 1, &team("a", "x")).await.unwrap(),
        TeamWritten::Mine(created),
        "the same again"
    );
    let theirs = registry.create_team(&t, 1, &team("b", "y")).await.unwrap();
    assert_eq!(
        theirs,
        TeamWritten::Theirs(StoredRecord {
            revision: created,
            record: team("a", "x")
        })
    );

    let moved = mine(
        registry
            .hand_over(&t, 1, &team("b", "z"), created)
            .await
            .unwrap(),
    );
    assert!(matches!(
        registry
            .hand_over(&t, 1, &team("c", "q"), created)
            .await
            .unwrap(),
        TeamWritten::Theirs(_)
    ));
    let died = mine(
        registry
            .end_team(
                &t,
                1,
                (DeathOf::AnyRecord, TeamEnd::NodeDead),
                &team("c", "observer"),
            )
            .await
            .unwrap(),
    );
    assert!(died > moved);
    let found = registry.team(&t, 1).await.unwrap().unwrap().record;
    assert_eq!(
        (found.node.as_str(), found.reason),
        ("b", Some(TeamEnd::NodeDead))
    );
    let again = registry
        .end_team(
            &t,
            1,
            (DeathOf::AnyRecord, TeamEnd::Closed),
            &team("c", "late"),
        )
        .await
        .unwrap();
    assert!(
        matches!(again, TeamWritten::Theirs(found) if found.record.reason == Some(TeamEnd::NodeDead))
    );

    let unknown = registry
        .end_team(
            &t,
            7,
            (DeathOf::AnyRecord, TeamEnd::NodeDead),
            &team("c", "observer"),
        )
        .await
        .unwrap();
    assert!(matches!(unknown, TeamWritten::Mine(_)));
    let teams = registry.teams().await.unwrap();
    assert!(
        teams
            .iter()
            .all(|(_, _, found)| found.record.state == TeamStanding::Dead)
    );
    assert_eq!(
        teams
            .iter()
            .map(|(_, incarnation, _)| *incarnation)
            .collect::<Vec<_>>(),
        [1, 7]
    );
}

async fn create_one(
    registry: &ClusterRegistry,
    team: &TeamId,
    agent: &str,
    node: &str,
) -> MembersCreated {
    registry
        .create_members(team, 1, &[(id(agent), member(node))])
        .await
        .unwrap()
}

#[tokio::test]
async fn members_are_created_in_living_teams_and_removed_by_their_host() {
    let (registry, t, w) = (registry(), id::<TeamId>("t"), id::<AgentId>("w"));
    assert_eq!(
        create_one(&registry, &t, "w", "a").await,
        MembersCreated::NoTeam(None)
    );
    let created = mine(registry.create_team(&t, 1, &team("a", "x")).await.unwrap());
    assert_eq!(
        create_one(&registry, &t, "w", "a").await,
        MembersCreated::Created
    );
    registry
        .hand_over(&t, 1, &team("b", "y"), created)
        .await
        .unwrap();
    assert_eq!(
        create_one(&registry, &t, "v", "b").await,
        MembersCreated::Created,
        "a hand-over disturbs no member"
    );

    registry.remove_member(&t, 1, &w, &id("b")).await.unwrap();
    let names = async || {
        let members = registry.members(&t, 1).await.unwrap();
        members
            .into_iter()
            .map(|(agent, _)| agent.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["w", "v"], "it is not b's");
    registry.remove_member(&t, 1, &w, &id("a")).await.unwrap();
    assert_eq!(names().await, ["v"]);
    registry
        .end_team(
            &t,
            1,
            (DeathOf::AnyRecord, TeamEnd::Stopped),
            &team("b", "end"),
        )
        .await
        .unwrap();
    assert!(matches!(
        create_one(&registry, &t, "w", "a").await,
        MembersCreated::NoTeam(Some(_))
    ));
}

/// Creates members, two at a time, while the team is marked dead on a real server. Once the death
/// is written, a list of the members must be complete.
#[tokio::test]
async fn no_member_is_created_after_the_death_of_its_team() {
    let server = NatsServer::start().unwrap();
    let bus = NatsBus::connect(NatsOptions::new(server.url()))
        .await
        .unwrap();
    let registry = ClusterRegistry::new(Arc::new(bus.records(1)));
    registry.open().await.unwrap();
    for round in 0..10 {
        let t: TeamId = id(&format!("t{round}"));
        registry.create_team(&t, 1, &team("a", "x")).await.unwrap();
        let mut creators = JoinSet::new();
        for spawner in 0..8 {
            let (registry, t) = (registry.clone(), t.clone());
            creators.spawn(async move {
                for n in 0.. {
                    let pair =
                        ["a", "b"].map(|one| (id(&format!("w{spawner}-{n}{one}")), member("a")));
                    if registry.create_members(&t, 1, &pair).await.unwrap()
                        != MembersCreated::Created
                    {
                        return n * pair.len();
                    }
                }
                0
            });
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        registry
            .end_team(
                &t,
                1,
                (DeathOf::AnyRecord, TeamEnd::Stopped),
                &team("a", "end"),
            )
            .await
            .unwrap();
        let there = registry.members(&t, 1).await.unwrap().len();
        let created: usize = creators.join_all().await.into_iter().sum();
        assert_eq!(there, created, "round {round}");
    }
}

#[tokio::test]
async fn team_that_changed_is_not_marked_dead_at_the_old_revision() {
    let registry = registry();
    let t = TeamId::parse("t").unwrap();
    let created = mine(registry.create_team(&t, 1, &team("a", "x")).await.unwrap());
    let moved = registry
        .hand_over(&t, 1, &team("b", "y"), created)
        .await
        .unwrap();
    let moved = mine(moved);
    let mark = async |expects| {
        let death = (DeathOf::RecordAt(expects), TeamEnd::NodeDead);
        let otherwise = team("c", "observer");
        registry.end_team(&t, 1, death, &otherwise).await.unwrap()
    };
    for outdated in [Some(created), None] {
        let settled = mark(outdated).await;
        let TeamWritten::Theirs(found) = settled else {
            panic!("a team that moved was marked dead: {settled:?}");
        };
        assert_eq!(found.record.state, TeamStanding::Alive);
    }
    mine(mark(Some(moved)).await);
    let found = registry.team(&t, 1).await.unwrap().unwrap();
    assert_eq!(found.record.state, TeamStanding::Dead);
}
