//! Tests of operations on sessions that are requested from the host and from another node.

use std::collections::BTreeMap;

use planck_common::{
    AgentId, InputId, SessionId, TeamId, Timestamp,
    command::{
        AbortSession, Accepted, AgentState, AgentStateNow, AgentVerb, InputMode, ListWaits, Prompt,
        SessionState, SessionVerb, Started,
    },
    envelope::Envelope,
    event::{InputKind, json},
    message::Part,
    permission::PermissionMode,
    reply::Code,
    spec::SessionSpec,
    subject::Address,
};
use planck_scripted_model::{Reply, Script, When};
use serde_json::json as value;

use super::{CommandOrigin, Sessions, start::FirstAgents};
use crate::{
    actor::DeliveryOutcome,
    config::Period,
    services::{
        Services,
        testing::{TestNode, World},
    },
};
use planck_store::{AgentRecord, Created, NewAgent, NewInput, NewSession, PutResult};

fn prompt(text: &str) -> Prompt {
    serde_json::from_value(value!({ "text": text })).unwrap()
}

fn sessions(node: &TestNode) -> &Sessions {
    &node.services().sessions
}

/// Waits until the orchestrator of the session has answered.
async fn answered(node: &TestNode, session: &SessionId) {
    node.until("the orchestrator answers", async |services| {
        let page = services
            .handles
            .store
            .messages(session, None, None, None)
            .await;
        json(&page.unwrap()).contains("hello")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn second_start_with_the_same_id_finds_the_session() {
    let world = World::new().await;
    let node = world.node().await;
    let mut request = world.request(&["lead", "worker"]);
    request.session_id = Some(SessionId::mint());
    request.prompt = Some("hi".into());

    let first = node.start(request.clone()).await;
    let second = node.start(request).await;

    assert_eq!(second.session_id, first.session_id);
    assert_eq!(
        second.prompt_id, first.prompt_id,
        "the prompt is not put twice"
    );
    let agents = node
        .services()
        .handles
        .lookup
        .members(&first.session_id)
        .await;
    assert_eq!(agents.unwrap().len(), 2);
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_to_an_agent_that_is_about_to_start_is_answered() {
    let world = World::new().await;
    let node = world.node().await;
    let other = node.start(world.request(&["lead"])).await;
    let (id, agent) = (SessionId::mint(), AgentId::mint());
    let spec = SessionSpec {
        team_id: TeamId::mint(),
        lead: agent.clone(),
        ..node.session(&other).await.spec
    };
    let session = NewSession {
        id: id.clone(),
        name: None,
        spec,
        metadata: serde_json::Map::new(),
        agents: vec![NewAgent {
            session: id,
            id: agent,
            spec: node.agent(&other.orchestrator).await.spec,
        }],
        at: Timestamp::now(),
        prompt: None,
    };
    let nodes = BTreeMap::new();
    let permits = sessions(&node).expect_agents(&session, &nodes);
    let created = node
        .services()
        .handles
        .store
        .create(session, node.id())
        .await;
    let Created::New(record, agents) = created.unwrap() else {
        panic!("the session was there before")
    };

    let lead = agents[0].clone();
    sessions(&node).prompt(&lead, prompt("go")).await.unwrap();
    assert!(
        !node.services().handles.host.has(&lead.id),
        "it has not started"
    );
    let first = FirstAgents {
        agents,
        nodes,
        permits,
        prompt: None,
        warning: None,
    };
    sessions(&node).host_all(&record, first).await.unwrap();

    answered(&node, &record.id).await;
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn start_that_cannot_work_is_refused() {
    let world = World::new().await;
    let node = world
        .node_with(|config| config.limits.max_prompt.0 = 1_000)
        .await;
    let mut empty = world.request(&["lead"]);
    empty.prompt = Some(" \n".into());
    let mut long = world.request(&["lead"]);
    long.prompt = Some("x".repeat(1_000));
    let mut unknown = world.request(&[]);
    (unknown.team, unknown.members) = (Some("nobody".into()), None);
    let mut both = world.request(&["lead"]);
    both.team = Some("nobody".into());

    let large = value!({ "a": vec!["x"; 20_000] });
    let mut metadata = world.request(&["lead"]);
    metadata.metadata = serde_json::from_value(large.clone()).unwrap();
    let mut opts = world.request(&["lead", "hand"]);
    let hand = opts.members.iter_mut().flatten().nth(1).unwrap();
    hand.opts = serde_json::from_value(large.clone()).unwrap();
    let mut labels = world.request(&["lead"]);
    labels.members.iter_mut().flatten().for_each(|member| {
        member.labels = serde_json::from_value(large.clone()).unwrap();
    });
    let mut tool = world.request(&["lead"]);
    tool.client_tools = vec![
        serde_json::from_value(value!({
            "name": "look", "parameters": { "type": "object", "properties": { "x": { "enum": vec![0; 20_000] } } },
        }))
        .unwrap(),
    ];

    for (request, code, what) in [
        (empty, Code::BadRequest, "the prompt is empty"),
        (
            metadata,
            Code::TooLarge,
            "`metadata` has 80007 bytes, over the limit of 65536",
        ),
        (opts, Code::TooLarge, "`members[1].opts` has"),
        (labels, Code::TooLarge, "`members[0].labels` has"),
        (
            tool,
            Code::BadRequest,
            "tool `look`: the schema of its parameters is wrong: it has more than 10000 parts",
        ),
        (long, Code::TooLarge, "limits.max_prompt"),
        (unknown, Code::NotFound, "no team `nobody` on this node"),
        (both, Code::BadRequest, "not both"),
    ] {
        let refusal = sessions(&node).start(request, CommandOrigin::Client).await;
        let refusal = refusal.unwrap_err();
        assert_eq!(refusal.code, code, "{refusal}");
        assert!(refusal.message.contains(what), "{refusal}");
    }
    let all = serde_json::from_value(value!({})).unwrap();
    let listed = node.services().handles.store.sessions(all).await;
    assert!(listed.unwrap().sessions.is_empty());
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_is_one_of_text_and_content_and_no_answer() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let lead = node.agent(&started.orchestrator).await;
    for body in [
        value!({}),
        value!({ "text": "" }),
        value!({ "text": "a", "content": [] }),
        value!({ "content": [{ "type": "thinking", "text": "a", "signature": "b" }] }),
    ] {
        let Ok(prompt) = serde_json::from_value::<Prompt>(body.clone()) else {
            panic!("{body} is no body");
        };
        let refusal = sessions(&node).prompt(&lead, prompt).await.unwrap_err();
        assert_eq!(refusal.code, Code::BadRequest, "{body}: {refusal}");
    }
    let store = &node.services().handles.store;
    let inbox = store.open_inputs(&lead.session, &lead.id).await.unwrap();
    assert!(inbox.is_empty(), "nothing was put");
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn image_that_is_not_base64_is_refused() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let lead = node.agent(&started.orchestrator).await;
    for kind in ["image", "file"] {
        let part = value!({ "type": kind, "mime": "image/png", "data": "%%%" });
        let prompt = serde_json::from_value(value!({ "content": [part] })).unwrap();
        let refusal = sessions(&node).prompt(&lead, prompt).await.unwrap_err();
        assert_eq!(refusal.code, Code::BadRequest, "{refusal}");
    }
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn second_put_of_a_prompt_is_accepted_and_not_run_again() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let lead = node.agent(&started.orchestrator).await;
    let mut request = prompt("go");
    request.prompt_id = Some(InputId::mint());

    let first = sessions(&node)
        .prompt(&lead, request.clone())
        .await
        .unwrap();
    answered(&node, &started.session_id).await;
    let head = node.session(&started).await.head;
    let second = sessions(&node).prompt(&lead, request).await.unwrap();

    assert_eq!(second.prompt_id, first.prompt_id);
    assert_eq!(node.session(&started).await.head, head);
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn second_put_of_an_unread_prompt_notifies_the_host() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let lead = node.agent(&started.orchestrator).await;
    let put = node.put_prompt(&lead, "go").await;
    let mut request = prompt("go");
    request.prompt_id = Some(put.clone());
    sessions(&node).prompt(&lead, request).await.unwrap();
    let store = &node.services().handles.store;
    let row = store.input(&lead.session, &put).await.unwrap().unwrap();
    assert!(!row.is_unread(), "the agent has it, without a sweep");
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_that_arrive_without_a_permit_are_read_when_it_returns() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let lead = node.agent(&started.orchestrator).await;
    let permit = node.services().handles.view.permit();
    for has_rested in [false, true] {
        if has_rested {
            node.until("the agent rests", async |services| {
                services.handles.host.is_parked(&lead.id)
            })
            .await;
        }
        permit.take_back();
        let accepted = sessions(&node).prompt(&lead, prompt("go")).await.unwrap();
        permit.give_until(u64::MAX);
        node.until_read(&lead, &accepted.prompt_id).await;
    }
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_reaches_the_agent_from_another_node() {
    let world = World::new().await;
    let (host, other) = (world.node().await, world.node().await);
    let started = host.start(world.request(&["lead"])).await;
    let lead = other.agent(&started.orchestrator).await;
    assert_eq!(lead.node.as_ref(), Some(host.id()));

    let accepted: Accepted = sessions(&other).prompt(&lead, prompt("go")).await.unwrap();

    assert_eq!(accepted.session_id, started.session_id);
    answered(&other, &started.session_id).await;
    assert!(
        !other.services().handles.host.has(&lead.id),
        "it stays where it was"
    );
    other.leave().await;
    host.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_without_the_agent_passes_its_commands_on_once() {
    let world = World::new().await;
    let (host, other) = (world.node().await, world.node().await);
    let started = host.start(world.request(&["lead"])).await;
    let lead = other.agent(&started.orchestrator).await;

    let info = sessions(&other).agent_info(&lead).await.unwrap();
    assert_eq!(info.node_id.as_ref(), Some(host.id()));
    let state = sessions(&other).abort_agent(&lead, None).await.unwrap();
    assert_eq!(state, AgentState::Idle);

    let address = Address::agent(&lead.id, AgentVerb::Abort.name());
    let now: AgentStateNow = host.command(&address, &value!({})).await.unwrap();
    assert_eq!(now.state, AgentState::Idle);
    let refusal = sessions(&other)
        .pass_on(CommandOrigin::Peer, host.id(), &address, b"{}")
        .await
        .unwrap_err();
    assert!(refusal.retryable, "{refusal}");
    other.leave().await;
    host.leave().await;
}

/// An abort of all work.
fn all() -> AbortSession {
    AbortSession {
        reason: None,
        prompt_id: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_of_an_idle_session_ends_nothing() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead", "worker"])).await;
    let session = node.session(&started).await;
    let aborted = sessions(&node)
        .abort(&session, all(), CommandOrigin::Client)
        .await;
    assert_eq!(aborted.unwrap(), []);
    assert_eq!(node.session(&started).await.state, SessionState::Open);
    node.leave().await;
}

/// A world whose agents ask before they write.
async fn asking_world() -> World {
    let write = Reply::call("write", value!({ "path": "out.txt", "content": "x" }));
    let script = Script::new().rule(When::any().last("write it"), write);
    World::with(script.always("hello")).await
}

/// Starts a session whose only agent waits, and waits until the node has unloaded it.
async fn waiting_unloaded(world: &World) -> (TestNode, Started) {
    let node = world
        .node_with(|config| config.node.park_after = Period::millis(500))
        .await;
    let mut request = world.request(&["lead"]);
    let members = request.members.iter_mut().flatten();
    members.for_each(|member| member.tools = Some(vec!["write".into()]));
    request.permissions = Some(PermissionMode::Careful);
    request.prompt = Some("write it".into());
    let started = node.start(request).await;
    let is_unloaded = async |services: &Services| {
        let lead = services
            .handles
            .lookup
            .agent(&started.orchestrator)
            .await
            .unwrap();
        lead.state == AgentState::Waiting && services.handles.host.is_parked(&lead.id)
    };
    node.until("the agent waits unloaded", is_unloaded).await;
    (node, started)
}

async fn open_waits(node: &TestNode, started: &Started) -> usize {
    let store = &node.services().handles.store;
    let filter = ListWaits::default();
    let open = store.waits(Some(&started.session_id), &filter).await;
    open.unwrap().waits.len()
}

/// Returns the kinds of the last events of the session.
async fn last_kinds(node: &TestNode, started: &Started, count: usize) -> Vec<String> {
    let store = &node.services().handles.store;
    let log = store.events(&started.session_id, 1, 100, None).await;
    let kinds = log.unwrap().events.into_iter().map(|event| {
        let event: Envelope = serde_json::from_str(event.get()).unwrap();
        event.kind
    });
    let kinds: Vec<String> = kinds.collect();
    kinds[kinds.len() - count..].to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_withdraws_the_wait_of_an_unloaded_agent() {
    let world = asking_world().await;
    let (node, started) = waiting_unloaded(&world).await;
    let session = node.session(&started).await;
    let aborted = sessions(&node)
        .abort(&session, all(), CommandOrigin::Client)
        .await;
    assert_eq!(
        aborted.unwrap(),
        std::slice::from_ref(&started.orchestrator)
    );
    assert_eq!(open_waits(&node, &started).await, 0);
    let again = sessions(&node)
        .abort(&session, all(), CommandOrigin::Client)
        .await;
    assert_eq!(again.unwrap(), []);
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_and_stop_reach_a_waiting_agent_whose_node_has_left() {
    for of_session in [true, false] {
        let world = asking_world().await;
        let (first, started) = waiting_unloaded(&world).await;
        first.leave().await;
        let node = world.node().await;
        let lead = node.agent(&started.orchestrator).await;
        assert_eq!((&lead.node, lead.state), (&None, AgentState::Waiting));
        assert!(sessions(&node).agent_info(&lead).await.is_none());
        let session = node.session(&started).await;
        if of_session {
            let aborted = sessions(&node)
                .abort(&session, all(), CommandOrigin::Client)
                .await;
            assert_eq!(aborted.unwrap(), std::slice::from_ref(&lead.id));
        } else {
            let state = sessions(&node).abort_agent(&lead, None).await;
            assert_eq!(state.unwrap(), AgentState::Idle);
        }
        assert_eq!(open_waits(&node, &started).await, 0);
        assert_eq!(last_kinds(&node, &started, 1).await, ["turn_end"]);
        node.leave().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_whose_node_has_left_is_stopped_with_its_log() {
    let world = World::new().await;
    let first = world.node().await;
    let started = first.start(world.request(&["lead", "worker"])).await;
    first.leave().await;
    let node = world.node().await;
    let members = node.members(&started).await;
    let is_worker = |agent: &AgentRecord| agent.id != started.orchestrator;
    let worker = members.into_iter().find(is_worker).unwrap();
    assert_eq!(worker.node, None);
    let idle = sessions(&node).abort_agent(&worker, None).await;
    assert_eq!(idle.unwrap(), AgentState::Idle);
    assert!(
        !node.services().handles.host.has(&worker.id),
        "it is not loaded"
    );
    let stopped = sessions(&node).stop_agent(&worker, "enough").await;
    assert_eq!(stopped.unwrap(), AgentState::Stopped);
    node.until("the log has both ends", async |_| {
        // The orchestrator, which was loaded too, may write a row between them.
        let mut kinds = last_kinds(&node, &started, 3).await;
        kinds.retain(|kind| kind != "session_resumed");
        kinds.ends_with(&["agent_stopped".into(), "worker_exit".into()])
    })
    .await;
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_that_may_not_wait_is_refused_by_a_waiting_agent_that_is_unloaded() {
    let world = asking_world().await;
    let (node, started) = waiting_unloaded(&world).await;
    let lead = node.agent(&started.orchestrator).await;
    let mut request = prompt("go");
    request.mode = InputMode::Reject;
    let refusal = sessions(&node).prompt(&lead, request).await.unwrap_err();
    assert_eq!(refusal.code, Code::Busy, "{refusal}");
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rewind_needs_a_message_and_hides_it() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let lead = node.agent(&started.orchestrator).await;
    sessions(&node).prompt(&lead, prompt("go")).await.unwrap();
    answered(&node, &started.session_id).await;
    let session = node.session(&started).await;

    let refusal = sessions(&node).rewind(&session, 1, "client").await;
    assert_eq!(refusal.unwrap_err().code, Code::BadRequest);

    let store = &node.services().handles.store;
    let log = store.events(&session.id, 1, 100, None).await.unwrap();
    let mut events = log
        .events
        .iter()
        .map(|event| serde_json::from_str::<Envelope>(event.get()).unwrap());
    let first = events.find(|event| event.kind == "message").unwrap();
    let first = first.seq.unwrap();
    let head = sessions(&node).rewind(&session, first, "client").await;
    assert!(head.unwrap() > session.head);
    let page = store.messages(&session.id, None, None, None).await.unwrap();
    assert!(page.messages.is_empty());
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn message_between_agents_does_not_open_a_closed_session_and_a_prompt_does() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let session = node.session(&started).await;
    let lead = node.agent(&started.orchestrator).await;
    node.services()
        .takeover
        .close(&session, "closed")
        .await
        .unwrap();

    sessions(&node).wake(&session.id, &lead.id).await;
    assert_eq!(node.session(&started).await.state, SessionState::Closed);

    sessions(&node).prompt(&lead, prompt("go")).await.unwrap();
    assert_eq!(node.session(&started).await.state, SessionState::Open);
    answered(&node, &session.id).await;
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn input_of_a_busy_agent_that_may_not_wait_is_refused_by_verdict() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let lead = node.agent(&started.orchestrator).await;
    let input = NewInput {
        id: InputId::mint(),
        agent: lead.id.clone(),
        kind: InputKind::Prompt,
        mode: InputMode::Reject,
        sender: None,
        by: None,
        reply_to: None,
        content: json(&[Part::text("go")]),
        fresh: false,
        output: None,
        at: planck_common::Timestamp::now(),
    };
    let put = node
        .services()
        .handles
        .store
        .put(&lead.session, input.clone())
        .await;
    assert!(matches!(put.unwrap(), PutResult::Put { .. }));
    let verdict = sessions(&node)
        .deliver(&lead.session, lead.node.clone(), &input)
        .await;
    assert_eq!(verdict.unwrap(), DeliveryOutcome::Taken, "it is idle");
    answered(&node, &lead.session).await;
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_session_is_gone() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead", "worker"])).await;
    let session = node.session(&started).await;
    let removed = sessions(&node).delete(&session, "deleted").await.unwrap();
    assert_eq!(removed.agents, 2);
    let found = node.services().handles.lookup.session(&session.id).await;
    assert_eq!(found.unwrap_err().code, Code::NotFound);
    assert!(node.services().handles.host.agents(None).is_empty());
    let address = Address::session(&session.id, SessionVerb::Info.name());
    let told = node
        .command::<serde_json::Value>(&address, &value!({}))
        .await;
    assert_eq!(told.unwrap_err().code, Code::NotFound);
    node.leave().await;
}
