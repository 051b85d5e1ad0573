//! A stop, a close or an abort ends the model calls and all processes of the agents that it
//! concerns, and no others.

use std::time::Duration;

use anyhow::Result;
use planck_common::{
    command::{AgentState, AgentVerb, SessionState, SessionVerb},
    event::Event,
};
use planck_scripted_model::{Pace, Reply, Script, ScriptedFault};
use planck_tests::{
    caller::{agent_at, session_at},
    eventually::{eventually, within},
    world::{Backend, World},
};
use serde_json::{Value, json};

use crate::{
    processes::{Marker, escaping},
    teams::scene::{Scene, by, lead, member},
};

/// Starts a team of which one worker streams endlessly, and another has started processes that try
/// to escape.
async fn at_work(marker: &Marker) -> Result<Scene> {
    let script = Script::new()
        .rule(
            by("talker").user("work"),
            Reply::text("word ".repeat(6_000)).pace(Pace::per_second(20.0)),
        )
        .rule(by("runner").result_of("bash"), Reply::text("ran"))
        .rule(
            by("runner").user("work"),
            Reply::call(
                "bash",
                json!({ "command": escaping(marker), "timeout": 600_000 }),
            ),
        )
        .rule(
            by("lead").user("hang"),
            Reply::fault(ScriptedFault::HangBeforeHead),
        )
        .always(Reply::text("ready"));
    let members = [
        lead(&["bash"]),
        member("talker", &[]),
        member("runner", &["bash"]),
    ];
    let scene = Scene::start(script, &members, "hello").await?;
    scene.answer().await?;
    for worker in ["talker", "runner"] {
        scene
            .tell(worker, AgentVerb::Prompt, json!({ "text": "work" }))
            .await?;
    }
    eventually("the worker talks", async || {
        (scene.world.model.streams() == 1).then_some(())
    })
    .await?;
    eventually("the processes run", async || {
        (marker.count() >= 4).then_some(())
    })
    .await?;
    Ok(scene)
}

