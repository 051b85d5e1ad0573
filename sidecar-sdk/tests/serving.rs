//! Runs a sidecar in this process, on a real nats-server. The conformance checker tests the
//! protocol with the example. These tests cover the settings of the SDK.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

use std::{convert::Infallible, time::Duration};

use futures_util::StreamExt as _;
use planck_common::subject::Prefix;
use planck_sidecar::{Connection, Context, Error, Presence, PresenceKind, Sidecar, Tool};
use planck_tests::nats::NatsServer;
use serde_json::{Map, Value, json};
use tokio::{sync::oneshot, time::timeout};

/// The maximum time for each step. It is long because a shared machine is slow at times.
const PATIENCE: Duration = Duration::from_secs(20);

async fn echo(_: Context, args: Map<String, Value>) -> Result<String, Infallible> {
    Ok(Value::Object(args).to_string())
}

async fn forever(_: Context, _: Map<String, Value>) -> Result<String, Infallible> {
    std::future::pending().await
}

fn sidecar() -> Sidecar {
    let sidecar = Sidecar::new("echo", "1.0.0")
        .unwrap()
        .drain_timeout(Duration::from_millis(200));
    sidecar
        .tool(Tool::new("echo", "Echoes.", echo).pure())
        .tool(Tool::new("forever", "Never ends.", forever))
}

fn request(call_id: &str) -> bytes::Bytes {
    json!({"v": 1, "call_id": call_id, "tool": "echo", "args": {"a": 1}, "agent_id": "a", "session_id": "s", "team_id": "t",
        "epoch": 1, "deadline_ms": 60_000})
    .to_string()
    .into()
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_serves_under_a_prefix_and_after_an_outage_and_ends_calls_that_do_not_end() {
    let mut nats = NatsServer::start().unwrap();
    let client = async_nats::connect(nats.url()).await.unwrap();
    let mut news = client.subscribe("eu.sidecar.echo").await.unwrap();
    let connection = Connection {
        prefix: Prefix::parse("eu").unwrap(),
        ..Connection::to(nats.url())
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(sidecar().run_until(connection, async move { drop(stopped.await) }));
    let next = async |news: &mut async_nats::Subscriber| {
        let message = timeout(PATIENCE, news.next()).await.unwrap().unwrap();
        serde_json::from_slice::<Presence>(&message.payload).unwrap()
    };
    assert_eq!(next(&mut news).await.r#type, PresenceKind::Hello);

    nats.restart().unwrap();
    let answered =
        planck_tests::eventually::within(PATIENCE, "the sidecar answers again", async || {
            let reply = client
                .request("eu.tool.echo.echo", request("c"))
                .await
                .ok()?;
            serde_json::from_slice::<Value>(&reply.payload).ok()
        });
    assert_eq!(answered.await.unwrap(), json!({"v": 1, "ok": "{\"a\":1}"}));

    let inbox = client.new_inbox();
    let mut replies = client.subscribe(inbox.clone()).await.unwrap();
    client
        .publish_with_reply("eu.tool.echo.forever", inbox, request("forever"))
        .await
        .unwrap();
    // The client library receives messages in order, so the call to `forever` has arrived when this
    // call is answered.
    client
        .request("eu.tool.echo.echo", request("d"))
        .await
        .unwrap();
    drop(stop);
    let reply = timeout(PATIENCE, replies.next()).await.unwrap().unwrap();
    assert!(
        String::from_utf8_lossy(&reply.payload).contains("cancelled"),
        "{reply:?}"
    );
    timeout(PATIENCE, serving).await.unwrap().unwrap().unwrap();
    let gone = client
        .request("eu.tool.echo.echo", request("e"))
        .await
        .unwrap_err();
    assert_eq!(gone.kind(), async_nats::RequestErrorKind::NoResponders);
}

#[tokio::test]
async fn sidecar_that_cannot_serve_fails_with_the_reason() {
    let nats = NatsServer::start_with("authorization { user: u, password: p }").unwrap();
    let refused = sidecar()
        .run_until(Connection::to(nats.url()), std::future::pending())
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, Error::Connection(text) if text.ends_with("authorization violation; check NATS_CREDS, NATS_NKEY, or the user in NATS_URL")),
        "{refused}"
    );
    let empty = Sidecar::new("empty", "1.0.0")
        .unwrap()
        .run_until(Connection::to(nats.url()), async {})
        .await
        .unwrap_err();
    assert!(matches!(empty, Error::Nothing));
    async fn anything(_: Context, _: Value) -> Result<String, Infallible> {
        Ok(String::new())
    }
    let shapeless = sidecar()
        .tool(Tool::new("any", "Anything.", anything))
        .run_until(Connection::to(nats.url()), async {})
        .await;
    assert!(matches!(shapeless, Err(Error::Arguments(tool)) if tool == "any"));
    let twice = sidecar()
        .tool(Tool::new("echo", "Again.", echo))
        .run_until(Connection::to(nats.url()), async {})
        .await;
    assert_eq!(
        twice.unwrap_err().to_string(),
        "two tools are called `echo`"
    );
}
