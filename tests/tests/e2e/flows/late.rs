//! A client that joins late misses nothing if it subscribes, pages and requests a snapshot.

use std::collections::BTreeMap;

use anyhow::Result;
use planck_common::{
    envelope::Envelope,
    event::{Delta, Event},
    message::{MessageRole, Part},
};
use planck_scripted_model::{Pace, Reply, Script};
use planck_tests::{
    attached::Attached,
    eventually::eventually,
    nats::NatsServer,
    recorder::ends,
    world::{Backend, World},
};
use serde_json::Value;

use super::{events::assert_dense, prompts::streaming};

fn words() -> String {
    (0..300).map(|n| format!("wörd-{n} ")).collect()
}

fn slow() -> Script {
    Script::new().always(
        Reply::new()
            .think("Let me think about it. ")
            .say(words())
            .pace(Pace::per_second(40.0).chunk(12)),
    )
}

/// Appends a delta to the text of its part, without the characters that the text already has.
/// Panics if the delta leaves a gap. `parts` begins with the snapshot's parts.
fn join(parts: &mut BTreeMap<usize, String>, delta: &Delta) {
    let text = parts.entry(delta.part).or_default();
    let known = text.chars().count();
    if delta.offset <= known {
        text.extend(delta.text.chars().skip(known - delta.offset));
    } else {
        panic!("a gap before {delta:?}: only {known} characters are known");
    }
}

async fn misses_nothing(backend: Backend) -> Result<()> {
    let world = World::start(backend, slow()).await?;
    let node = world.node().await?;
    let mut start = world.solo();
    start["prompt"] = "tell me".into();
    let started = world.caller.start(&start).await?;
    let (session, lead) = (started.session_id.as_str(), started.orchestrator.as_str());
    streaming(&world, lead).await?;

    let recorder = world.record().await?;
    let mut log = world.caller.log(session, 1).await?;
    let snapshot = world.caller.snapshot(lead).await?;
    let running = snapshot.running.expect("it still streams");
    let mut parts: BTreeMap<usize, String> = running
        .parts
        .iter()
        .map(|part| (part.part, part.text.clone()))
        .collect();
    recorder
        .answered(started.prompt_id.as_ref().unwrap())
        .await?;

    let events = recorder.events(&format!("session.{session}"));
    let fits = |event: &&Envelope| (event.turn, event.request) == (running.turn, running.request);
    for event in events.iter().filter(fits) {
        if let Some(Ok(Event::TextDelta(delta) | Event::ThinkingDelta(delta))) = event.event() {
            join(&mut parts, &delta);
        }
    }
    let last = log.last().and_then(|event| event.seq);
    log.extend(events.into_iter().filter(|event| event.seq > last));
    assert_dense(&log);
    let saved = world.caller.messages(session, None).await?;
    let reply = saved
        .iter()
        .find(|message| message.role == MessageRole::Assistant)
        .expect("a saved reply");
    let texts = reply.content.iter().map(|part| match part {
        Part::Text { text, .. } | Part::Thinking { text, .. } => text.clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        parts.into_values().collect::<Vec<_>>(),
        texts.collect::<Vec<_>>()
    );
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_subscriber_misses_nothing_on_sqlite() -> Result<()> {
    misses_nothing(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on SQLite is always run: make test-all"]
async fn a_late_subscriber_misses_nothing_on_postgres() -> Result<()> {
    misses_nothing(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
async fn attaching_in_the_middle_of_a_turn_shows_everything() -> Result<()> {
    let world = World::start(Backend::Sqlite, slow()).await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let mut start = world.solo();
    start["prompt"] = "tell me".into();
    let started = world.caller.start(&start).await?;
    streaming(&world, &started.orchestrator).await?;
    let attached = Attached::start(&world, &started.name)?;
    recorder
        .answered(started.prompt_id.as_ref().unwrap())
        .await?;
    let log = world.caller.log(&started.session_id, 1).await?;
    let told = attached
        .caught_up(log.last().and_then(|event| event.seq).unwrap())
        .await?;
    let value = |events: &[Envelope]| -> Vec<Value> {
        events
            .iter()
            .map(|event| serde_json::to_value(event).unwrap())
            .collect()
    };
    assert_eq!(value(&told), value(&log));
    attached.leave().await?;
    node.leave().await
}

/// A reader can read past a row that does not fit into any reply.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_over_the_servers_limit_is_returned_truncated() -> Result<()> {
    let script = Script::new().always(Reply::text("word ".repeat(60_000)));
    let nats = NatsServer::start_with("max_payload: 200000")?;
    let world = World::start_on(nats, Backend::Sqlite, script).await?;
    let node = world.node().await?;
    let mut start = world.solo();
    start["prompt"] = "tell me".into();
    let started = world.caller.start(&start).await?;
    let attached = Attached::start(&world, &started.name)?;
    let prompt = started.prompt_id.as_ref().unwrap();
    let log = eventually("the whole log is read", async || {
        let log = world.caller.log(&started.session_id, 1).await.ok()?;
        log.iter().any(|event| ends(event, prompt)).then_some(log)
    });
    let log = log.await?;
    assert_dense(&log);
    let cut: Vec<&str> = log
        .iter()
        .filter(|event| event.truncated)
        .map(|event| event.kind.as_str())
        .collect();
    assert_eq!(cut, ["message", "turn_end"]);
    assert_dense(
        &attached
            .caught_up(log.last().and_then(|event| event.seq).unwrap())
            .await?,
    );
    attached.leave().await?;
    node.leave().await
}
