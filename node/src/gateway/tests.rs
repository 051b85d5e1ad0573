//! Tests of commands as they arrive over the bus.

use planck_common::{
    NodeId,
    command::{
        AgentInfo, MOST_SYSTEM_PROMPT, NodeInfo, NodeState, Nodes, SessionInfo, SessionStateNow,
    },
    permission::{PermissionMode, Permissions},
    reply::Code,
    subject::{Address, LIST, Target},
};
use serde_json::{Value, json};

use crate::services::testing::{TestNode, World};

async fn refusal(node: &TestNode, address: &Address, body: &Value) -> (Code, String) {
    let refusal = node.command::<Value>(address, body).await.unwrap_err();
    (refusal.code, refusal.message)
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_verb_is_refused_with_the_known_ones() {
    let world = World::new().await;
    let node = world.node().await;
    for (target, known) in [
        (Target::Sessions, "start, list"),
        (Target::Nodes, "list"),
        (Target::Node(node.id().to_string()), "info, drain, host"),
    ] {
        let address = Address::new(target, "dance");
        let (code, message) = refusal(&node, &address, &json!({})).await;
        assert_eq!(code, Code::BadRequest, "{message}");
        assert!(message.contains("unknown verb `dance`"), "{message}");
        assert!(message.contains(known), "{message}");
    }
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn body_that_is_no_object_is_refused() {
    let world = World::new().await;
    let node = world.node().await;
    let list = Address::new(Target::Sessions, "list");
    for body in [json!([]), json!("a"), json!({ "limit": "many" })] {
        let (code, message) = refusal(&node, &list, &body).await;
        assert_eq!(code, Code::BadRequest, "{body}: {message}");
    }
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn body_with_too_many_values_is_not_parsed() {
    let world = World::new().await;
    let node = world.node().await;
    let start = Address::new(Target::Sessions, "start");
    for body in [
        json!({ "prompt": "x", "metadata": { "a": vec![json!({ "": 0 }); 50_000] } }),
        json!({ "unknown": vec![0; 100_000] }),
    ] {
        let (code, message) = refusal(&node, &start, &body).await;
        assert_eq!(code, Code::TooLarge, "{message}");
        assert!(message.contains("over the limit of 100000"), "{message}");
    }
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_node_lists_itself_first_and_as_draining() {
    let world = World::new().await;
    let node = world
        .node_with(|config| config.node.name = Some("builder".into()))
        .await;
    let nodes: Nodes = node
        .command(&Address::new(Target::Nodes, LIST), &json!({}))
        .await
        .unwrap();
    let first = nodes.nodes.first().unwrap();
    assert_eq!((&first.id, first.name.as_str()), (node.id(), "builder"));
    assert_eq!(first.state, NodeState::Alive);

    node.services().handles.view.draining().cancel();
    let info: NodeInfo = node
        .command(&Address::node(node.id(), "info"), &json!({}))
        .await
        .unwrap();
    assert_eq!(info.state, NodeState::Draining);
    let start = Address::new(Target::Sessions, "start");
    let (code, message) = refusal(&node, &start, &json!({})).await;
    assert_eq!(code, Code::Unavailable);
    assert!(message.contains("is draining"), "{message}");
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_a_session_are_performed_by_its_host_whichever_node_is_asked() {
    let world = World::new().await;
    let (host, other) = (world.node().await, world.node().await);
    let started = host.start(world.request(&["lead"])).await;
    let session = |verb| Address::session(&started.session_id, verb);

    // The bus gives each command to one of the two nodes at random. The node that is not the host
    // passes the command on to the host.
    for _ in 0..4 {
        let agent = Address::agent(&started.orchestrator, "info");
        let info: AgentInfo = other.command(&agent, &json!({})).await.unwrap();
        assert_eq!(info.node_id.as_ref(), Some(host.id()));
    }
    let closed: SessionStateNow = other.command(&session("close"), &json!({})).await.unwrap();
    assert_eq!(closed.state, planck_common::command::SessionState::Closed);
    assert!(!host.services().handles.host.has(&started.orchestrator));
    other.leave().await;
    host.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_commands_of_agents_and_sessions_are_relayed() {
    let world = World::new().await;
    let node = world.node().await;
    let relay = Address::node(node.id(), "relay");
    let mint = NodeId::mint();
    for subject in [
        "cmd.nodes.list".to_owned(),
        format!("cmd.node.{mint}.drain"),
        "x".into(),
    ] {
        let body = json!({ "subject": subject, "body": {} });
        let (code, message) = refusal(&node, &relay, &body).await;
        assert_eq!(code, Code::BadRequest, "{subject}: {message}");
    }
    let body = json!({ "subject": "cmd.sessions.list", "body": {} });
    let listed: Value = node.command(&relay, &body).await.unwrap();
    assert_eq!(listed["sessions"], json!([]));
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_session_is_read_without_being_opened() {
    let world = World::new().await;
    let node = world.node().await;
    let started = node.start(world.request(&["lead"])).await;
    let session = node.session(&started).await;
    let takeover = &node.services().takeover;
    takeover.close(&session, "closed").await.unwrap();

    for verb in ["info", "snapshot", "abort"] {
        let address = Address::agent(&started.orchestrator, verb);
        node.command::<Value>(&address, &json!({})).await.unwrap();
        assert!(
            !node.services().handles.host.has(&started.orchestrator),
            "{verb}"
        );
    }
    let nudge = Address::agent(&started.orchestrator, "nudge");
    node.command::<Value>(&nudge, &json!({})).await.unwrap();
    assert!(
        node.services().handles.host.has(&started.orchestrator),
        "it opens"
    );
    node.leave().await;
}

/// Sends a command as a client does, to this node and no other.
async fn at_node(node: &TestNode, address: &Address) -> Value {
    let body = bytes::Bytes::from_static(b"{}");
    let origin = crate::sessions::CommandOrigin::Client;
    let reply = super::dispatch(node.services(), origin, address, &body).await;
    serde_json::from_str(&reply.unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_agent_without_a_host_is_described_and_aborted_without_being_loaded() {
    let world = World::new().await;
    let first = world.node().await;
    let started = first.start(world.request(&["lead"])).await;
    first.leave().await;
    let node = world.node().await;
    for verb in ["info", "abort"] {
        let address = Address::agent(&started.orchestrator, verb);
        assert_eq!(at_node(&node, &address).await["state"], "idle", "{verb}");
        assert!(
            !node.services().handles.host.has(&started.orchestrator),
            "{verb}"
        );
    }
    let nudge = Address::agent(&started.orchestrator, "nudge");
    at_node(&node, &nudge).await;
    assert!(node.services().handles.host.has(&started.orchestrator));
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptions_have_the_permissions_and_the_system_prompt() {
    let world = World::new().await;
    let first = world.node().await;
    let mut request = world.request(&["lead", "coder"]);
    request.permissions = Some(PermissionMode::Careful);
    let long = "ä".repeat(MOST_SYSTEM_PROMPT);
    for (member, prompt) in request
        .members
        .iter_mut()
        .flatten()
        .zip(["You lead.", long.as_str()])
    {
        member.system_prompt = Some(prompt.into());
    }
    let started = first.start(request).await;
    let session = Address::session(&started.session_id, "info");
    let check = async |node: &TestNode, why: &str| {
        let info: SessionInfo = node.command(&session, &json!({})).await.unwrap();
        let careful = |layers: &[Permissions]| {
            let mut modes = layers.iter().map(|layer| layer.mode);
            modes.any(|mode| mode == PermissionMode::Careful)
        };
        assert!(careful(&info.permissions), "{why}: {:?}", info.permissions);
        assert_eq!(info.team, None, "it has no template");
        for (agent, prompt) in info.agents.iter().zip(["You lead.", long.as_str()]) {
            let address = Address::agent(&agent.id, "info");
            let info: AgentInfo = node.command(&address, &json!({})).await.unwrap();
            assert!(careful(&info.permissions), "{why}: {:?}", info.permissions);
            let shown = info.system_prompt.unwrap();
            match shown.strip_suffix('…') {
                None => assert_eq!(shown, prompt, "{why}"),
                Some(cut) => assert!(
                    cut.len() == MOST_SYSTEM_PROMPT && prompt.starts_with(cut),
                    "{why}: {} bytes",
                    cut.len()
                ),
            }
        }
    };
    check(&first, "from the agents").await;
    first.leave().await;
    let node = world.node().await;
    check(&node, "from the records").await;
    node.leave().await;
}
