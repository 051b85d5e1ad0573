//! Tests of operations that the server refuses and of features that the server lacks. An error must
//! name the operation or the feature at once.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use planck_common::subject::{Address, Target};
use planck_tests::nats::free_port;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::Instant,
};

use super::*;
use crate::conformance::{echo, node};

/// The user `node` may use all subjects that the tests need. The user `reader` may only list and
/// observe sessions and ask for JetStream's description of the account.
const USERS: &str = r#"
authorization { users: [
  { user: node, password: secret, permissions: {
      publish: ["cmd.>", "agent.*", "session.*", "$JS.API.>"], subscribe: ["cmd.>", "_INBOX.node.>", "$SRV.>"],
      allow_responses: { max: 8, expires: "1m" } } }
  { user: reader, password: secret, permissions: {
      publish: ["cmd.sessions.list", "$JS.API.INFO"], subscribe: ["session.*", "_INBOX.reader.>"] } }
] }
"#;

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn forbidden_request_is_denied_at_once() {
    let world = Nats::with(USERS);
    let (node_bus, reader) = (
        world.connect_as("node").await.unwrap(),
        world.connect_as("reader").await.unwrap(),
    );
    let _serving = node_bus.serve(&node("n1"), echo("n1")).await.unwrap();
    reader
        .request(
            &Address::new(Target::Sessions, "list"),
            Bytes::new(),
            PATIENCE,
        )
        .await
        .unwrap();

    let began = Instant::now();
    let error = reader
        .request(&Address::agent("a1", "stop"), Bytes::new(), PATIENCE)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, BusError::Denied(text) if text.contains("cmd.agent.a1.stop")),
        "{error}"
    );
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn forbidden_subscription_is_denied() {
    let world = Nats::with(USERS);
    let reader = world.connect_as("reader").await.unwrap();
    let _allowed = reader.subscribe("session.*").await.unwrap();
    let error = reader.subscribe("agent.*").await.err().unwrap();
    assert!(
        matches!(&error, BusError::Denied(text) if text.contains("agent.*")),
        "{error}"
    );
}

#[tokio::test]
async fn refused_jetstream_is_reported_as_a_refused_permission() {
    let world = Nats::with(
        "authorization { users: [ { user: u, password: secret, permissions: { publish: [\"x\"], subscribe: [\"_INBOX.u.>\"] } } ] }",
    );
    let client = world.connect_as("u").await.unwrap();
    let began = Instant::now();
    let error = client.check_jetstream().await.unwrap_err();
    assert!(
        matches!(&error, BusError::Denied(text) if text.starts_with("permission denied for publish to `$JS.API.INFO`")),
        "{error}"
    );
    assert!(began.elapsed() < Duration::from_secs(2));
}

/// A request may find the inbox that the server refused for the one before it.
#[tokio::test(flavor = "multi_thread")]
async fn every_request_of_an_observer_is_denied() {
    let world = Nats::with(
        "authorization { users: [ { user: o, password: secret, permissions: { publish: { deny: \">\" }, subscribe: [\"session.*\"] } } ] }",
    );
    let observer = world.connect_as("o").await.unwrap();
    let nodes = Address::new(Target::Nodes, "list");
    for number in 0..500 {
        let asked = observer.request(&nodes, "{}".into(), PATIENCE).await;
        let error = asked.unwrap_err();
        assert!(matches!(&error, BusError::Denied(_)), "{number}: {error}");
    }
}

#[tokio::test]
async fn observer_needs_no_right_to_publish() {
    let world = Nats::with(
        r#"authorization { users: [
            { user: speaker, password: secret }
            { user: o, password: secret, permissions: { publish: { deny: ">" }, subscribe: ["session.*"] } }
        ] }"#,
    );
    let (observer, speaker) = (
        world.connect_as("o").await.unwrap(),
        world.connect_as("speaker").await.unwrap(),
    );
    let mut seen = observer.observe("session.*").await.unwrap();
    let told = tokio::time::timeout(PATIENCE, async {
        loop {
            speaker.publish("session.s1".into(), "x".into());
            if let Ok(told) = tokio::time::timeout(Duration::from_millis(50), seen.next()).await {
                return told;
            }
        }
    });
    assert_eq!(told.await.unwrap().unwrap().unwrap().subject, "session.s1");
    let mut denied = observer.observe("agent.*").await.unwrap();
    let error = denied.next().await.unwrap().unwrap_err();
    assert!(
        matches!(&error, BusError::Denied(text) if text.starts_with("permission denied for subscribe to `agent.*`")),
        "{error}"
    );
    assert!(denied.next().await.is_none());
    assert!(
        !world.server.log().contains("Publish Violation"),
        "the observer tried to publish"
    );
}