async fn nothing_is_left(scene: &Scene, marker: &Marker) -> Result<()> {
    within(Duration::from_secs(5), "the stream is closed", async || {
        (scene.world.model.streams() == 0).then_some(())
    })
    .await?;
    within(
        Duration::from_secs(5),
        "the processes are dead",
        async || (marker.count() == 0).then_some(()),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_session_ends_everything_and_can_be_reopened() -> Result<()> {
    let marker = Marker::new();
    let scene = at_work(&marker).await?;
    let session = scene.started.session_id.clone();
    let closed: Value = scene
        .world
        .caller
        .ask(&session_at(&session, SessionVerb::Close), &json!({}))
        .await?;
    assert_eq!(closed, json!({ "state": "closed" }));
    assert_eq!(marker.count(), 0, "a close is answered when all is dead");
    nothing_is_left(&scene, &marker).await?;
    let info = scene.world.caller.session(&session).await?;
    assert_eq!(info.state, SessionState::Closed);
    assert!(
        info.agents
            .iter()
            .all(|agent| agent.node_id.is_none() && agent.state == AgentState::Idle),
        "{:?}",
        info.agents
    );
    let log = scene.log().await?;
    assert_eq!(log.last().unwrap().kind, "session_closed");
    assert!(
        !log.iter().any(|event| event.kind == "worker_exit"),
        "nobody left for good"
    );

    let again = scene.world.caller.prompt(&session, "hello again").await?;
    scene.recorder.answered(&again.prompt_id).await?;
    let info = scene.world.caller.session(&session).await?;
    assert_eq!((info.state, info.agents.len()), (SessionState::Open, 3));
    assert!(
        info.agents.iter().all(|agent| agent.node_id.is_some()),
        "{:?}",
        info.agents
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_orchestrator_takes_its_team_with_it() -> Result<()> {
    let marker = Marker::new();
    let scene = at_work(&marker).await?;
    scene
        .tell("lead", AgentVerb::Stop, json!({ "reason": "that will do" }))
        .await?;
    nothing_is_left(&scene, &marker).await?;
    assert_eq!(
        scene
            .world
            .caller
            .session(&scene.started.session_id)
            .await?
            .state,
        SessionState::Closed
    );
    for worker in ["talker", "runner"] {
        let log = scene.log_of(worker).await?;
        let [.., Event::TurnEnd(end), Event::AgentStopped(stopped)] = log.as_slice() else {
            panic!("{log:?}")
        };
        assert_eq!(
            (end.outcome.name(), stopped.reason.as_str()),
            ("aborted", "that will do")
        );
    }
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_of_the_orchestrator_does_not_abort_its_workers() -> Result<()> {
    let marker = Marker::new();
    let scene = at_work(&marker).await?;
    scene
        .tell("lead", AgentVerb::Prompt, json!({ "text": "hang" }))
        .await?;
    scene.is_asked("lead", "hang").await?;
    scene.tell("lead", AgentVerb::Abort, json!({})).await?;
    for worker in ["talker", "runner"] {
        assert_ne!(
            scene.tell(worker, AgentVerb::Info, json!({})).await?["state"],
            "idle",
            "{worker}"
        );
    }
    let session = session_at(&scene.started.session_id, SessionVerb::Abort);
    let aborted: Value = scene.world.caller.ask(&session, &json!({})).await?;
    assert_eq!(
        aborted["aborted"].as_array().map(Vec::len),
        Some(2),
        "the whole session's turns: {aborted}"
    );
    assert_eq!(
        marker.count(),
        0,
        "an abort is answered when the processes are dead"
    );
    nothing_is_left(&scene, &marker).await?;
    let cut = scene.result("runner", "bash").await?;
    assert_eq!(
        (cut.error, cut.result.as_str()),
        (true, "aborted by request\nstarted\n"),
        "it keeps what it had"
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_worker_is_reported_and_does_not_come_back() -> Result<()> {
    let marker = Marker::new();
    let scene = at_work(&marker).await?;
    let runner = scene.id("runner").await?;
    let stopped = scene
        .tell("runner", AgentVerb::Stop, json!({ "reason": "not needed" }))
        .await?;
    assert_eq!(stopped, json!({ "state": "stopped" }));
    assert_eq!(marker.count(), 0);
    let is_exit = |event: &Event| matches!(event, Event::WorkerExit(exit) if exit.id == runner && exit.reason == "not needed");
    eventually("its exit is reported", async || {
        scene
            .log_of("lead")
            .await
            .ok()?
            .iter()
            .any(is_exit)
            .then_some(())
    })
    .await?;
    assert_eq!(scene.world.model.streams(), 1, "the other one goes on");
    let refusal = scene
        .world
        .caller
        .refusal(&agent_at(&runner, AgentVerb::Abort), &json!({}))
        .await?;
    assert_eq!(refusal.code, planck_common::reply::Code::NotFound);
    scene.tell("lead", AgentVerb::Stop, json!({})).await?;
    let again = scene
        .world
        .caller
        .prompt(&scene.started.session_id, "hello again")
        .await?;
    scene.recorder.answered(&again.prompt_id).await?;
    let info = scene
        .world
        .caller
        .session(&scene.started.session_id)
        .await?;
    let hosted = info
        .agents
        .iter()
        .filter(|agent| agent.node_id.is_some())
        .count();
    assert_eq!(hosted, 2, "{:?}", info.agents);
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_session_is_deleted_completely() -> Result<()> {
    let marker = Marker::new();
    let scene = at_work(&marker).await?;
    let session = scene.started.session_id.clone();
    let removed: Value = scene
        .world
        .caller
        .ask(&session_at(&session, SessionVerb::Delete), &json!({}))
        .await?;
    assert_eq!(
        (&removed["removed"]["agents"], &removed["removed"]["inputs"]),
        (&json!(3), &json!(3))
    );
    nothing_is_left(&scene, &marker).await?;
    let refusal = scene
        .world
        .caller
        .refusal(&session_at(&session, SessionVerb::Info), &json!({}))
        .await?;
    assert_eq!(refusal.code, planck_common::reply::Code::NotFound);
    scene.end().await
}

/// Checks that a node that receives SIGTERM ends the processes of its tools, and that the next node
/// continues the running turn.
async fn leaving(backend: Backend) -> Result<()> {
    let marker = Marker::new();
    let script = Script::new()
        .rule(
            by("runner").result_of("bash"),
            Reply::text("it was interrupted"),
        )
        .rule(
            by("runner").user("work"),
            Reply::call(
                "bash",
                json!({ "command": escaping(&marker), "timeout": 600_000 }),
            ),
        )
        .always(Reply::text("ready"));
    let world = World::start(backend, script).await?;
    let mut scene =
        Scene::start_on(world, &[lead(&[]), member("runner", &["bash"])], "hello").await?;
    scene.answer().await?;
    scene
        .tell("runner", AgentVerb::Prompt, json!({ "text": "work" }))
        .await?;
    eventually("the processes run", async || {
        (marker.count() >= 4).then_some(())
    })
    .await?;
    scene.node.take().unwrap().leave().await?;
    within(
        Duration::from_secs(5),
        "the processes are dead",
        async || (marker.count() == 0).then_some(()),
    )
    .await?;

    let (node, recorder) = (scene.world.node().await?, scene.world.record().await?);
    scene.node = Some(node);
    let known = |event: &Event| matches!(event, Event::TurnEnd(end) if end.message.as_deref() == Some("it was interrupted"));
    eventually("the turn continues", async || {
        scene
            .log_of("runner")
            .await
            .ok()?
            .iter()
            .any(known)
            .then_some(())
    })
    .await?;
    let ended = scene.result("runner", "bash").await?;
    assert_eq!(
        ended.result,
        "interrupted; it may or may not have taken effect"
    );
    let log = scene.log_of("runner").await?;
    assert_eq!(
        log.iter()
            .filter(|event| matches!(event, Event::TurnStart(_)))
            .count(),
        1,
        "it is the same turn"
    );
    drop(recorder);
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_leaves_open_turns_to_the_next_one() -> Result<()> {
    leaving(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_leaves_open_turns_to_the_next_one_on_postgres() -> Result<()> {
    leaving(Backend::Postgres).await
}
