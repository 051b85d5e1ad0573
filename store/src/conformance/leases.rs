//! Cases for leases: a claim fences the former holder, a release frees the agent, and a sweep finds
//! what no living node runs.

use planck_common::{AgentId, NodeId, command::AgentState};

use super::{
    World,
    team::{Team, warnings},
};
use crate::{BatchOutcome, HeldLease, LeaseClaim, LeaseRelease, StoreError, Stray};

pub async fn claiming_fences(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let thief = NodeId::mint();
    let store = world.open(&thief).await;
    assert_eq!(team.log(0, warnings(2)).await, [1, 2]);

    let lead = |after_death| LeaseClaim::Lead { after_death };
    let lease = store
        .claim(&team.session, team.lead(), 1, lead(true), &thief)
        .await
        .unwrap();
    assert_eq!(
        lease,
        Some(HeldLease {
            epoch: 2,
            last_seq: 2,
            incarnation: 2
        })
    );
    assert_eq!(
        team.append(team.batch(0, 2, warnings(1))).await,
        BatchOutcome::StaleEpoch
    );
    assert_eq!(
        store
            .claim(&team.session, team.lead(), 1, lead(true), &team.node)
            .await
            .unwrap(),
        None
    );

    let handed_over = store
        .claim(&team.session, team.lead(), 2, lead(false), &team.node)
        .await
        .unwrap();
    assert_eq!(
        handed_over,
        Some(HeldLease {
            epoch: 3,
            last_seq: 2,
            incarnation: 2
        })
    );
    assert_eq!(
        store.session(&team.session).await.unwrap().unwrap().owner,
        Some(team.node.clone())
    );
}

pub async fn a_claim_with_a_lost_answer_is_found(world: &dyn World) {
    let team = Team::start(world, 1).await;
    let me = NodeId::mint();
    let store = world.open(&me).await;
    let claim = || {
        store.claim(
            &team.session,
            team.lead(),
            1,
            LeaseClaim::Lead { after_death: true },
            &me,
        )
    };
    let first = claim().await.unwrap();
    assert_eq!(
        first,
        Some(HeldLease {
            epoch: 2,
            last_seq: 0,
            incarnation: 2
        })
    );
    assert_eq!(claim().await.unwrap(), first);
    assert_eq!(team.record(0).await.epoch, 2);
}

pub async fn members_follow_the_leads_incarnation(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let me = NodeId::mint();
    let store = world.open(&me).await;
    let member = |incarnation| {
        store.claim(
            &team.session,
            &team.agents[1],
            1,
            LeaseClaim::Member(team.under(incarnation)),
            &me,
        )
    };
    store
        .claim(
            &team.session,
            team.lead(),
            1,
            LeaseClaim::Lead { after_death: true },
            &me,
        )
        .await
        .unwrap()
        .unwrap();
    assert_eq!(member(1).await.unwrap(), None);
    assert_eq!(
        member(2).await.unwrap(),
        Some(HeldLease {
            epoch: 2,
            last_seq: 0,
            incarnation: 0
        })
    );
}

pub async fn releasing_ends_a_lease(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let release = |epoch| team.store.release(&team.session, team.lead(), epoch, false);
    assert!(matches!(release(2).await, Err(StoreError::StaleEpoch(_))));
    release(1).await.unwrap();
    release(1).await.unwrap();
    let record = team.record(0).await;
    assert_eq!(
        (record.node, record.epoch, record.state),
        (None, 2, AgentState::Idle)
    );
    assert_eq!(
        team.append(team.batch(0, 0, warnings(1))).await,
        BatchOutcome::StaleEpoch
    );
    assert_eq!(
        team.store
            .session(&team.session)
            .await
            .unwrap()
            .unwrap()
            .owner,
        None
    );
}

pub async fn releasing_leaves_a_stopped_agent_stopped(world: &dyn World) {
    let team = Team::start(world, 2).await;
    let stopped = team
        .batch(1, 0, warnings(1))
        .with(|save| save.state = AgentState::Stopped);
    team.write(stopped).await;
    let epoch = team.record(1).await.epoch;
    let release = |for_good| {
        let (store, session, agent) = (&team.store, &team.session, &team.agents[1]);
        store.release(session, agent, epoch, for_good)
    };
    release(false).await.unwrap();
    let record = team.record(1).await;
    assert_eq!((record.node, record.state), (None, AgentState::Stopped));
}

pub async fn leases_released_together_have_a_result_each(world: &dyn World) {
    let team = Team::start(world, 4).await;
    let release = |agent: &AgentId, epoch, stopped| LeaseRelease {
        agent: agent.clone(),
        epoch,
        stopped,
    };
    let agents = &team.agents;
    team.store
        .release(&team.session, &agents[3], 1, false)
        .await
        .unwrap();
    let asked = [
        release(&agents[2], 1, true),
        release(&AgentId::mint(), 1, false),
        release(&agents[1], 2, false),
        release(&agents[3], 1, false),
        release(&agents[0], 1, false),
    ];
    let results = team.store.release_all(&team.session, &asked).await.unwrap();
    assert!(
        matches!(
            &results[..],
            [
                Ok(()),
                Err(StoreError::NotFound(_)),
                Err(StoreError::StaleEpoch(_)),
                Ok(()),
                Ok(())
            ]
        ),
        "{results:?}"
    );
    let mut states = vec![];
    for agent in 0..4 {
        let record = team.record(agent).await;
        states.push((record.node.is_some(), record.epoch, record.state));
    }
    let released = (false, 2, AgentState::Idle);
    let stopped = (false, 2, AgentState::Stopped);
    assert_eq!(
        states,
        [released, (true, 1, AgentState::Idle), stopped, released]
    );
}

pub async fn leases_are_swept(world: &dyn World) {
    let (mine, dead) = (Team::start(world, 1).await, Team::start(world, 2).await);
    let stray = |agent: usize| Stray {
        session: dead.session.clone(),
        agent: dead.agents[agent].clone(),
        node: Some(dead.node.clone()),
        epoch: 1,
    };
    let sorted = |mut strays: Vec<Stray>| {
        strays.sort_by_key(|stray| stray.agent.clone());
        strays
    };
    let alive = [mine.node.clone()];
    assert_eq!(
        sorted(mine.store.sweep(&alive).await.unwrap()),
        [stray(0), stray(1)]
    );
    assert_eq!(
        sorted(mine.store.held_by(&dead.node).await.unwrap()),
        [stray(0), stray(1)]
    );

    dead.store
        .release(&dead.session, &dead.agents[1], 1, false)
        .await
        .unwrap();
    let claim = LeaseClaim::Lead { after_death: true };
    mine.store
        .claim(&dead.session, dead.lead(), 1, claim, &mine.node)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(mine.store.sweep(&alive).await.unwrap(), []);
    assert_eq!(mine.store.held_by(&dead.node).await.unwrap(), []);
    let held = mine.store.held_by(&mine.node).await.unwrap();
    assert_eq!(held.len(), 2);
    let in_both = [mine.session.clone(), dead.session.clone()];
    for (sessions, count) in [(&in_both[..], 2), (&in_both[..1], 1), (&[], 0)] {
        let held = mine.store.held_in(&mine.node, sessions).await.unwrap();
        assert_eq!(held.len(), count, "{sessions:?}");
    }
    assert!(held.contains(&Stray {
        node: Some(mine.node.clone()),
        epoch: 2,
        ..stray(0)
    }));
}
