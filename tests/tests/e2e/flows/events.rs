//! Subscribers receive exactly the events that are in the log.

use anyhow::Result;
use planck_common::envelope::Envelope;
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    eventually::eventually,
    world::{Backend, World},
};
use serde_json::{Value, json};

fn writes_a_file() -> Script {
    Script::new()
        .rule(
            When::any().result_of("write"),
            Reply::text("It is written."),
        )
        .always(
            Reply::text("I write it.")
                .and_call("write", json!({ "path": "note.txt", "content": "hello" })),
        )
}

/// Checks that `seq` has no gaps, and that each event's `prev` is the same agent's previous event.
pub fn assert_dense(log: &[Envelope]) {
    let mut last = std::collections::HashMap::new();
    for (event, expected) in log.iter().zip(1..) {
        assert_eq!(event.seq, Some(expected), "{event:?}");
        let before = last.insert(event.agent_id.clone(), expected);
        assert_eq!(event.prev, Some(before.unwrap_or(0)), "{event:?}");
    }
}

async fn are_the_same_on_both_subjects_and_in_the_log(backend: Backend) -> Result<()> {
    let world = World::start(backend, writes_a_file()).await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let mut start = world.solo();
    start["prompt"] = "write a note".into();
    let started = world.caller.start(&start).await?;
    recorder
        .answered(&started.prompt_id.clone().unwrap())
        .await?;
    assert_eq!(
        std::fs::read_to_string(world.dir().join("note.txt"))?,
        "hello"
    );

    let (on_agent, on_session) = (
        format!("agent.{}", started.orchestrator),
        format!("session.{}", started.session_id),
    );
    let events = |subject: &str| -> Vec<Value> {
        let values = recorder
            .on(subject)
            .into_iter()
            .map(|payload| serde_json::from_slice(&payload).unwrap());
        values
            .filter(|event: &Value| event["type"] != "head")
            .collect()
    };
    eventually("both subjects carried the same events", async || {
        (events(&on_agent) == events(&on_session)).then_some(())
    })
    .await?;

    let log = world.caller.log(&started.session_id, 1).await?;
    assert_dense(&log);
    let durable: Vec<Value> = events(&on_session)
        .into_iter()
        .filter(|event| event.get("seq").is_some())
        .collect();
    let replayed: Vec<Value> = log
        .iter()
        .map(|event| serde_json::to_value(event).unwrap())
        .collect();
    assert_eq!(durable, replayed);
    world.check_model()?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_the_same_on_both_subjects_and_in_the_log_of_sqlite() -> Result<()> {
    are_the_same_on_both_subjects_and_in_the_log(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on SQLite is always run: make test-all"]
async fn events_are_the_same_on_both_subjects_and_in_the_log_of_postgres() -> Result<()> {
    are_the_same_on_both_subjects_and_in_the_log(Backend::Postgres).await
}
