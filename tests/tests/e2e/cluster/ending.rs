//! A team over several nodes ends with its orchestrator, and ends completely even if a node is
//! killed meanwhile.

use std::time::Duration;

use anyhow::Result;
use planck_common::{
    NodeId,
    command::{AgentState, AgentVerb, NodeVerb, SessionState, SessionVerb},
    event::Event,
    subject::Address,
};
use planck_scripted_model::{Pace, Reply, Script};
use planck_tests::{
    caller::{agent_at, session_at},
    eventually::{eventually, within},
    world::Backend,
};
use serde_json::{Value, json};

use super::field::{Team, ThreeNodes, lead_at, placed};
use crate::{
    processes::{Marker, escaping},
    teams::scene::by,
};

/// How long peers may take to find out that a node is dead, and to act on it.
const FOUND_OUT: Duration = Duration::from_secs(90);

/// Starts a lead on `a`, a worker on `b` that streams endlessly, and a worker on `c` that has
/// started processes that try to escape.
async fn at_work(backend: Backend, marker: &Marker) -> Result<Team> {
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
        .always(Reply::text("ready"));
    let members = [
        lead_at("a", &[]),
        placed("talker", "b", &[]),
        placed("runner", "c", &["bash"]),
    ];
    let team = ThreeNodes::start(backend, script)
        .await?
        .team(&members, "hello")
        .await?;
    team.scene.answer().await?;
    for worker in ["talker", "runner"] {
        team.scene
            .tell(worker, AgentVerb::Prompt, json!({ "text": "work" }))
            .await?;
    }
    eventually("the worker talks", async || {
        (team.scene.world.model.streams() == 1).then_some(())
    })
    .await?;
    eventually("the processes run", async || {
        (marker.count() >= 4).then_some(())
    })
    .await?;
    Ok(team)
}

