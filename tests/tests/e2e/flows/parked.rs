//! A parked agent is loaded again when an input arrives for it.

use anyhow::Result;
use planck_common::command::AgentState;
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    eventually::eventually,
    world::{Backend, World},
};
use serde_json::json;

/// Checks that the agent is parked after each turn, and still answers with its whole history.
async fn answers(backend: Backend) -> Result<()> {
    let script = Script::new()
        .rule(When::any().result_of("bash"), "I looked.")
        .rule(
            When::any().last("look"),
            Reply::call("bash", json!({ "command": "echo seen" })),
        )
        .always("As I said.");
    let world = World::start(backend, script).await?;
    let node = world
        .node_with(&[
            ("PLANCK_NODE_PARK_AFTER", "200ms"),
            ("RUST_LOG", "planck=debug"),
        ])
        .await?;
    let recorder = world.record().await?;
    let mut start = world.solo();
    start["prompt"] = "look".into();
    let started = world.caller.start(&start).await?;
    recorder
        .answered(started.prompt_id.as_ref().unwrap())
        .await?;
    let times = || {
        node.log()
            .lines()
            .filter(|line| line.contains("\"parked\""))
            .count()
    };
    for (round, text) in ["and then?", "and now?"].into_iter().enumerate() {
        eventually("the agent is out of the way", async || {
            (times() > 2 * round).then_some(())
        })
        .await?;
        assert_eq!(
            world.caller.session(&started.session_id).await?.agents[0].state,
            AgentState::Idle
        );
        assert_eq!(
            world.caller.agent(&started.orchestrator).await?.turn,
            u32::try_from(round)? + 1
        );
        // The request before this woke the agent without an input.
        eventually("it is out of the way again", async || {
            (times() > 2 * round + 1).then_some(())
        })
        .await?;
        let prompted = world.caller.prompt(&started.session_id, text).await?;
        recorder.answered(&prompted.prompt_id).await?;
    }
    let last = world
        .model
        .requests()
        .pop()
        .and_then(|request| request.asked)
        .expect("a request");
    let said = format!("{:?}", last.messages);
    let mut from = 0;
    for words in [
        "look",
        "bash",
        "seen",
        "I looked.",
        "and then?",
        "As I said.",
        "and now?",
    ] {
        from += said[from..]
            .find(words)
            .unwrap_or_else(|| panic!("no {words} after {from} in {said}"));
    }
    assert_eq!(world.caller.agent(&started.orchestrator).await?.turn, 3);
    super::events::assert_dense(&world.caller.log(&started.session_id, 1).await?);
    world.check_model()?;
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_agent_answers_with_its_whole_history_on_sqlite() -> Result<()> {
    answers(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on SQLite is always run: make test-all"]
async fn a_parked_agent_answers_with_its_whole_history_on_postgres() -> Result<()> {
    answers(Backend::Postgres).await
}
