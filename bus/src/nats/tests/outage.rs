//! Tests in which the server stops and starts again while requests and publications are in
//! progress.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use planck_common::subject::{Address, Target};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::*;
use crate::{
    Delivery,
    conformance::{echo, event, next, node},
    outbox::OutboxLimits,
};

const SOON: Duration = Duration::from_secs(5);

async fn until_connected(bus: &NatsBus, up: bool) {
    let until = Instant::now() + SOON;
    while bus.is_connected() != up {
        assert!(
            Instant::now() < until,
            "still {}",
            if up { "away" } else { "connected" }
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Reads until a head arrives, and returns its seq.
async fn next_head(heard: &mut BoxStream<'static, Delivery>) -> i64 {
    loop {
        let delivery = next(heard).await;
        let value: Value = serde_json::from_slice(&delivery.payload).unwrap();
        if value["type"] == json!("head") {
            return value["seq"].as_i64().unwrap();
        }
    }
}

/// Kills the server, publishes an event about every millisecond for `away`, and restarts the
/// server. Returns the `seq` of the last event. Fails if a call blocks.
async fn publish_through(world: &mut Nats, bus: &NatsBus, away: Duration) -> i64 {
    let (began, mut seq, mut slowest) = (Instant::now(), 0, Duration::ZERO);
    world.server.kill().unwrap();
    while began.elapsed() < away {
        let call = Instant::now();
        seq += 1;
        bus.publish_event(event("s1", "a1", Some(seq), "{}"));
        bus.turn_open(&"s1".parse().unwrap(), &"a1".parse().unwrap(), true);
        slowest = slowest.max(call.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(
        slowest < Duration::from_millis(100),
        "a publication took {slowest:?}"
    );
    world.server.restart().unwrap();
    seq
}

#[tokio::test]
async fn short_outage_loses_no_event() {
    let mut world = Nats::start();
    let (ear, mouth) = (world.connect().await, world.connect().await);
    let mut heard = ear.subscribe("session.*").await.unwrap();
    let last = publish_through(&mut world, &mouth, Duration::from_millis(500)).await;
    assert_eq!(next_head(&mut heard).await, last);
    assert_eq!(mouth.dropped(), 0);
}

#[tokio::test]
async fn head_is_published_after_a_long_outage() {
    let mut world = Nats::start();
    let (ear, mouth) = (world.connect().await, world.connect().await);
    let mut heard = ear.subscribe("session.*").await.unwrap();
    let last = publish_through(&mut world, &mouth, Duration::from_secs(5)).await;
    let back = Instant::now();
    assert_eq!(next_head(&mut heard).await, last);
    assert!(
        back.elapsed() < Duration::from_secs(2),
        "{:?}",
        back.elapsed()
    );
    assert!(
        mouth.dropped() > 0,
        "publications are dropped during a long outage"
    );
    mouth.publish_event(event("s1", "a1", Some(last + 1), "{}"));
    while next_head(&mut heard).await != last + 1 {}
}

#[tokio::test]
async fn full_queue_is_dropped_and_blocks_no_caller() {
    let mut world = Nats::start();
    let limits = OutboxLimits {
        count: 1000,
        ..OutboxLimits::default()
    };
    let mouth = NatsBus::connect(NatsOptions {
        limits,
        ..world.options()
    })
    .await
    .unwrap();
    let ear = world.connect().await;
    let mut heard = ear.subscribe("session.*").await.unwrap();
    world.server.kill().unwrap();
    until_connected(&mouth, false).await;
    for seq in 1..=100_000 {
        mouth.publish_event(event("s1", "a1", Some(seq), "{}"));
    }
    assert!(mouth.dropped() >= 99_000, "{}", mouth.dropped());
    world.server.restart().unwrap();
    assert_eq!(next_head(&mut heard).await, 100_000);
}

#[tokio::test]
async fn requests_fail_fast_in_an_outage_and_work_after_it() {
    let mut world = Nats::start();
    let (server, client) = (world.connect().await, world.connect().await);
    let _serving = server.serve(&node("n1"), echo("n1")).await.unwrap();
    let list = Address::new(Target::Sessions, "list");
    world.server.kill().unwrap();
    until_connected(&client, false).await;
    let began = Instant::now();
    let error = client
        .request(&list, Bytes::new(), Duration::from_secs(30))
        .await
        .unwrap_err();
    assert!(matches!(error, BusError::Away(_)), "{error}");
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    let error = client.flush(Duration::from_secs(30)).await.unwrap_err();
    assert!(matches!(error, BusError::Away(_)), "{error}");

    world.server.restart().unwrap();
    until_connected(&client, true).await;
    until_connected(&server, true).await;
    client.request(&list, Bytes::new(), SOON).await.unwrap();
}

#[tokio::test]
async fn request_in_flight_fails_when_the_link_goes_down() {
    let mut world = Nats::start();
    let bus = Arc::new(world.connect().await);
    let silent = crate::conformance::answer(|_, _| std::future::pending());
    let _serving = bus.serve(&node("n1"), silent).await.unwrap();
    let asking = tokio::spawn({
        let bus = bus.clone();
        async move {
            bus.request(
                &Address::new(Target::Sessions, "list"),
                Bytes::new(),
                Duration::from_secs(30),
            )
            .await
        }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.server.kill().unwrap();
    let error = timeout(SOON, asking).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, BusError::Away(_)), "{error}");
}

#[tokio::test]
async fn frozen_server_counts_as_disconnected() {
    let world = Nats::start();
    let bus = world.connect().await;
    world.server.pause().unwrap();
    let error = bus
        .request(
            &Address::new(Target::Sessions, "list"),
            Bytes::new(),
            Duration::from_secs(1),
        )
        .await
        .unwrap_err();
    assert!(
        matches!(error, BusError::TimedOut { .. } | BusError::Away(_)),
        "{error}"
    );
    let began = Instant::now();
    until_connected(&bus, false).await;
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    world.server.resume().unwrap();
    until_connected(&bus, true).await;
}

/// Lets node n1 serve and leave the queue group 20 times while n2 stays. Every request must be
/// answered.
#[tokio::test]
async fn no_request_is_lost_when_nodes_leave_the_queue_under_load() {
    let world = Nats::start();
    let (one, two, client) = (
        world.connect().await,
        world.connect().await,
        world.connect().await,
    );
    let _staying = two.serve(&node("n2"), echo("n2")).await.unwrap();
    let list = Address::new(Target::Sessions, "list");
    let left = AtomicBool::new(false);
    let leave = async {
        let mut gone = Vec::new();
        for _ in 0..20 {
            let leaving = one.serve(&node("n1"), echo("n1")).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            leaving.leave_queue().await;
            gone.push(leaving);
        }
        left.store(true, Ordering::Relaxed);
    };
    let asking = futures_util::stream::iter(0..)
        .take_while(|_: &u32| std::future::ready(!left.load(Ordering::Relaxed)))
        .map(|_| client.request(&list, Bytes::new(), Duration::from_secs(5)))
        .buffer_unordered(32)
        .filter_map(|reply| async { reply.err() })
        .collect::<Vec<_>>();
    let (failed, ()) = tokio::join!(asking, leave);
    assert_eq!(failed, []);
}