async fn orchestrator_stops(backend: Backend) -> Result<()> {
    let marker = Marker::new();
    let team = at_work(backend, &marker).await?;
    team.scene
        .tell("lead", AgentVerb::Stop, json!({ "reason": "that will do" }))
        .await?;
    assert_eq!(marker.count(), 0, "a stop is answered when all is dead");
    within(
        Duration::from_secs(10),
        "the stream is closed",
        async || (team.scene.world.model.streams() == 0).then_some(()),
    )
    .await?;
    let info = team
        .scene
        .world
        .caller
        .session(&team.scene.started.session_id)
        .await?;
    assert_eq!(info.state, SessionState::Closed);
    assert!(
        info.agents
            .iter()
            .all(|agent| agent.node_id.is_none() && agent.state == AgentState::Idle),
        "{:?}",
        info.agents
    );
    for worker in ["talker", "runner"] {
        let log = team.scene.log_of(worker).await?;
        let [.., Event::TurnEnd(end), Event::AgentStopped(stopped)] = log.as_slice() else {
            panic!("{log:?}")
        };
        assert_eq!(
            (end.outcome.name(), stopped.reason.as_str()),
            ("aborted", "that will do")
        );
    }
    let log = team.scene.log().await?;
    assert_eq!(log.last().unwrap().kind, "session_closed");
    assert!(
        !log.iter().any(|event| event.kind == "worker_exit"),
        "nobody left for good"
    );
    team.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_orchestrator_stops_its_team_over_nodes_on_postgres() -> Result<()> {
    orchestrator_stops(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on Postgres is always run: make test-all"]
async fn a_stopped_orchestrator_stops_its_team_over_nodes_on_sqlite() -> Result<()> {
    orchestrator_stops(Backend::Sqlite).await
}

/// When a node dies, its peers send `stop_team` to the nodes that host members of its teams. Such a
/// node drops the members, and writes nothing for them.
#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_dropped_leave_no_process_and_no_row() -> Result<()> {
    let marker = Marker::new();
    let team = at_work(Backend::Postgres, &marker).await?;
    let stop = async |node: &NodeId, incarnation: i64| -> Result<Value> {
        let order = json!({ "team_id": team.scene.started.team_id, "incarnation": incarnation, "reason": "node_dead" });
        team.scene
            .world
            .caller
            .ask(&Address::node(node, NodeVerb::StopTeam.name()), &order)
            .await
    };
    let runner = team.node("c").id();
    assert_eq!(
        stop(runner, 0).await?,
        json!({ "agents": 0 }),
        "it is of a later incarnation"
    );
    assert!(marker.count() >= 4);
    let before = team.scene.log_of("runner").await?.len();
    assert_eq!(stop(runner, 1).await?, json!({ "agents": 1 }));
    assert_eq!(
        marker.count(),
        0,
        "it is answered when the processes are dead"
    );
    assert_eq!(stop(team.node("b").id(), 1).await?, json!({ "agents": 1 }));
    within(
        Duration::from_secs(10),
        "the stream is closed",
        async || (team.scene.world.model.streams() == 0).then_some(()),
    )
    .await?;
    let log = team.scene.log_of("runner").await?;
    let ended = log[..before]
        .iter()
        .any(|event| matches!(event, Event::ToolEnd(_) | Event::TurnEnd(_)));
    assert!(!ended, "{log:?}");

    let ran = |event: &Event| matches!(event, Event::TurnEnd(end) if end.message.as_deref() == Some("ran"));
    within(FOUND_OUT, "another node continues the turn", async || {
        team.scene
            .log_of("runner")
            .await
            .ok()?
            .iter()
            .any(ran)
            .then_some(())
    })
    .await?;
    let log = team.scene.log_of("runner").await?;
    assert_eq!(
        log.iter()
            .filter(|event| matches!(event, Event::TurnStart(_)))
            .count(),
        1,
        "it is the same turn"
    );
    // The orchestrator's other members may still be on their way to the node that takes them up. A
    // close is refused until they have arrived.
    let close = session_at(&team.scene.started.session_id, SessionVerb::Close);
    let closed: Value = eventually("the session is closed", async || {
        team.scene.world.caller.ask(&close, &json!({})).await.ok()
    })
    .await?;
    assert_eq!(closed, json!({ "state": "closed" }));
    team.end().await
}

/// The orchestrator's node is killed after the session was recorded as closed and before its
/// members have ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_close_that_a_kill_interrupts_is_finished_by_other_nodes() -> Result<()> {
    let marker = Marker::new();
    let mut team = at_work(Backend::Postgres, &marker).await?;
    let session = team.scene.started.session_id.clone();
    team.node("c").pause()?;
    // The close is sent to the lead's node, because any other command could reach the frozen node.
    let relay =
        json!({ "subject": session_at(&session, SessionVerb::Close).to_string(), "body": {} });
    let close = {
        let (caller, to) = (
            team.scene.world.caller.clone(),
            Address::node(team.node("a").id(), NodeVerb::Relay.name()),
        );
        tokio::spawn(async move { caller.ask::<Value>(&to, &relay).await })
    };
    eventually("it is recorded as closed", async || {
        let info = tokio::time::timeout(
            Duration::from_millis(500),
            team.scene.world.caller.session(&session),
        )
        .await
        .ok()?
        .ok()?;
        (info.state == SessionState::Closed && info.owner.is_some()).then_some(())
    })
    .await?;
    team.nodes[0].kill().await?;
    close.abort();
    team.node("c").resume()?;
    within(FOUND_OUT, "the session is closed", async || {
        let info = team.scene.world.caller.session(&session).await.ok()?;
        info.agents
            .iter()
            .all(|agent| agent.node_id.is_none())
            .then_some(())
    })
    .await?;
    assert_eq!(marker.count(), 0);
    assert_eq!(
        team.scene.world.caller.session(&session).await?.state,
        SessionState::Closed
    );
    let log = team.scene.log().await?;
    assert_eq!(log.last().unwrap().kind, "session_closed");
    assert!(
        !log.iter().any(|event| event.kind == "session_resumed"),
        "it was never opened again"
    );
    // The frozen node may have been declared dead meanwhile, and ended.
    team.nodes.truncate(2);
    team.nodes.remove(0);
    team.end_despite(&["cannot"]).await
}

/// The worker's node is killed after the worker has stopped, and before the orchestrator's node is
/// notified.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_worker_is_reported_although_its_node_is_killed() -> Result<()> {
    let script = Script::new().always(Reply::text("ready"));
    let members = [lead_at("a", &[]), placed("one", "c", &[])];
    let mut team = ThreeNodes::start(Backend::Postgres, script)
        .await?
        .team(&members, "hello")
        .await?;
    team.scene.answer().await?;
    let one = team.scene.id("one").await?;
    team.node("a").pause()?;
    let relay = json!({ "subject": agent_at(&one, AgentVerb::Stop).to_string(), "body": { "reason": "not needed" } });
    let stop = {
        let (caller, to) = (
            team.scene.world.caller.clone(),
            Address::node(team.node("c").id(), NodeVerb::Relay.name()),
        );
        tokio::spawn(async move { caller.ask::<Value>(&to, &relay).await })
    };
    eventually("the worker has stopped", async || {
        let info = tokio::time::timeout(
            Duration::from_millis(500),
            team.scene
                .world
                .caller
                .session(&team.scene.started.session_id),
        );
        let info = info.await.ok()?.ok()?;
        info.agents
            .iter()
            .any(|agent| {
                agent.id == one && agent.state == AgentState::Stopped && agent.node_id.is_none()
            })
            .then_some(())
    })
    .await?;
    team.nodes[2].kill().await?;
    stop.abort();
    team.node("a").resume()?;
    let is_exit = |event: &Event| matches!(event, Event::WorkerExit(exit) if exit.id == one && exit.reason == "not needed");
    within(FOUND_OUT, "its exit is reported", async || {
        let log = tokio::time::timeout(Duration::from_secs(2), team.scene.log_of("lead"))
            .await
            .ok()?
            .ok()?;
        (log.iter().filter(|event| is_exit(event)).count() == 1).then_some(())
    })
    .await?;
    // The frozen node may have been declared dead meanwhile, and ended.
    team.nodes.truncate(2);
    team.nodes.remove(0);
    team.end_despite(&["cannot"]).await
}

