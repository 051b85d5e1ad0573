//! A node is killed in the middle of a call between agents. The next node finds what the call
//! created, and does not create it again.

use anyhow::Result;
use planck_common::{
    command::AgentVerb,
    event::{Event, InputKind},
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    eventually::eventually,
    world::{Backend, World},
};
use serde_json::json;

use super::scene::{Scene, by, lead, member};

async fn a_question_in_the_middle(backend: Backend) -> Result<()> {
    let script = Script::new()
        .rounds(
            by("lead"),
            [
                Reply::call(
                    "ask_agent",
                    json!({ "agent": "helper", "question": "how far?" }),
                ),
                Reply::text("it says {{result:ask_agent}}"),
            ],
        )
        .rule(by("helper"), Reply::text("ten miles").delay_ms(3000));
    let world = World::start(backend, script).await?;
    let mut scene = Scene::start_on(world, &[lead(&[]), member("helper", &[])], "go").await?;
    scene.is_asked("helper", "how far?").await?;
    scene.again().await?;
    assert_eq!(scene.answer().await?, "it says ten miles");
    let turns = |log: &[Event], of: InputKind| {
        let starts = log
            .iter()
            .filter(|event| matches!(event, Event::TurnStart(start) if start.inputs[0].kind == of));
        starts.count()
    };
    assert_eq!(turns(&scene.log_of("lead").await?, InputKind::Prompt), 1);
    assert_eq!(
        turns(&scene.log_of("helper").await?, InputKind::Question),
        1
    );
    let log = scene.log_of("lead").await?;
    let starts = log
        .iter()
        .filter(|event| matches!(event, Event::ToolStart(start) if start.name == "ask_agent"));
    assert_eq!(starts.count(), 1, "it is the same call");
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_still_waited_for_after_a_kill() -> Result<()> {
    a_question_in_the_middle(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_still_waited_for_after_a_kill_on_postgres() -> Result<()> {
    a_question_in_the_middle(Backend::Postgres).await
}

/// The node is killed before the round of calls that created a task and a worker is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_and_a_worker_are_found_and_not_created_again() -> Result<()> {
    let born = json!({ "type": "worker", "system_prompt": "You are worker.", "task": "sweep" });
    let calls = Reply::call("spawn_agent", born)
        .and_call(
            "delegate_task",
            json!({ "agent": "helper", "task": "wash" }),
        )
        .and_call(
            "ask_agent",
            json!({ "agent": "oracle", "question": "when?" }),
        );
    let script = Script::new()
        .rule(by("lead").user("task_unanswered"), Reply::text("I see"))
        .rounds(by("lead"), [calls, Reply::text("all is arranged")])
        .rule(by("oracle"), Reply::text("soon").delay_ms(3000))
        .always(Reply::text("I did it"));
    let members = [lead(&[]), member("helper", &[]), member("oracle", &[])];
    let mut scene = Scene::start(script, &members, "go").await?;
    for (name, text) in [("worker", "sweep"), ("helper", "wash"), ("oracle", "when?")] {
        scene.is_asked(name, text).await?;
    }
    let worker = scene.id("worker").await?;
    scene.again().await?;
    scene.answer().await?;
    let idle = async || {
        let info = scene
            .tell("worker", AgentVerb::Info, json!({}))
            .await
            .ok()?;
        (info["state"] == "idle").then_some(())
    };
    eventually("the worker is done", idle).await?;
    let session = scene
        .world
        .caller
        .session(&scene.started.session_id)
        .await?;
    assert_eq!(
        session.agents.len(),
        4,
        "nobody was made twice: {:?}",
        session.agents
    );
    assert_eq!(scene.id("worker").await?, worker);
    for name in ["worker", "helper"] {
        let log = scene.log_of(name).await?;
        assert_eq!(
            log.iter()
                .filter(|event| matches!(event, Event::TurnStart(_)))
                .count(),
            1,
            "{name} has one task"
        );
    }
    let spawned = scene
        .log_of("lead")
        .await?
        .into_iter()
        .filter(|event| matches!(event, Event::WorkerSpawned(_)))
        .count();
    assert_eq!(spawned, 1);
    scene.end().await
}
