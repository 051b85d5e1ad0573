//! The examples in every language, as separate processes that serve a real node.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use planck_common::{envelope::Envelope, event::Event, subject};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    eventually::eventually,
    example::Example,
    nats::NatsServer,
    world::{Backend, World},
};
use serde_json::{Value, json};
use tokio::process::Child;

use super::serving::{found, gather};
use crate::teams::scene::{Scene, by, member};

/// Settings of a node for a context window that is so large that a message too large for NATS still
/// fits into it.
const LARGE_WINDOW: &[(&str, &str)] = &[
    ("PLANCK_MODELS_ENTRIES_TEST_PROVIDER", "scripted"),
    ("PLANCK_MODELS_ENTRIES_TEST_CONTEXT_WINDOW", "1000000"),
];

/// Starts a NATS server, `instances` processes of the example, and a node. When the node has found
/// all instances, starts a session of one agent that has `tool`. Returns the processes too.
async fn scene(
    example: &Example,
    instances: u32,
    tool: &str,
    script: Script,
) -> Result<(Scene, Vec<Child>)> {
    scene_on(NatsServer::start()?, example, instances, tool, script).await
}

async fn scene_on(
    nats: NatsServer,
    example: &Example,
    instances: u32,
    tool: &str,
    script: Script,
) -> Result<(Scene, Vec<Child>)> {
    let world = World::start_on(nats, Backend::Sqlite, script).await?;
    let running = (0..instances)
        .map(|_| example.start(&world.nats.url()))
        .collect::<Result<Vec<_>>>()?;
    let node = world.node_with(LARGE_WINDOW).await?;
    found(&world, example.name, instances).await?;
    let recorder = world.record().await?;
    let started = world
        .caller
        .start(&json!({"dir": world.dir(), "members": [member("talker", &[tool])], "prompt": "go"}))
        .await?;
    Ok((
        Scene {
            world,
            node: Some(node),
            recorder,
            started,
        },
        running,
    ))
}

/// Ends the sidecars and then the scene. In the other order the sidecars would look for their
/// server.
async fn leave(scene: Scene, running: Vec<Child>) -> Result<()> {
    drop(running);
    scene.end().await
}