/// An agent that was spawned after the message of a rewind is gone permanently, whichever node
/// hosted it.
#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_ends_agents_that_were_spawned_after_its_message() -> Result<()> {
    let worker = json!({ "type": "worker", "system_prompt": "You are worker.", "labels": { "place": "c" }, "task": "work" });
    let script = Script::new()
        .rule(
            by("worker"),
            Reply::text("word ".repeat(6_000)).pace(Pace::per_second(20.0)),
        )
        .rule(by("lead").result_of("spawn_agent"), Reply::text("made"))
        .rule(by("lead").user("spawn"), Reply::call("spawn_agent", worker))
        .always(Reply::text("ready"));
    let team = ThreeNodes::start(Backend::Postgres, script)
        .await?
        .team(&[lead_at("a", &[]), placed("one", "b", &[])], "hello")
        .await?;
    team.scene.answer().await?;
    let caller = &team.scene.world.caller;
    let session = &team.scene.started.session_id;
    let spawn = caller.prompt(session, "spawn").await?;
    team.scene.recorder.answered(&spawn.prompt_id).await?;
    eventually("the worker talks", async || {
        (team.scene.world.model.streams() == 1).then_some(())
    })
    .await?;
    assert_eq!(team.place_of("worker").await?, "c");
    let worker = team.scene.id("worker").await?;
    let messages = caller.messages(session, Some("lead")).await?;
    let to = messages
        .iter()
        .find(|message| format!("{:?}", message.content).contains("spawn"))
        .unwrap()
        .id;
    let _: Value = caller
        .ask(
            &session_at(session, SessionVerb::Rewind),
            &json!({ "to": to }),
        )
        .await?;
    within(
        Duration::from_secs(10),
        "its stream is closed",
        async || (team.scene.world.model.streams() == 0).then_some(()),
    )
    .await?;
    let info = caller.session(session).await?;
    let state = info
        .agents
        .iter()
        .find(|agent| agent.id == worker)
        .map(|agent| (agent.state, agent.node_id.clone()));
    assert_eq!(state, Some((AgentState::Stopped, None)));
    eventually("its node has forgotten it", async || {
        let node = Address::node(team.node("c").id(), NodeVerb::Info.name());
        let info: planck_common::command::NodeInfo = caller.ask(&node, &json!({})).await.ok()?;
        (info.agents == 0).then_some(())
    })
    .await?;
    let log = team.scene.log_of("lead").await?;
    assert!(
        !log.iter()
            .any(|event| matches!(event, Event::WorkerExit(_))),
        "who was never born does not leave: {log:?}"
    );
    team.end().await
}
