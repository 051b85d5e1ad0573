//! Tests of choosing a node for an agent, and of a node that receives a request to host one.

use std::sync::Arc;

use planck_common::{
    AgentId, NodeId,
    command::{FirstTask, HostAgent, Started},
    event::json,
    message::Sender,
    reply::Code,
    spec::AgentSpec,
};
use serde_json::value::RawValue;

use super::{Placement, choice::only_name, claim_request, wanted, *};
use crate::services::testing::{TestNode, World};

fn placement(node: &TestNode) -> &Arc<Placement> {
    &node.services().placement
}

/// Returns a request to spawn the worker `helper`, and the worker's spec, which otherwise equals
/// that of the session's orchestrator.
async fn spawn(node: &TestNode, started: &Started) -> (HostAgent, AgentSpec) {
    let lead = node.agent(&started.orchestrator).await;
    let hosting = node.services().handles.host.hosting(&lead.id).unwrap();
    let spec = AgentSpec {
        name: "helper".into(),
        role: planck_common::spec::AgentRole::Worker,
        ..lead.spec.clone()
    };
    let request = HostAgent {
        agent_id: AgentId::mint(),
        epoch: 0,
        spec: RawValue::from_string(json(&spec)).ok(),
        ..claim_request(&hosting.session, &lead, None)
    };
    (request, spec)
}