#[tokio::test]
async fn refused_endpoint_fails_the_start() {
    let world = Nats::with(
        r#"authorization { users: [ { user: node, password: secret, permissions: {
            publish: ["cmd.>"], subscribe: ["cmd.node.*.*", "cmd.sessions.*", "_INBOX.node.>", "$SRV.>"] } } ] }"#,
    );
    let node_bus = world.connect_as("node").await.unwrap();
    let error = node_bus.serve(&node("n1"), echo("n1")).await.err().unwrap();
    assert!(
        matches!(&error, BusError::Denied(text) if text.contains("permission denied for subscribe to `cmd.")),
        "{error}"
    );
}

#[tokio::test]
async fn request_whose_reply_subject_is_no_inbox_is_not_performed() {
    let world = Nats::start();
    let (node_bus, caller) = (world.connect().await, world.connect().await);
    let _serving = node_bus.serve(&node("n1"), echo("n1")).await.unwrap();
    let raw = async_nats::connect(world.server.url()).await.unwrap();
    let mut everything = raw.subscribe(">").await.unwrap();
    let list = "cmd.sessions.list";
    for to in [
        "cmd.session.vic.delete",
        "$KV.planck_registry.store",
        "session.s1",
        "_GR_.aaaaaa.bbbbbb.cmd.session.vic.delete",
    ] {
        raw.publish_with_reply(list, to, Bytes::new())
            .await
            .unwrap();
        raw.publish_with_reply("$SRV.INFO", to, Bytes::new())
            .await
            .unwrap();
    }
    raw.flush().await.unwrap();
    // The node takes requests in order: when this one is answered, the others have been refused.
    caller
        .request(
            &Address::new(Target::Sessions, "list"),
            Bytes::new(),
            PATIENCE,
        )
        .await
        .unwrap();
    let mut subjects = Vec::new();
    while let Ok(Some(message)) =
        tokio::time::timeout(Duration::from_millis(300), everything.next()).await
    {
        subjects.push(message.subject.to_string());
    }
    let answers: Vec<&String> = subjects
        .iter()
        .filter(|to| *to != list && *to != "$SRV.INFO" && !to.starts_with("_INBOX"))
        .collect();
    assert!(answers.is_empty(), "{answers:?}");
}

#[tokio::test]
async fn unknown_user_is_a_clear_error() {
    let world = Nats::with(USERS);
    let error = world.connect_as("nobody").await.err().unwrap();
    assert!(
        matches!(&error, BusError::Denied(text) if text.contains("credentials")),
        "{error}"
    );
}

#[tokio::test]
async fn missing_server_is_a_clear_error() {
    let url = format!("nats://127.0.0.1:{}", free_port().unwrap());
    let began = Instant::now();
    let error = NatsBus::connect(NatsOptions::new(url.clone()))
        .await
        .err()
        .unwrap();
    assert!(
        matches!(&error, BusError::Away(text) if text.contains(&url) && text.contains("nats-server -js")),
        "{error}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn missing_jetstream_is_a_clear_error() {
    let world = Nats::with("accounts { plain { users: [ { user: u, password: secret } ] } }");
    let client = world.connect_as("u").await.unwrap();
    let error = client.check_jetstream().await.unwrap_err();
    assert!(
        matches!(&error, BusError::Unfit(text) if text.contains("JetStream") && text.contains("-js")),
        "{error}"
    );
}

/// Greets clients as a server of an old version does.
async fn old_server(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let info = r#"{"server_id":"x","version":"2.11.4","host":"127.0.0.1","port":1,"max_payload":1048576,"headers":true}"#;
        stream
            .write_all(format!("INFO {info}\r\n").as_bytes())
            .await
            .unwrap();
        let mut said = String::new();
        while !said.contains("PING") {
            let mut bytes = Vec::new();
            stream.read_buf(&mut bytes).await.unwrap();
            said.push_str(&String::from_utf8_lossy(&bytes));
        }
        stream.write_all(b"PONG\r\n").await.unwrap();
    }
}

#[tokio::test]
async fn old_server_is_a_clear_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nats://someone:secret@{}", listener.local_addr().unwrap());
    let server = tokio::spawn(old_server(listener));
    let error = NatsBus::connect(NatsOptions::new(url)).await.err().unwrap();
    assert!(
        matches!(&error, BusError::Unfit(text) if text.contains("2.11.4") && text.contains("2.12")),
        "{error}"
    );
    server.abort();
}

#[tokio::test]
async fn error_contains_no_secret() {
    let url = format!("nats://someone:secret@127.0.0.1:{}", free_port().unwrap());
    let error = NatsBus::connect(NatsOptions::new(url)).await.err().unwrap();
    assert!(!error.to_string().contains("secret"), "{error}");
}
