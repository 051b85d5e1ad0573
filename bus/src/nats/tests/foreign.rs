//! Tests with other programs on the same subjects. A JetStream stream that records commands
//! acknowledges them before the node replies.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use planck_common::{
    reply::{Code, Refusal, encode},
    subject::{Address, Target},
};
use tokio::time::Instant;

use super::*;
use crate::{
    conformance::{answer, node},
    telemetry::{self, TelemetryHook},
};

#[tokio::test]
async fn acknowledgement_of_a_stream_is_not_taken_for_the_reply() {
    let world = Nats::start();
    let (server, client) = (world.connect().await, world.connect().await);
    let jetstream = async_nats::jetstream::new(client.link.client.clone());
    let subjects = vec!["cmd.>".to_owned()];
    let stream = async_nats::jetstream::stream::Config {
        name: "ALL".into(),
        subjects,
        ..Default::default()
    };
    jetstream.create_stream(stream).await.unwrap();
    let slow = answer(|_, _| async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(r#""ours""#.into())
    });
    let _serving = server.serve(&node("n1"), slow).await.unwrap();
    let list = Address::new(Target::Sessions, "list");
    let reply = client
        .request(&list, Bytes::new(), Duration::from_secs(5))
        .await
        .unwrap();
    assert_eq!(reply, r#"{"v":1,"ok":"ours"}"#);
}

#[tokio::test]
async fn refusal_is_in_headers_and_body() {
    let world = Nats::start();
    let bus = world.connect().await;
    let refusing = answer(|_, _| async { Err(Refusal::new(Code::NotFound, "no agent\n`a1`: ä")) });
    let _serving = bus.serve(&node("n1"), refusing).await.unwrap();
    let reply = bus
        .link
        .client
        .request("cmd.agent.a1.info", Bytes::new())
        .await
        .unwrap();
    let headers = reply.headers.unwrap();
    assert_eq!(
        headers.get("Nats-Service-Error-Code").unwrap().as_str(),
        "404"
    );
    assert_eq!(
        headers.get("Nats-Service-Error").unwrap().as_str(),
        "no agent `a1`:"
    );
    assert_eq!(
        reply.payload,
        encode(&Err::<(), _>(Refusal::new(
            Code::NotFound,
            "no agent\n`a1`: ä"
        )))
    );
}

#[tokio::test]
async fn trace_is_sent_with_a_request() {
    let world = Nats::start();
    let bus = world.connect().await;
    let mut requests = bus
        .link
        .client
        .subscribe("cmd.sessions.list")
        .await
        .unwrap();
    assert!(telemetry::install(Traced), "no other test installs one");
    let list = Address::new(Target::Sessions, "list");
    let asking = bus.request(&list, Bytes::new(), Duration::from_millis(500));
    let (request, timed_out) = tokio::join!(requests.next(), asking);
    timed_out.unwrap_err();
    let headers = request.unwrap().headers.unwrap();
    assert_eq!(headers.get("traceparent").unwrap().as_str(), TRACE);
}

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

struct Traced;

impl TelemetryHook for Traced {
    fn traceparent(&self) -> Option<String> {
        Some(TRACE.into())
    }
}

#[tokio::test]
async fn time_out_leaves_no_subscription_behind() {
    let world = Nats::start();
    let bus = world.connect().await;
    let _serving = bus
        .serve(&node("n1"), answer(|_, _| std::future::pending()))
        .await
        .unwrap();
    let before = subscriptions(&world);
    for _ in 0..50 {
        let list = Address::new(Target::Sessions, "list");
        bus.request(&list, Bytes::new(), Duration::from_millis(5))
            .await
            .unwrap_err();
    }
    let until = Instant::now() + Duration::from_secs(5);
    while subscriptions(&world) > before {
        assert!(
            Instant::now() < until,
            "{} subscriptions instead of {before}",
            subscriptions(&world)
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