#[tokio::test(flavor = "multi_thread")]
async fn spawn_with_the_same_id_makes_one_agent() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let (request, _) = spawn(&node, &started).await;

    let first = placement(&node).host_agent(request.clone()).await.unwrap();
    let second = placement(&node).host_agent(request.clone()).await.unwrap();

    assert_eq!(
        (first.node_id, first.name.as_str()),
        (node.id().clone(), "helper")
    );
    assert_eq!((second.epoch, second.name), (first.epoch, "helper".into()));
    let members = node.members(&started).await;
    assert_eq!(members.len(), 2);
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn spawns_at_once_are_created_in_batches_and_all_started() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let mut requests = Vec::new();
    for _ in 0..100 {
        requests.push(spawn(&node, &started).await.0);
    }
    let spawned = requests
        .iter()
        .map(|request| placement(&node).host_agent(request.clone()));
    let hosted = futures_util::future::join_all(spawned).await;

    let names: std::collections::BTreeSet<String> = hosted
        .into_iter()
        .map(|hosted| hosted.unwrap().name)
        .collect();
    assert_eq!(names.len(), 100, "each has a name of its own");
    assert!(
        requests
            .iter()
            .all(|request| node.services().handles.host.has(&request.agent_id))
    );
    assert_eq!(placement(&node).local().admission().arriving(), 0);
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_is_spawned_with_its_task_and_does_it() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let (mut request, _) = spawn(&node, &started).await;
    request.task = Some(FirstTask {
        id: planck_common::InputId::mint(),
        from: Sender {
            id: started.orchestrator.clone(),
            name: "lead".into(),
        },
        text: "say hello".into(),
    });
    let hosted = placement(&node).host_agent(request.clone()).await.unwrap();
    assert!(hosted.has_task);
    node.until("the task is done", async |services| {
        let (session, agent) = (&started.session_id, &request.agent_id);
        let page = services
            .handles
            .store
            .messages(session, Some(agent), None, None)
            .await;
        json(&page.unwrap()).contains("hello")
    })
    .await;
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_takes_no_more_agents_than_its_capacity() {
    let world = World::new().await;
    let node = world.node_with(|config| config.node.capacity = 2).await;
    let started = node.start(world.request(&["lead", "worker"])).await;
    let (request, spec) = spawn(&node, &started).await;

    let refusal = placement(&node).host_agent(request.clone()).await;
    let refusal = refusal.unwrap_err();
    assert_eq!(refusal.code, Code::Limit);
    assert!(
        refusal.message.contains("hosts 2 agents, its capacity"),
        "{refusal}"
    );
    let context = node
        .services()
        .handles
        .host
        .hosting(&started.orchestrator)
        .unwrap();
    let wanted = wanted(&context.session.workspace, &spec);
    let refusal = placement(&node).place(&wanted, request.clone()).await;
    assert_eq!(refusal.unwrap_err().code, Code::Limit);
    let found = node
        .services()
        .handles
        .store
        .find_agent(&request.agent_id)
        .await;
    assert!(found.unwrap().is_none());
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn team_of_a_later_incarnation_spawns_no_agent_for_an_earlier_one() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let (mut request, _) = spawn(&node, &started).await;
    request.incarnation += 1;
    let refusal = placement(&node).host_agent(request.clone()).await;
    assert_eq!(refusal.unwrap_err().code, Code::StaleEpoch);
    assert!(!node.services().handles.host.has(&request.agent_id));
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn spec_that_cannot_be_read_is_refused() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let (mut request, _) = spawn(&node, &started).await;
    request.spec = RawValue::from_string("{}".into()).ok();
    let refusal = placement(&node).host_agent(request).await.unwrap_err();
    assert_eq!(refusal.code, Code::BadRequest);
    assert_eq!(placement(&node).local().admission().arriving(), 0);
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_agent_moves_to_another_node_and_is_fenced_on_its_first() {
    let world = World::new().await;
    let (first, second) = (world.node().await, world.node().await);
    let started = first.start(world.request(&["lead"])).await;
    let lead = first.agent(&started.orchestrator).await;
    let hosting = first.services().handles.host.hosting(&lead.id).unwrap();
    let request = claim_request(&hosting.session, &lead, None);

    let hosted = placement(&first).host_on(second.id(), &request).await;
    assert_eq!(hosted.unwrap().node_id, *second.id());
    let moved = first.agent(&lead.id).await;
    assert_eq!(moved.node.as_ref(), Some(second.id()));
    assert!(moved.epoch > lead.epoch);
    let again = placement(&first).host_on(second.id(), &request).await;
    assert_eq!(again.unwrap().epoch, moved.epoch, "the lease is the same");

    let session = first.session(&started).await;
    let host = placement(&first).session_host(&session).await.unwrap();
    assert_eq!(host.as_ref(), Some(second.id()));
    let host = placement(&second).session_host(&session).await.unwrap();
    assert_eq!(host, None, "this one");
    second.leave().await;
    first.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_node_is_passed_over() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let (request, _) = spawn(&node, &started).await;
    let refusal = placement(&node).host_on(&NodeId::mint(), &request).await;
    assert!(refusal.unwrap_err().retryable);
    assert!(!placement(&node).hand_over(&NodeId::mint(), &request).await);
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_session_has_all_agents_here_if_no_other_node_is_known() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead", "a", "b"])).await;
    let members = node.members(&started).await;
    assert!(
        members
            .iter()
            .all(|agent| agent.node.as_ref() == Some(node.id()))
    );
    let info = placement(&node).local().info();
    assert_eq!((info.agents, info.running), (3, 0));
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn model_with_an_address_of_its_own_needs_no_key() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let mut spec = node.agent(&started.orchestrator).await.spec;
    spec.model.provider = "anthropic".into();
    let session = node.session(&started).await;
    assert!(!placement(&node).fits_here(&wanted(&session.spec.workspace, &spec)));
    spec.model.base_url = Some("http://127.0.0.1:1/v1".into());
    assert!(placement(&node).fits_here(&wanted(&session.spec.workspace, &spec)));
    assert!(!placement(&node).fits_here(&wanted("elsewhere", &spec)));
    node.leave().await;
}

#[test]
fn only_workspace_of_a_cluster_is_the_one_that_all_its_nodes_name() {
    let only = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        only_name(names.iter())
    };
    let main = Some("main".to_owned());
    assert_eq!(only(&["main"]), main);
    assert_eq!(only(&["local:a", "main", "local:b", "main"]), main);
    assert_eq!(only(&["main", "other"]), None);
    assert_eq!(only(&["local:a"]), None);
}

#[test]
fn places_are_reserved_and_released() {
    let admission = StartingAgents::default();
    let mut inside = 0;
    let one = admission.enter(&AgentId::mint(), 2, || inside).unwrap();
    let other = admission.enter(&AgentId::mint(), 2, || inside).unwrap();
    assert!(admission.enter(&AgentId::mint(), 2, || inside).is_none());
    drop(other);
    assert_eq!(admission.arriving(), 1);
    one.use_to_start(|| inside += 1);
    assert_eq!((admission.arriving(), inside), (0, 1));
    assert!(admission.enter(&AgentId::mint(), 2, || inside).is_some());
    assert!(admission.enter(&AgentId::mint(), 1, || inside).is_none());
}

#[test]
fn agent_that_is_about_to_start_is_told_to_check_its_inbox() {
    let (admission, agent) = (StartingAgents::default(), AgentId::mint());
    let enter = || admission.enter(&agent, 9, || 0).unwrap();
    assert!(!admission.leave_news(&agent));
    let (one, again) = (enter(), enter());
    assert!(admission.leave_news(&agent));
    drop(one);
    assert!(again.use_to_start(|| {}));
    assert!(!admission.leave_news(&agent), "it is in");
    assert!(!enter().use_to_start(|| {}));
}
