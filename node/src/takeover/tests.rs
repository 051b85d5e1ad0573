//! Tests of sessions that change hands between nodes, with real stores and agents.

use std::{sync::Arc, time::Duration};

use planck_cluster::claiming::ClaimInput;
use planck_common::{
    NodeId,
    command::{AgentState, SessionState, Start, Started},
    reply::Code,
    spec::OnNodeDeath,
};
use planck_store::{LeadIncarnation, LeaseClaim, Stray};
use tokio::time::timeout;

use super::{
    IfClosed, Purpose, SessionGuard, Takeover, UnfinishedClose, incarnation::stop_team, *,
};
use crate::services::{
    Services,
    testing::{TestNode, World},
};

fn takeover(node: &TestNode) -> &Takeover {
    &node.services().takeover
}

async fn state(node: &TestNode, started: &Started) -> SessionState {
    node.session(started).await.state
}

#[tokio::test(flavor = "multi_thread")]
async fn close_wins_over_a_sweep_that_saw_the_session_open() {
    let world = World::new().await;
    for if_closed in [IfClosed::Leave, IfClosed::OpenIfPrompted(&[])] {
        let node = world.node().await;
        let started = node.start(world.request(&["lead"])).await;

        let guard = takeover(&node).lock(&started.session_id).await.unwrap();
        let session = node.session(&started).await;
        let taking_over =
            takeover(&node).take_over(&session.id, "its node died or left", if_closed);
        let closing = async {
            // By then, `taking_over` waits for the lock.
            tokio::time::sleep(Duration::from_millis(50)).await;
            takeover(&node).close_lost(&session, &guard).await.unwrap();
            drop(guard);
        };
        let (taken_over, ()) = tokio::join!(taking_over, closing);
        taken_over.unwrap();

        assert_eq!(state(&node, &started).await, SessionState::Closed);
        assert_eq!(node.agent(&started.orchestrator).await.node, None);

        takeover(&node)
            .take_over(&session.id, "prompted", IfClosed::Open)
            .await
            .unwrap();
        assert_eq!(state(&node, &started).await, SessionState::Open);
        node.leave().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sweep_that_saw_a_prompt_open_a_session_does_not_close_it() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let session = node.session(&started).await;
    takeover(&node).close(&session, "done").await.unwrap();

    // Does what a prompt does, which claims the lead first and then opens the session.
    let guard = takeover(&node).lock(&session.id).await.unwrap();
    let lead = node.agent(&started.orchestrator).await;
    let store = &node.services().handles.store;
    let claim = LeaseClaim::Lead { after_death: false };
    let lease = store.claim(&session.id, &lead.id, lead.epoch, claim, node.id());
    let lease = lease.await.unwrap().unwrap();
    let stray = Stray {
        session: session.id.clone(),
        agent: lead.id,
        node: Some(node.id().clone()),
        epoch: lease.epoch,
    };
    let opening = async {
        // By then, the sweep waits for the lock.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let opened = store.set_state(&session.id, lease.epoch, SessionState::Open);
        opened.await.unwrap();
        drop(guard);
    };
    let strays = [stray];
    let sweeping = takeover(&node).look_after(&session.id, &strays);
    let (swept, ()) = tokio::join!(sweeping, opening);
    swept.unwrap();

    assert_eq!(state(&node, &started).await, SessionState::Open);
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_continues_on_another_node_when_its_own_leaves() {
    let world = World::new().await;
    let (first, second) = (world.node().await, world.node().await);
    let started = first.start(world.request(&["lead", "worker"])).await;
    let before = second.agent(&started.orchestrator).await;
    first.leave().await;

    takeover(&second)
        .take_over(&started.session_id, "resumed", IfClosed::Leave)
        .await
        .unwrap();

    let lead = second.agent(&started.orchestrator).await;
    assert_eq!(lead.node.as_ref(), Some(second.id()));
    assert!(lead.epoch > before.epoch, "the lease is fenced");
    assert_eq!(second.services().handles.host.agents(None).len(), 2);
    second.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn taking_over_twice_changes_nothing() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let before = node.agent(&started.orchestrator).await;
    for _ in 0..2 {
        takeover(&node)
            .take_over(&started.session_id, "resumed", IfClosed::Open)
            .await
            .unwrap();
    }
    let after = node.agent(&started.orchestrator).await;
    assert_eq!((after.epoch, after.node), (before.epoch, before.node));
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sweep_finds_an_unread_input_of_an_agent_here() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let lead = node.agent(&started.orchestrator).await;
    let put = node.put_prompt(&lead, "go").await;
    takeover(&node).sweep(false).await.unwrap();
    node.until_read(&lead, &put).await;
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_of_a_living_node_is_not_taken_over_by_another() {
    let world = World::new().await;
    let (host, other) = (world.node().await, world.node().await);
    let started = host.start(world.request(&["lead"])).await;
    let before = host.agent(&started.orchestrator).await;

    takeover(&other)
        .take_over(&started.session_id, "resumed", IfClosed::Open)
        .await
        .unwrap();
    let after = host.agent(&started.orchestrator).await;
    assert_eq!((after.epoch, after.node), (before.epoch, before.node));

    let guard = takeover(&other).lock(&started.session_id).await.unwrap();
    let session = other.session(&started).await;
    let refusal = takeover(&other)
        .take_over_here(&session, Purpose::End, &guard)
        .await
        .unwrap_err();
    assert!(refusal.retryable, "{refusal}");
    assert!(refusal.message.contains("is held by node"), "{refusal}");
    other.leave().await;
    host.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn close_ends_members_on_other_nodes() {
    let world = World::new().await;
    let (host, other) = (world.node().await, world.node().await);
    let started = host.start(world.request(&["lead", "worker"])).await;
    let members = host.members(&started).await;
    let worker = members
        .iter()
        .find(|agent| agent.id != started.orchestrator)
        .unwrap();
    let context = host
        .services()
        .handles
        .host
        .hosting(&worker.id)
        .unwrap()
        .session;
    assert!(
        host.services()
            .handles
            .host
            .leave(&worker.id)
            .await
            .unwrap()
    );
    let request = crate::placement::claim_request(&context, worker, None);
    assert!(
        host.services()
            .placement
            .hand_over(other.id(), &request)
            .await
    );
    assert!(other.services().handles.host.has(&worker.id));

    let session = host.session(&started).await;
    takeover(&host).close(&session, "done").await.unwrap();

    assert_eq!(state(&host, &started).await, SessionState::Closed);
    assert!(!other.services().handles.host.has(&worker.id));
    assert_eq!(host.agent(&worker.id).await.node, None);
    assert_eq!(host.agent(&started.orchestrator).await.node, None);
    other.leave().await;
    host.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_counts_as_stopped_only_if_it_confirms() {
    let world = World::new().await;
    let (host, other) = (world.node().await, world.node().await);
    let started = host.start(world.request(&["lead"])).await;
    let session = host.session(&started).await;
    let answer = |node| {
        let Takeover { handles, teams, .. } = takeover(&host);
        stop_team(handles.clone(), Arc::clone(teams), session.clone(), node, 1)
    };
    let confirmed = answer(other.id().clone()).await;
    assert_eq!(
        confirmed,
        Some(ClaimInput::Stopped {
            node: other.id().clone()
        })
    );
    assert_eq!(answer(NodeId::mint()).await, None);
    other.leave().await;
    host.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn close_releases_members_that_the_node_in_their_records_does_not_host() {
    let world = World::new().await;
    let host = world.node().await;
    let started = host.start(world.request(&["lead", "one", "two"])).await;
    let other = world.node().await;
    let lead = host.agent(&started.orchestrator).await;
    let mut members = host.members(&started).await;
    members.retain(|member| member.id != lead.id);
    for member in &members {
        host.services().handles.host.drop_agent(&member.id);
        let claim = LeaseClaim::Member(LeadIncarnation {
            lead: lead.id.clone(),
            incarnation: lead.incarnation,
        });
        let store = &host.services().handles.store;
        let lease = store.claim(&member.session, &member.id, member.epoch, claim, other.id());
        assert!(lease.await.unwrap().is_some());
    }

    // A sweep may take a member over in the middle of the close. Clients repeat a close then.
    for attempt in 1.. {
        let session = host.session(&started).await;
        match takeover(&host).close(&session, "enough").await {
            Ok(_) => break,
            Err(refusal) => assert!(refusal.code == Code::StaleEpoch && attempt < 5, "{refusal}"),
        }
    }

    assert_eq!(members.len(), 2);
    for member in &members {
        let now = host.agent(&member.id).await;
        assert_eq!(now.node, None);
        // A sweep of a node may have taken the member over before the close, which raises the epoch.
        assert!(now.epoch >= member.epoch + 2, "{}", now.epoch);
    }
    other.leave().await;
    host.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_node_takes_nothing_over() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    for (seconds, reason) in [(3, "a new disk"), (5, "another one")] {
        let patience = Some(Duration::from_secs(seconds));
        takeover(&node).request_drain(patience, Some(reason.into()));
        assert_eq!(
            takeover(&node).drain_requested().await,
            Duration::from_secs(3),
            "the first request holds"
        );
    }
    takeover(&node).drain(Duration::ZERO).await;
    let refusal = takeover(&node)
        .take_over(&started.session_id, "resumed", IfClosed::Open)
        .await
        .unwrap_err();
    assert!(refusal.retryable, "{refusal}");
    assert!(refusal.message.contains("is draining"), "{refusal}");
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_agents_are_released_for_any_node() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead", "worker"])).await;
    takeover(&node).release_idle().await;
    assert!(node.services().handles.host.agents(None).is_empty());
    let members = node.members(&started).await;
    assert!(members.iter().all(|agent| agent.node.is_none()));
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_whose_lease_another_node_holds_is_dropped() {
    let world = World::new().await;
    let (first, second) = (world.node().await, world.node().await);
    let started = first.start(world.request(&["lead"])).await;
    assert!(takeover(&first).drop_superseded().await);
    assert!(first.services().handles.host.has(&started.orchestrator));

    let lead = first.agent(&started.orchestrator).await;
    let claim = LeaseClaim::Lead { after_death: true };
    let store = &second.services().handles.store;
    let lease = store.claim(&lead.session, &lead.id, lead.epoch, claim, second.id());
    assert!(lease.await.unwrap().is_some());

    assert!(takeover(&first).drop_superseded().await);
    assert!(!first.services().handles.host.has(&lead.id));
    second.leave().await;
    first.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn end_of_a_worker_is_reported_to_its_orchestrator_once() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead", "worker"])).await;
    let members = node.members(&started).await;
    let worker = members
        .iter()
        .find(|agent| agent.id != started.orchestrator)
        .unwrap();
    takeover(&node).stop_agent(worker, "enough").await.unwrap();
    takeover(&node)
        .record_exits(&started.session_id)
        .await
        .unwrap();

    let store = &node.services().handles.store;
    let page = store
        .events(&started.session_id, 1, 100, None)
        .await
        .unwrap();
    let told = page
        .events
        .iter()
        .filter(|event| event.get().contains("\"worker_exit\""))
        .count();
    assert_eq!(told, 1);
    assert_eq!(state(&node, &started).await, SessionState::Open);
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_of_the_orchestrator_closes_its_session() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead", "worker"])).await;
    let lead = node.agent(&started.orchestrator).await;
    takeover(&node).stop_agent(&lead, "enough").await.unwrap();
    assert_eq!(state(&node, &started).await, SessionState::Closed);
    assert!(node.services().handles.host.agents(None).is_empty());
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_is_to_stop_with_its_node_is_lost_with_it_only() {
    let world = World::new().await;
    let (host, other) = (world.node().await, world.node().await);
    let started = host
        .start(Start {
            on_node_death: Some(OnNodeDeath::Stop),
            ..world.request(&["lead"])
        })
        .await;
    let session = host.session(&started).await;
    assert!(!takeover(&host).is_lost(&session).await);
    assert!(!takeover(&other).is_lost(&session).await, "its node lives");
    other.leave().await;
    host.leave().await;
}

/// Starts a session on `host` that is to stop with its node. Has `other` record an unfinished close
/// and take the orchestrator's lease, like a close that fails before it records the session as
/// closed. The guard keeps the sweeps of `other` from the session.
async fn cut_short_close(
    world: &World,
    host: &TestNode,
    other: &TestNode,
) -> (Started, SessionGuard) {
    let started = host
        .start(Start {
            on_node_death: Some(OnNodeDeath::Stop),
            ..world.request(&["lead", "worker"])
        })
        .await;
    let guard = takeover(other).lock(&started.session_id).await.unwrap();
    let lead = host.agent(&started.orchestrator).await;
    let close = UnfinishedClose {
        reason: "node_lost".into(),
        is_lost: true,
    };
    takeover(other).maintenance.closing(&lead.session, close);
    let claim = LeaseClaim::Lead { after_death: true };
    let store = &other.services().handles.store;
    let lease = store.claim(&lead.session, &lead.id, lead.epoch, claim, other.id());
    assert!(lease.await.unwrap().is_some());
    (started, guard)
}

/// Sweeps, and waits until the session is closed. A sweep of the node itself may be closing it.
async fn sweep_closes(node: &TestNode, started: &Started, is_full: bool) {
    takeover(node).sweep(is_full).await.unwrap();
    let is_closed = async |services: &Services| {
        state(node, started).await == SessionState::Closed
            && !services.handles.host.has(&started.orchestrator)
            && node.agent(&started.orchestrator).await.node.is_none()
            && !takeover(node)
                .maintenance
                .is_closing_lost(&started.session_id)
    };
    node.until("the session is closed", is_closed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn close_that_was_cut_short_is_repeated_by_the_sweep() {
    let world = World::new().await;
    let (host, other) = (world.node().await, world.node().await);
    let (started, guard) = cut_short_close(&world, &host, &other).await;
    assert_eq!(state(&other, &started).await, SessionState::Open);
    drop(guard);
    sweep_closes(&other, &started, true).await;
    other.leave().await;
    host.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn close_that_was_cut_short_is_repeated_when_the_lead_runs() {
    let world = World::new().await;
    let (host, other) = (world.node().await, world.node().await);
    let (started, guard) = cut_short_close(&world, &host, &other).await;
    let session = other.session(&started).await;
    let hosted = takeover(&other).take_over_here(&session, Purpose::Lost, &guard);
    hosted.await.unwrap();
    assert!(other.services().handles.host.has(&started.orchestrator));
    drop(guard);
    sweep_closes(&other, &started, false).await;
    other.leave().await;
    host.leave().await;
}

/// The death of a session's node may become known after the session was found not to be lost.
#[tokio::test(flavor = "multi_thread")]
async fn session_that_is_to_stop_does_not_continue_under_the_lease_of_a_dead_node() {
    let world = World::new().await;
    let (host, other) = (world.node().await, world.node().await);
    let (started, guard) = cut_short_close(&world, &host, &other).await;
    let session = other.session(&started).await;
    let purpose = Purpose::Work {
        reason: "prompted",
        may_open: true,
    };
    let refused = takeover(&other).take_over_here(&session, purpose, &guard);
    assert!(refused.await.unwrap_err().retryable);
    assert!(!other.services().handles.host.has(&started.orchestrator));
    drop(guard);
    sweep_closes(&other, &started, false).await;
    other.leave().await;
    host.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_of_a_stopped_agent_is_released_by_the_sweep() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead", "worker"])).await;
    let lead = node.agent(&started.orchestrator).await;
    let mut members = node.members(&started).await;
    members.retain(|member| member.id != lead.id);
    let worker = &members[0];
    let (store, id) = (&node.services().handles.store, &worker.id);
    node.services().handles.host.drop_agent(id);
    let stopped = store.release(&worker.session, id, worker.epoch, true);
    stopped.await.unwrap();
    let claim = LeaseClaim::Member(LeadIncarnation {
        lead: lead.id.clone(),
        incarnation: lead.incarnation,
    });
    let held = store.claim(&worker.session, id, worker.epoch + 1, claim, node.id());
    assert!(held.await.unwrap().is_some());

    let host = &node.services().handles.host;
    host.may_miss_agents_of(&worker.session);
    takeover(&node).sweep(true).await.unwrap();

    let now = node.agent(id).await;
    assert_eq!((now.node, now.state), (None, AgentState::Stopped));
    node.leave().await;
}

/// Agents that were started only for their ends would work for a prompt.
#[tokio::test(flavor = "multi_thread")]
async fn close_that_fails_leaves_no_agent_behind() {
    let world = World::new().await;
    let (host, other) = (world.node().await, world.node().await);
    let (started, guard) = cut_short_close(&world, &host, &other).await;
    world.refuse_close(&started).await;
    let session = other.session(&started).await;

    takeover(&other)
        .close_lost(&session, &guard)
        .await
        .unwrap_err();

    let here = other.services().handles.host.agents(Some(&session.id));
    assert!(here.is_empty(), "{here:?}");
    assert!(
        takeover(&other)
            .is_lost(&other.session(&started).await)
            .await
    );
    other.leave().await;
    host.leave().await;
}

/// A sweep has seen a close that has not ended. It ends while the sweep waits for it, and the session
/// is opened again.
#[tokio::test(flavor = "multi_thread")]
async fn sweep_does_not_close_a_session_that_was_opened_again() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let id = &started.session_id;
    let lead = node.agent(&started.orchestrator).await;
    let store = &node.services().handles.store;
    let takeover = takeover(&node);
    let guard = takeover.lock(id).await.unwrap();
    let close = UnfinishedClose {
        reason: "for a test".into(),
        is_lost: false,
    };
    takeover.maintenance.closing(id, close);
    let closed = store.set_state(id, lead.epoch, SessionState::Closed);
    closed.await.unwrap();
    {
        let mut sweep = std::pin::pin!(takeover.finish_closings());
        let waits = timeout(Duration::from_millis(100), &mut sweep);
        assert!(waits.await.is_err(), "the close holds the session");

        takeover.maintenance.closed(id);
        let opened = store.set_state(id, lead.epoch, SessionState::Open);
        opened.await.unwrap();
        drop(guard);
        sweep.await;
    }
    assert_eq!(state(&node, &started).await, SessionState::Open);
    assert!(
        node.services().handles.host.has(&lead.id),
        "it was not stopped"
    );
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn close_that_was_cut_short_is_dropped_when_another_node_has_the_session() {
    let world = World::new().await;
    let (host, other) = (world.node().await, world.node().await);
    let started = host
        .start(Start {
            on_node_death: Some(OnNodeDeath::Stop),
            ..world.request(&["lead"])
        })
        .await;
    let session = host.session(&started).await;
    let close = UnfinishedClose {
        reason: "node_lost".into(),
        is_lost: true,
    };
    takeover(&other).maintenance.closing(&session.id, close);

    takeover(&other).sweep(true).await.unwrap();

    assert_eq!(state(&host, &started).await, SessionState::Open);
    assert!(!takeover(&other).maintenance.is_closing_lost(&session.id));
    other.leave().await;
    host.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_cannot_be_removed_keeps_no_other_old_one() {
    let world = World::new().await;
    let node = world.node().await;
    let mut closed = Vec::new();
    for _ in 0..3 {
        let started = node.start(world.request(&["lead"])).await;
        let session = node.session(&started).await;
        takeover(&node).close(&session, "done").await.unwrap();
        closed.push(started);
    }
    // Which session is removed first depends on the times of their ends.
    world.refuse_removal(&closed[0]).await;
    world.refuse_removal(&closed[1]).await;
    let until = planck_common::Timestamp::now();
    while planck_common::Timestamp::now() <= until {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    takeover(&node)
        .remove_expired(Duration::ZERO)
        .await
        .unwrap();
    let mut left = Vec::new();
    for started in &closed {
        let session = node
            .services()
            .handles
            .store
            .session(&started.session_id)
            .await;
        left.push(session.unwrap().is_some());
    }
    assert_eq!(left, [true, true, false]);
    node.leave().await;
}

#[tokio::test(start_paused = true)]
async fn each_session_has_one_lock() {
    let (locks, one, other) = (
        SessionLocks::default(),
        SessionId::parse("one").unwrap(),
        SessionId::parse("other").unwrap(),
    );
    let held = locks.lock(&one).await.unwrap();
    let _elsewhere = locks.lock(&other).await.unwrap();
    assert_eq!(
        locks.lock(&one).await.unwrap_err().code,
        planck_common::reply::Code::Unavailable
    );
    let next = locks.lock(&one);
    drop(held);
    drop(next.await.unwrap());
    locks.lock(&other).await.unwrap_err();
    assert_eq!(
        locks.0.lock().unwrap().len(),
        1,
        "a lock that is not used is forgotten"
    );
}
