//! Tests with two nodes on a memory bus. One sends requests, and the other gives predefined
//! answers.

use std::sync::Mutex;

use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use planck_common::{
    InputId, SessionId,
    registry::{NodeRecord, NodeStanding},
    subject::Target,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use super::*;
use crate::bus::{MemoryBus, MemoryHub, ServiceGuard};
use planck_cluster::{census::Census, registry::placeholder_record};
use planck_store::sqlite::{SqliteOptions, SqliteStore};

const SOON: Duration = Duration::from_secs(5);

type Played = BoxFuture<'static, Result<String, Refusal>>;

struct Scene {
    peers: Peers,
    peer: NodeId,
    census: Arc<Census>,
    /// The requests that the second node received, each with its verb and body.
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    _serving: Box<dyn ServiceGuard>,
    _folder: TempDir,
}

impl Scene {
    async fn new(answer: impl Fn() -> Played + Send + Sync + 'static) -> Self {
        let folder = TempDir::new().unwrap();
        let (own, peer) = (NodeId::mint(), NodeId::mint());
        let store = SqliteStore::open(SqliteOptions::new(folder.path()), &own);
        let store = Arc::new(store.await.unwrap());
        let census = Arc::new(Census::default());
        let hub = Arc::new(MemoryHub::default());
        let asked: Arc<Mutex<Vec<_>>> = Arc::default();
        let heard = Arc::clone(&asked);
        let play = move |address: Address, body: Bytes| {
            assert!(matches!(address.target, Target::Node(_)), "{address}");
            let body = serde_json::from_slice(&body).unwrap();
            heard.lock().unwrap().push((address.verb, body));
            answer()
        };
        let serving = MemoryBus::new(Arc::clone(&hub))
            .serve(&peer, Arc::new(play))
            .await
            .unwrap();
        let liveness = Liveness::new(own, store, Some(Arc::clone(&census)));
        Self {
            peers: Peers::new(Arc::new(MemoryBus::new(hub)), Arc::new(liveness)),
            peer,
            census,
            asked,
            _serving: serving,
            _folder: folder,
        }
    }

    fn asked(&self) -> Vec<(String, Value)> {
        self.asked.lock().unwrap().clone()
    }
}

fn says(answer: Result<&str, Refusal>) -> impl Fn() -> Played + Send + Sync + 'static {
    let answer = answer.map(str::to_owned);
    move || std::future::ready(answer.clone()).boxed()
}

fn wake() -> Wake {
    Wake {
        session_id: SessionId::mint(),
        agent_id: AgentId::mint(),
        input_id: Some(InputId::mint()),
        answered: None,
        exits: false,
    }
}

fn dead() -> NodeRecord {
    placeholder_record("other", NodeStanding::Dead)
}

#[tokio::test]
async fn wake_reaches_the_node_it_names() {
    let scene = Scene::new(says(Ok("{}"))).await;
    let wake = wake();
    scene.peers.wake(&scene.peer, &wake).await.unwrap();
    let sent = serde_json::to_value(&wake).unwrap();
    assert_eq!(scene.asked(), [("wake".to_owned(), sent)]);
}

