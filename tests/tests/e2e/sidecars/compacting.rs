//! Compactors of sidecars. Valid summaries are used. If a compactor fails or its summary is
//! invalid, the local compactor is used and the session continues.

use std::time::Duration;

use anyhow::Result;
use async_nats::service::ServiceExt as _;
use futures_util::StreamExt as _;
use planck_common::event::Event;
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    nats::NatsServer,
    world::{Backend, World},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::serving::found;
use crate::teams::scene::{Scene, by, member};

const SETTINGS: &[(&str, &str)] = &[
    ("PLANCK_MODELS_ENTRIES_TEST_PROVIDER", "scripted"),
    ("PLANCK_COMPACTION_KEEP_RECENT", "3"),
];

/// A function that returns a compactor's answer to a request, or `None` for a compactor that never
/// answers.
type Answer = fn(&Value) -> Option<String>;

/// Starts a bare service with one compactor.
async fn compactor(world: &World, answer: Answer) -> Result<JoinHandle<()>> {
    let client = async_nats::connect(world.nats.url()).await?;
    let metadata = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    };
    let service = client
        .service_builder()
        .metadata(metadata(&[("planck", "1")]))
        .start("hostile", "1.0.0")
        .await;
    let service = service.map_err(|error| anyhow::anyhow!(error))?;
    let endpoint = service
        .endpoint_builder()
        .name("short")
        .queue_group("hostile");
    let endpoint = endpoint.metadata(metadata(&[("kind", "compactor"), ("timeout_ms", "1500")]));
    let mut requests = endpoint
        .add("compact.hostile.short")
        .await
        .map_err(|error| anyhow::anyhow!(error))?;
    Ok(tokio::spawn(async move {
        let _in_force = service;
        while let Some(request) = requests.next().await {
            let asked = serde_json::from_slice(&request.message.payload).unwrap();
            if let Some(answer) = answer(&asked) {
                request.respond(Ok(answer.into())).await.unwrap();
            }
        }
    }))
}

fn compact(summary: &str, keep_from: &Value) -> Option<String> {
    Some(json!({"v": 1, "compact": {"summary": summary, "keep_from": keep_from}}).to_string())
}

/// Returns the id of the message that is `back` places from the end.
fn from_end(asked: &Value, back: usize) -> &Value {
    let messages = asked["messages"].as_array().unwrap();
    &messages[messages.len() - back]["id"]
}

/// Sends 14 prompts, which fill the window several times. Returns which compactors were used, and
/// the warnings.
async fn talk(answer: Answer) -> Result<(Vec<String>, Vec<String>)> {
    talk_on(NatsServer::start()?, "4000", "blah ".repeat(300), answer).await
}

/// Like [`talk`], on this server, with a window of this many tokens and answers with this text.
async fn talk_on(
    nats: NatsServer,
    window: &str,
    blah: String,
    answer: Answer,
) -> Result<(Vec<String>, Vec<String>)> {
    let script = Script::new()
        .rule(
            When::any().system("summar"),
            Reply::text("They spoke of numbers."),
        )
        .rounds(
            by("talker"),
            [
                Reply::call("bash", json!({"command": "echo ok"})),
                Reply::text(blah),
            ],
        );
    let world = World::start_on(nats, Backend::Sqlite, script).await?;
    let service = compactor(&world, answer).await?;
    let node = world
        .node_with(
            &[
                SETTINGS,
                &[("PLANCK_MODELS_ENTRIES_TEST_CONTEXT_WINDOW", window)],
            ]
            .concat(),
        )
        .await?;
    found(&world, "hostile", 1).await?;
    let recorder = world.record().await?;
    let mut talker = member("talker", &["bash"]);
    talker["compactor"] = "hostile.short".into();
    let started = world
        .caller
        .start(&json!({"dir": world.dir(), "members": [talker]}))
        .await?;
    let mut scene = Scene {
        world,
        node: Some(node),
        recorder,
        started,
    };
    for n in 0..14 {
        let prompted = scene
            .world
            .caller
            .prompt(&scene.started.session_id, &format!("number {n}"))
            .await?;
        scene.started.prompt_id = Some(prompted.prompt_id);
        scene.answer().await?;
    }
    let log = scene.log_of("talker").await?;
    let by = log.iter().filter_map(|event| {
        if let Event::Compacted(compacted) = event {
            Some(compacted.by.clone())
        } else {
            None
        }
    });
    let warned = log.iter().filter_map(|event| {
        if let Event::Warning(warning) = event {
            Some(warning.message.clone())
        } else {
            None
        }
    });
    let told = (by.collect(), warned.collect());
    scene.end().await?;
    service.abort();
    Ok(told)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_compactor_is_used() -> Result<()> {
    let (by, warned) = talk(|asked| compact("They spoke.", from_end(asked, 1))).await?;
    assert!(
        !by.is_empty() && by.iter().all(|by| by == "hostile.short"),
        "{by:?} {warned:?}"
    );
    assert_eq!(warned, Vec::<String>::new());
    Ok(())
}

/// Checks that the local compactor is used every time, and that the log says why.
async fn falls_back(answer: Answer, why: &str) -> Result<()> {
    fell_back(talk(answer).await?, why)
}

fn fell_back((by, warned): (Vec<String>, Vec<String>), why: &str) -> Result<()> {
    assert!(
        !by.is_empty() && by.iter().all(|by| by == "local"),
        "{by:?} {warned:?}"
    );
    assert!(
        warned.iter().any(|warning| warning.contains(why)),
        "{warned:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_compactor_replaces_one_that_never_answers() -> Result<()> {
    falls_back(|_| None, "it timed out: no answer within 1500 ms").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_compactor_replaces_one_that_is_too_slow() -> Result<()> {
    let late = |asked: &Value| {
        std::thread::sleep(Duration::from_secs(2));
        compact("They spoke.", from_end(asked, 1))
    };
    falls_back(late, "it timed out").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_compactor_replaces_one_that_answers_garbage() -> Result<()> {
    falls_back(
        |_| Some(r#"{"v":1,"compact":"yes"}"#.into()),
        "its answer cannot be read",
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_compactor_replaces_one_that_makes_the_context_longer() -> Result<()> {
    falls_back(
        |asked| compact(&"very long ".repeat(10_000), from_end(asked, 1)),
        "would not be smaller",
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_compactor_replaces_one_that_hardly_shortens_the_context() -> Result<()> {
    falls_back(
        |asked| compact("Hm.", &asked["messages"][1]["id"]),
        "too full",
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_compactor_replaces_one_that_separates_a_call_from_its_result() -> Result<()> {
    let splits = |asked: &Value| {
        let messages = asked["messages"].as_array().unwrap();
        let result = messages
            .iter()
            .rev()
            .find(|message| message["role"] == "tool_result")
            .unwrap();
        compact("They spoke.", &result["id"])
    };
    falls_back(splits, "would part a call from its result").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_compactor_replaces_one_that_keeps_from_an_unknown_message() -> Result<()> {
    falls_back(
        |_| compact("They spoke.", &json!(99_999)),
        "is not in the context",
    )
    .await
}

/// Each answer has 120 kB, so when the window is full, its content is twice as large as NATS can
/// carry.
#[tokio::test(flavor = "multi_thread")]
async fn the_local_compactor_replaces_one_if_nats_cannot_carry_the_history() -> Result<()> {
    let nats = NatsServer::start_with("max_payload: 600000")?;
    let told = talk_on(nats, "380000", "blah ".repeat(24_000), |asked| {
        compact("They spoke.", from_end(asked, 1))
    })
    .await?;
    fell_back(told, "too large: the history has")
}