async fn answers(example: Example, tool: &str, args: Value, answer: &str) -> Result<()> {
    let said = Reply::text(format!("it said {{{{result:{tool}}}}}"));
    let (scene, running) = scene(
        &example,
        1,
        tool,
        Script::new().rounds(by("talker"), [Reply::call(tool, args), said]),
    )
    .await?;
    assert_eq!(scene.answer().await?, format!("it said {answer}"));
    leave(scene, running).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_in_rust_answers_an_agent() -> Result<()> {
    answers(
        Example::rust()?,
        "repeat",
        json!({"text": "ab", "times": 2}),
        "abab",
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_in_python_answers_an_agent() -> Result<()> {
    answers(
        Example::python()?,
        "repeat",
        json!({"text": "ab", "times": 2}),
        "abab",
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_in_bare_python_answers_an_agent() -> Result<()> {
    answers(
        Example::bare_python()?,
        "shout",
        json!({"text": "hi"}),
        "HI",
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Node.js or Go, and their packages: make test-all"]
async fn a_sidecar_in_typescript_answers_an_agent() -> Result<()> {
    match Example::typescript()? {
        Some(example) => {
            answers(example, "repeat", json!({"text": "ab", "times": 2}), "abab").await
        }
        None => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Node.js or Go, and their packages: make test-all"]
async fn a_sidecar_in_go_answers_an_agent() -> Result<()> {
    match Example::go()? {
        Some(example) => answers(example, "shout", json!({"text": "hi"}), "HI").await,
        None => Ok(()),
    }
}

/// Returns how many calls each instance has answered, by its own statistics.
async fn shares(scene: &Scene, example: &Example, instances: usize) -> Result<Vec<u64>> {
    let told = gather(&scene.world, &subject::stats(example.name), instances).await?;
    let requests = |endpoint: &Value| endpoint["num_requests"].as_u64().unwrap();
    Ok(told
        .iter()
        .map(|stats| {
            stats["endpoints"]
                .as_array()
                .unwrap()
                .iter()
                .map(requests)
                .sum()
        })
        .collect())
}

async fn share(example: Example) -> Result<()> {
    const CALLS: i32 = 30;
    let call = |n: i32| json!({"text": "a", "times": n});
    let calls = (1..CALLS).fold(Reply::call("repeat", call(0)), |calls, n| {
        calls.and_call("repeat", call(n))
    });
    let (scene, running) = scene(
        &example,
        2,
        "repeat",
        Script::new().rounds(by("talker"), [calls, Reply::text("done")]),
    )
    .await?;
    assert_eq!(scene.answer().await?, "done");
    let ends = scene.results("talker", "repeat").await?;
    assert!(
        ends.len() == CALLS as usize && ends.iter().all(|end| !end.error),
        "{ends:?}"
    );
    let shares = shares(&scene, &example, 2).await?;
    assert!(
        shares.iter().sum::<u64>() == CALLS as u64 && shares.iter().all(|share| *share > 0),
        "{shares:?}"
    );
    leave(scene, running).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_in_rust_share_the_calls() -> Result<()> {
    share(Example::rust()?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_in_python_share_the_calls() -> Result<()> {
    share(Example::python()?).await
}

/// Kills one of two instances. Checks that each call of the killed instance is reported as having
/// an unknown outcome, and that each call of the other instance is done.
async fn killed(example: Example) -> Result<()> {
    const CALLS: i32 = 16;
    let args = |n: i32| json!({"seconds": 6.0 + f64::from(n) / 100.0, "timeout_ms": 4000});
    let calls = (1..CALLS).fold(Reply::call("countdown", args(0)), |calls, n| {
        calls.and_call("countdown", args(n))
    });
    let script = Script::new().rounds(by("talker"), [calls, Reply::text("done")]);
    let (scene, mut running) = scene(&example, 2, "countdown", script).await?;
    eventually("all calls make progress", async || {
        let events = scene
            .recorder
            .events(&format!("session.{}", scene.started.session_id));
        let calls = events
            .iter()
            .filter_map(|envelope| match envelope.event()?.ok()? {
                Event::ToolProgress(progress) => Some(progress.call_id.to_string()),
                _ => None,
            });
        (calls.collect::<BTreeSet<_>>().len() == CALLS as usize).then_some(())
    })
    .await?;
    running.pop().context("no instance")?.kill().await?;
    assert_eq!(scene.answer().await?, "done");
    let ends = scene.results("talker", "countdown").await?;
    let done = ends
        .iter()
        .filter(|end| !end.error && end.result == "lift-off")
        .count();
    let open = ends
        .iter()
        .filter(|end| end.error && end.result.contains("may or may not have taken effect"))
        .count();
    assert!(
        done > 0 && open > 0 && done + open == CALLS as usize,
        "{ends:?}"
    );
    leave(scene, running).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_of_a_killed_instance_in_rust_is_reported() -> Result<()> {
    killed(Example::rust()?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_of_a_killed_instance_in_python_is_reported() -> Result<()> {
    killed(Example::python()?).await
}

/// Starts a server that can carry a page of events, but little more.
fn small_nats() -> Result<NatsServer> {
    NatsServer::start_with("max_payload: 600000")
}

const TOO_LARGE: usize = 620_000;

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_too_large_is_an_error() -> Result<()> {
    for example in [Example::rust()?, Example::python()?] {
        let calls = [
            Reply::call("repeat", json!({"text": "a", "times": TOO_LARGE})),
            Reply::text("done"),
        ];
        let (scene, running) = scene_on(
            small_nats()?,
            &example,
            1,
            "repeat",
            Script::new().rounds(by("talker"), calls),
        )
        .await?;
        assert_eq!(scene.answer().await?, "done");
        let end = scene.result("talker", "repeat").await?;
        assert!(
            end.error && end.result.contains("and NATS carries at most"),
            "{}: {end:?}",
            example.name
        );
        leave(scene, running).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_too_large_is_not_made() -> Result<()> {
    let long = "a".repeat(TOO_LARGE);
    let calls = [
        Reply::call("repeat", json!({"text": long, "times": 1})),
        Reply::text("done"),
    ];
    let (scene, running) = scene_on(
        small_nats()?,
        &Example::rust()?,
        1,
        "repeat",
        Script::new().rounds(by("talker"), calls),
    )
    .await?;
    assert_eq!(scene.answer().await?, "done");
    // The end of the call is read from its published event. The log also holds the call itself,
    // which is too large for a reply on this server.
    let ended = |envelope: &Envelope| matches!(envelope.event(), Some(Ok(Event::ToolEnd(_))));
    let Some(Ok(Event::ToolEnd(end))) = scene.recorder.until("the call ends", ended).await?.event()
    else {
        panic!("no end")
    };
    assert!(
        end.error
            && end.result.starts_with("too large: the call has 620")
            && end.result.ends_with("Nothing was done"),
        "{}",
        end.result
    );
    leave(scene, running).await
}