#[tokio::test]
async fn command_of_an_agent_is_relayed_with_its_subject() {
    let scene = Scene::new(says(Ok(r#"{"state":"idle"}"#))).await;
    let (agent, body) = (AgentId::mint(), json!({ "reason": "enough" }));
    let answer: Value = scene
        .peers
        .command(&scene.peer, (&agent, AgentVerb::Abort), &body, SOON)
        .await
        .unwrap();
    assert_eq!(answer, json!({ "state": "idle" }));
    let relayed = json!({ "subject": format!("cmd.agent.{agent}.abort"), "body": body });
    assert_eq!(scene.asked(), [("relay".to_owned(), relayed)]);
}

#[tokio::test]
async fn empty_body_is_relayed_as_an_object_and_a_broken_one_is_refused_here() {
    let scene = Scene::new(says(Ok("{}"))).await;
    let address = Address::session(&SessionId::mint(), "info");
    let ask = async |body: &[u8]| {
        let answer: Result<Value, Refusal> =
            scene.peers.relay(&scene.peer, &address, body, SOON).await;
        answer
    };
    ask(b"").await.unwrap();
    assert_eq!(scene.asked()[0].1["body"], json!({}));
    let refusal = ask(b"{broken").await.unwrap_err();
    assert_eq!(refusal.code, Code::BadRequest, "{refusal}");
    assert_eq!(scene.asked().len(), 1);
}

#[tokio::test]
async fn refusal_of_the_other_node_is_passed_on_unchanged() {
    let refusal = Refusal::new(Code::Limit, "it hosts 8 agents, its capacity");
    let scene = Scene::new(says(Err(refusal.clone()))).await;
    let answer = scene.peers.wake(&scene.peer, &wake()).await;
    assert_eq!(answer.unwrap_err(), refusal);
}

#[tokio::test]
async fn errors_name_an_absent_node_and_one_with_a_malformed_reply() {
    let scene = Scene::new(says(Ok("[]"))).await;
    let nobody = NodeId::mint();
    for (node, words) in [
        (&nobody, "does not answer"),
        (&scene.peer, "cannot read the reply"),
    ] {
        let order = StopTeam {
            team_id: planck_common::TeamId::mint(),
            incarnation: 1,
            reason: planck_common::registry::TeamEnd::Closed,
            log_reason: None,
        };
        let answer = scene.peers.stop_team(node, &order, SOON).await;
        let refusal = answer.unwrap_err();
        assert!(
            refusal.retryable
                && refusal.message.contains(words)
                && refusal.message.contains(node.as_str()),
            "{refusal}"
        );
    }
}

#[tokio::test]
async fn request_to_a_node_that_dies_ends_early() {
    let scene = Scene::new(|| std::future::pending().boxed()).await;
    tokio::time::pause();
    let (began, wake) = (Instant::now(), wake());
    let dies = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        scene.census.recorded(&scene.peer, 1, dead());
    };
    let patience = Duration::from_secs(600);
    let asks = scene.peers.ask::<Empty>(
        &scene.peer,
        NodeVerb::Wake,
        &wake,
        patience,
        Code::Unavailable,
    );
    let (answer, ()) = tokio::join!(asks, dies);
    let refusal = answer.unwrap_err();
    assert!(refusal.message.contains("it may have done"), "{refusal}");
    assert_eq!(began.elapsed().as_secs(), 1);
}

#[tokio::test]
async fn relayed_command_that_may_have_been_done_is_retried_only_if_it_is_idempotent() {
    let (session, agent) = (SessionId::mint(), AgentId::mint());
    let silent = Scene::new(|| std::future::pending().boxed()).await;
    let gone = Scene::new(|| std::future::pending().boxed()).await;
    gone.census.recorded(&gone.peer, 1, dead());
    let garbled = Scene::new(says(Ok("7"))).await;
    tokio::time::pause();
    let cases = [
        (Address::session(&session, "rewind"), Code::OutcomeUnknown),
        (Address::session(&session, "delete"), Code::OutcomeUnknown),
        (Address::session(&session, "abort"), Code::OutcomeUnknown),
        (Address::session(&session, "close"), Code::Unavailable),
        (Address::agent(&agent, "checkpoint"), Code::OutcomeUnknown),
        (Address::agent(&agent, "stop"), Code::OutcomeUnknown),
        (Address::agent(&agent, "add_tool"), Code::Unavailable),
        (Address::new(Target::Sessions, "start"), Code::Unavailable),
    ];
    for (address, code) in &cases {
        for (scene, patience) in [(&silent, SOON), (&gone, 100 * SOON), (&garbled, SOON)] {
            let relay = scene
                .peers
                .relay::<Empty>(&scene.peer, address, b"", patience);
            let refusal = relay.await.unwrap_err();
            assert_eq!(refusal.code, *code, "{address}: {refusal}");
        }
    }
}

#[tokio::test]
async fn relayed_command_that_reached_no_node_may_be_sent_again() {
    let scene = Scene::new(says(Ok("{}"))).await;
    let (nobody, address) = (
        NodeId::mint(),
        Address::session(&SessionId::mint(), "rewind"),
    );
    let relay = scene.peers.relay::<Empty>(&nobody, &address, b"", SOON);
    let refusal = relay.await.unwrap_err();
    assert_eq!(refusal.code, Code::Unavailable, "{refusal}");
}
