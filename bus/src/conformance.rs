//! The cases that every bus passes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a case fails by a panic"
)]

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::join_all, stream::BoxStream};
use planck_common::{
    AgentId, NodeId, Seq, SessionId,
    reply::{Code, Refusal, ReplyError, decode},
    subject::{Address, Target},
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{Bus, BusError, CommandHandler, Delivery, Published};

const SOON: Duration = Duration::from_secs(5);

/// A bus to which the cases connect any number of times.
#[async_trait]
pub trait World: Send + Sync {
    async fn end(&self) -> Arc<dyn Bus>;
}

/// Defines one test per case. Each test runs its case on a new world, made by `$world`.
#[doc(hidden)]
#[macro_export]
macro_rules! bus_suite {
    ($world:expr) => {
        $crate::bus_suite! { $world,
            subscription_is_in_force_when_returned, event_goes_to_both_subjects, head_follows_the_last_event, large_event_is_truncated,
            flush_does_not_wait_for_the_window, request_is_answered, request_without_responders_fails, too_large_request_is_refused, stream_without_responders_ends,
            too_large_reply_is_refused, unknown_command_is_refused, panic_is_answered_with_internal, request_over_the_limit_is_unavailable,
            node_answers_requests_addressed_to_it, node_that_left_the_queue_gets_no_shared_request, dropped_guard_stops_the_service, slow_observer_does_not_slow_publishing
        }
    };
    ($world:expr, $($case:ident),+) => {
        $(#[tokio::test]
        async fn $case() {
            $crate::conformance::$case(&$world).await;
        })+
    };
}
pub use crate::bus_suite as suite;

pub fn node(id: &str) -> NodeId {
    NodeId::parse(id).unwrap()
}

pub fn event(session: &str, agent: &str, seq: Option<Seq>, payload: impl Into<Bytes>) -> Published {
    let (session_id, agent_id) = (
        SessionId::parse(session).unwrap(),
        AgentId::parse(agent).unwrap(),
    );
    Published {
        session_id,
        agent_id,
        seq,
        payload: payload.into(),
    }
}

pub fn answer<F, R>(f: F) -> CommandHandler
where
    F: Fn(Address, Bytes) -> R + Send + Sync + 'static,
    R: Future<Output = Result<String, Refusal>> + Send + 'static,
{
    Arc::new(move |address, body| f(address, body).boxed())
}

/// Returns a handler that answers with `name`, and with the address and body of the request.
pub fn echo(name: &'static str) -> CommandHandler {
    answer(move |address, body| async move {
        Ok(
            json!({"by": name, "to": address.to_string(), "body": String::from_utf8_lossy(&body)})
                .to_string(),
        )
    })
}

pub async fn next(stream: &mut BoxStream<'static, Delivery>) -> Delivery {
    timeout(SOON, stream.next())
        .await
        .expect("nothing came")
        .expect("the subscription ended")
}

pub async fn next_json(stream: &mut BoxStream<'static, Delivery>) -> Value {
    serde_json::from_slice(&next(stream).await.payload).unwrap()
}

async fn ask(bus: &dyn Bus, to: &Address) -> Result<Value, Refusal> {
    let reply = bus
        .request(to, Bytes::from_static(b"{}"), SOON)
        .await
        .expect("no reply");
    decode(&reply).map_err(|error| match error {
        ReplyError::Refused(refusal) => refusal,
        ReplyError::Foreign | ReplyError::Malformed(_) => panic!("{error}"),
    })
}

fn list() -> Address {
    Address::new(Target::Sessions, "list")
}

pub async fn subscription_is_in_force_when_returned(world: &impl World) {
    let (ear, mouth) = (world.end().await, world.end().await);
    for n in 0..100 {
        let mut heard = ear.subscribe("node.*").await.unwrap();
        mouth.publish(format!("node.n{n}"), Bytes::from(n.to_string()));
        mouth.flush(SOON).await.unwrap();
        let delivery = next(&mut heard).await;
        assert_eq!(
            (delivery.subject, delivery.payload),
            (format!("node.n{n}"), Bytes::from(n.to_string()))
        );
    }
}

pub async fn event_goes_to_both_subjects(world: &impl World) {
    let (ear, mouth) = (world.end().await, world.end().await);
    let mut agent = ear.subscribe("agent.*").await.unwrap();
    let mut session = ear.subscribe("session.s1").await.unwrap();
    for n in 0..1000 {
        mouth.publish_event(event("s1", "a1", None, n.to_string()));
        mouth.publish_event(event("s2", "a2", None, "other"));
    }
    for n in 0..1000 {
        assert_eq!(next(&mut session).await.payload, n.to_string());
        let (first, second) = (next(&mut agent).await, next(&mut agent).await);
        assert_eq!(
            (first.subject.as_str(), first.payload),
            ("agent.a1", Bytes::from(n.to_string()))
        );
        assert_eq!(second.subject, "agent.a2");
    }
}

pub async fn head_follows_the_last_event(world: &impl World) {
    let (ear, mouth) = (world.end().await, world.end().await);
    let mut session = ear.subscribe("session.s1").await.unwrap();
    mouth.publish_event(event("s1", "a1", Some(7), "{}"));
    let began = Instant::now();
    assert_eq!(next(&mut session).await.payload, "{}");
    assert_eq!(
        next_json(&mut session).await,
        json!({"v": 1, "type": "head", "session_id": "s1", "seq": 7})
    );
    assert!(
        began.elapsed() > Duration::from_millis(900),
        "{:?}",
        began.elapsed()
    );
}

pub async fn large_event_is_truncated(world: &impl World) {
    let (ear, mouth) = (world.end().await, world.end().await);
    let mut session = ear.subscribe("session.s1").await.unwrap();
    let large =
        json!({"v": 1, "type": "tool_end", "data": {"result": "x".repeat(9_000_000)}}).to_string();
    mouth.publish_event(event("s1", "a1", Some(7), large));
    let heard = next_json(&mut session).await;
    assert_eq!(
        (&heard["truncated"], &heard["type"]),
        (&json!(true), &json!("tool_end"))
    );
    assert_eq!(heard["data"]["result"].as_str().unwrap().len(), 8192);
}

pub async fn flush_does_not_wait_for_the_window(world: &impl World) {
    let bus = world.end().await;
    bus.flush(SOON).await.unwrap();
    let mut heard = bus.subscribe("cluster.drain").await.unwrap();
    bus.publish("cluster.drain".into(), Bytes::from_static(b"{}"));
    bus.flush(SOON).await.unwrap();
    assert_eq!(next(&mut heard).await.subject, "cluster.drain");
}

pub async fn request_is_answered(world: &impl World) {
    let (server, client) = (world.end().await, world.end().await);
    let _serving = server.serve(&node("n1"), echo("n1")).await.unwrap();
    for address in [
        Address::agent("a1", "prompt"),
        Address::session("bold-oak", "events"),
        list(),
        Address::node("n1", "info"),
    ] {
        let reply = ask(&*client, &address).await.unwrap();
        assert_eq!(
            reply,
            json!({"by": "n1", "to": address.to_string(), "body": "{}"})
        );
    }
    let refusing = answer(|_, _| async { Err(Refusal::new(Code::Busy, "it is\nbusy: ä")) });
    let _other = server.serve(&node("n2"), refusing).await.unwrap();
    let refusal = ask(&*client, &Address::node("n2", "info"))
        .await
        .unwrap_err();
    assert_eq!(refusal, Refusal::new(Code::Busy, "it is\nbusy: ä"));
}

pub async fn request_without_responders_fails(world: &impl World) {
    let bus = world.end().await;
    let error = bus.request(&list(), Bytes::new(), SOON).await.unwrap_err();
    assert_eq!(error, BusError::NoResponders("cmd.sessions.list".into()));

    let silent = answer(|_, _| std::future::pending());
    let _serving = bus.serve(&node("n1"), silent).await.unwrap();
    let after = Duration::from_millis(300);
    let error = bus.request(&list(), Bytes::new(), after).await.unwrap_err();
    assert_eq!(
        error,
        BusError::TimedOut {
            subject: "cmd.sessions.list".into(),
            after
        }
    );
}

pub async fn stream_without_responders_ends(world: &impl World) {
    let bus = world.end().await;
    let first = match bus.request_stream("tool.nobody.none", Bytes::new()).await {
        Ok(mut heard) => timeout(SOON, heard.next())
            .await
            .expect("nothing came")
            .expect("the conversation ended without an item")
            .map(drop),
        Err(error) => Err(error),
    };
    assert_eq!(
        first,
        Err(BusError::NoResponders("tool.nobody.none".into()))
    );
    assert_eq!(
        bus.services(Some("nobody"), Duration::from_millis(100))
            .await,
        Ok(Vec::new())
    );
}

pub async fn too_large_request_is_refused(world: &impl World) {
    let bus = world.end().await;
    let _serving = bus.serve(&node("n1"), echo("n1")).await.unwrap();
    let limit = 8 * 1024 * 1024;
    let error = bus
        .request(&list(), vec![b'x'; limit + 1].into(), SOON)
        .await
        .unwrap_err();
    assert_eq!(
        error,
        BusError::TooLarge {
            size: limit + 1,
            limit
        }
    );
}

pub async fn too_large_reply_is_refused(world: &impl World) {
    let bus = world.end().await;
    let huge = answer(|_, _| async { Ok(json!("x".repeat(8 * 1024 * 1024)).to_string()) });
    let _serving = bus.serve(&node("n1"), huge).await.unwrap();
    assert_eq!(ask(&*bus, &list()).await.unwrap_err().code, Code::TooLarge);
}

pub async fn unknown_command_is_refused(world: &impl World) {
    let bus = world.end().await;
    let refusing = answer(|address, _| async move {
        Err(Refusal::bad_request(format!(
            "unknown verb `{}`",
            address.verb
        )))
    });
    let _serving = bus.serve(&node("n1"), refusing).await.unwrap();
    for address in [
        Address::agent("a1", "dance"),
        Address::new(Target::Nodes, "x"),
        Address::session("UPPER", "info"),
    ] {
        assert_eq!(
            ask(&*bus, &address).await.unwrap_err().code,
            Code::BadRequest
        );
    }
}

pub async fn panic_is_answered_with_internal(world: &impl World) {
    let bus = world.end().await;
    let _serving = bus
        .serve(&node("n1"), answer(|_, _| async { panic!("a bug") }))
        .await
        .unwrap();
    assert_eq!(ask(&*bus, &list()).await.unwrap_err().code, Code::Internal);
}

pub async fn request_over_the_limit_is_unavailable(world: &impl World) {
    let bus = world.end().await;
    let _serving = bus
        .serve(&node("n1"), answer(|_, _| std::future::pending()))
        .await
        .unwrap();
    let (address, patience) = (list(), Duration::from_secs(2));
    let asked = join_all((0..260).map(|_| bus.request(&address, Bytes::new(), patience))).await;
    let refused: Vec<_> = asked.into_iter().filter_map(Result::ok).collect();
    assert_eq!(refused.len(), 4, "256 run");
    for reply in refused {
        assert!(
            matches!(decode::<Value>(&reply), Err(ReplyError::Refused(refusal)) if refusal.code == Code::Unavailable)
        );
    }
}

async fn who(bus: &dyn Bus, to: &Address) -> String {
    ask(bus, to).await.unwrap()["by"]
        .as_str()
        .unwrap()
        .to_owned()
}

pub async fn node_answers_requests_addressed_to_it(world: &impl World) {
    let (one, two, client) = (world.end().await, world.end().await, world.end().await);
    let _one = one.serve(&node("n1"), echo("n1")).await.unwrap();
    let _two = two.serve(&node("n2"), echo("n2")).await.unwrap();
    assert_eq!(who(&*client, &Address::node("n1", "info")).await, "n1");
    assert_eq!(who(&*client, &Address::node("n2", "info")).await, "n2");
    let mut answered = HashSet::new();
    for _ in 0..100 {
        answered.insert(who(&*client, &list()).await);
    }
    assert_eq!(answered.len(), 2, "each node answers its share of commands");
}

pub async fn node_that_left_the_queue_gets_no_shared_request(world: &impl World) {
    let (one, two, client) = (world.end().await, world.end().await, world.end().await);
    let leaving = one.serve(&node("n1"), echo("n1")).await.unwrap();
    let staying = two.serve(&node("n2"), echo("n2")).await.unwrap();
    leaving.leave_queue().await;
    for _ in 0..50 {
        assert_eq!(who(&*client, &list()).await, "n2");
    }
    assert_eq!(who(&*client, &Address::node("n1", "info")).await, "n1");
    leaving.stop().await;
    staying.stop().await;
    for address in [list(), Address::node("n1", "info")] {
        let error = client
            .request(&address, Bytes::new(), SOON)
            .await
            .unwrap_err();
        assert!(matches!(error, BusError::NoResponders(_)), "{error}");
    }
}

pub async fn dropped_guard_stops_the_service(world: &impl World) {
    let bus = world.end().await;
    let serving = bus.serve(&node("n1"), echo("n1")).await.unwrap();
    assert_eq!(who(&*bus, &list()).await, "n1");
    drop(serving);
    let until = Instant::now() + SOON;
    while bus.request(&list(), Bytes::new(), SOON).await.is_ok() {
        assert!(Instant::now() < until, "the service still answers");
    }
}

pub async fn slow_observer_does_not_slow_publishing(world: &impl World) {
    let (slow, ear, mouth) = (world.end().await, world.end().await, world.end().await);
    let _never_read = slow.subscribe("session.*").await.unwrap();
    let mut heard = ear.subscribe("session.*").await.unwrap();
    let reader = tokio::spawn(async move {
        for n in 0..50_000 {
            let delivery = next(&mut heard).await;
            assert_eq!(delivery.payload, n.to_string());
        }
    });
    let mut blocked = Duration::ZERO;
    for n in 0..50_000 {
        let event = event("s1", "a1", None, n.to_string());
        let began = Instant::now();
        mouth.publish_event(event);
        blocked += began.elapsed();
        if n % 1000 == 0 {
            tokio::task::yield_now().await;
        }
    }
    assert!(
        blocked < Duration::from_secs(2),
        "publishing blocked for {blocked:?}"
    );
    reader.await.unwrap();
}
