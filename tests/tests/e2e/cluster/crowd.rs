//! Many workers over three nodes.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::Result;
use planck_common::{
    command::{NodeState, Nodes, SessionState, SessionVerb},
    subject::Target,
};
use planck_scripted_model::{Pace, Reply, Script};
use planck_tests::{
    caller::{list_of, session_at},
    eventually::within,
    world::Backend,
};
use serde_json::{Value, json};

use super::field::{PLACES, Team, ThreeNodes, lead_at};
use crate::teams::scene::by;

const WORKERS: usize = 300;

/// The number of workers that one answer spawns. An answer may hold 128 calls.
const OF_ONE_ANSWER: usize = 100;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute of CPU time: make test-all"]
async fn three_hundred_workers_are_spawned_over_three_nodes() -> Result<()> {
    let worker = |n| json!({ "type": "worker", "name": format!("w{n}"), "system_prompt": "You are worker.", "tools": [], "task": "be there" });
    let numbers: Vec<usize> = (0..WORKERS).collect();
    let spawned = |some: &[usize]| {
        some.iter().fold(Reply::new(), |reply, n| {
            reply.and_call("spawn_agent", worker(*n))
        })
    };
    let answers: Vec<Reply> = numbers
        .chunks(OF_ONE_ANSWER)
        .map(spawned)
        .chain([Reply::text("made")])
        .collect();
    let script = Script::new()
        .rounds(by("lead").user("go"), answers)
        .rounds(
            by("worker"),
            [
                Reply::call("send_response", json!({ "response": "here" })),
                Reply::text("done"),
            ],
        )
        .always(Reply::text("thanks"))
        .keep(10);
    let field = ThreeNodes::start(Backend::Postgres, script).await?;
    let since = Instant::now();
    let team = field.team(&[lead_at("a", &[])], "go").await?;
    let prompt = team.scene.started.prompt_id.clone().unwrap();
    let patience = Duration::from_secs(240);
    within(patience, "all are made", async || {
        let log = team.scene.log_of("lead").await.ok()?;
        let ends = |event: &planck_common::event::Event| {
            matches!(event, planck_common::event::Event::TurnEnd(end) if end.inputs.contains(&prompt))
        };
        log.iter().any(ends).then_some(())
    })
    .await?;
    let made = since.elapsed();
    let info = team
        .scene
        .world
        .caller
        .session(&team.scene.started.session_id)
        .await?;
    assert_eq!(info.agents.len(), WORKERS + 1);
    let on = |place: &str| {
        info.agents
            .iter()
            .filter(|agent| agent.node_id.as_ref() == Some(team.node(place).id()))
            .count()
    };
    let spread = PLACES.map(on);
    println!("{WORKERS} workers over three nodes: spawned in {made:?}, spread {spread:?}");
    assert!(
        spread.iter().all(|agents| *agents >= WORKERS / 6),
        "{spread:?}"
    );
    within(patience, "all have responded", async || {
        let log = team.scene.log().await.ok()?;
        let responded = log
            .iter()
            .filter(|event| event.kind == "tool_end" && event.data.get().contains("send_response"));
        (responded.count() == WORKERS).then_some(())
    })
    .await?;
    println!("all responded after {:?}", since.elapsed());
    // Where other programs take the processors, a sweep may get no connection to the database in time.
    team.end_despite(&["cannot sweep"]).await
}

fn spawning(count: usize) -> Reply {
    let number = |n| format!("number {n}");
    let worker = |n| json!({ "type": "worker", "system_prompt": "You are worker.", "description": number(n), "tools": [], "task": "be there" });
    (0..count).fold(Reply::new(), |reply, n| {
        reply.and_call("spawn_agent", worker(n))
    })
}

/// Agents with the same name are spawned at the same time on several nodes, and there are more of
/// them than the session may have.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute of CPU time: make test-all"]
async fn spawned_namesakes_respect_the_limit_and_each_has_a_name_and_a_task() -> Result<()> {
    const MOST: usize = 25;
    let script = Script::new()
        .rounds(by("lead"), [spawning(MOST + 15), Reply::text("made")])
        .rule(by("worker"), Reply::text("here"))
        .always(Reply::text("thanks"));
    let field = ThreeNodes::start(Backend::Postgres, script).await?;
    let body = json!({
        "dir": field.world.dir(), "members": [lead_at("a", &[])], "prompt": "go", "limits": { "max_agents": MOST },
    });
    let team = field.started(body).await?;
    assert_eq!(team.scene.answer().await?, "made");
    let results = team.scene.results("lead", "spawn_agent").await?;
    let refused: Vec<_> = results
        .iter()
        .filter(|end| end.error)
        .map(|end| end.result.as_str())
        .collect();
    assert_eq!(
        refused,
        [format!("the session has had its {MOST} agents (max_agents)").as_str(); 16]
    );
    let info = team
        .scene
        .world
        .caller
        .session(&team.scene.started.session_id)
        .await?;
    let names: BTreeSet<_> = info.agents.iter().map(|agent| agent.name.clone()).collect();
    let numbered = (2..MOST).map(|number| format!("worker-{number}"));
    assert_eq!(
        names,
        numbered.chain(["lead".into(), "worker".into()]).collect()
    );
    let worked = within(
        Duration::from_secs(120),
        "each has done its task",
        async || {
            let log = team.scene.log().await.ok()?;
            let ended = log.iter().filter(|event| {
                event.kind == "turn_end" && event.data.get().contains(r#""message":"here""#)
            });
            (ended.count() == MOST - 1).then_some(log)
        },
    )
    .await?;
    let tasks = worked.iter().filter(|event| {
        event.kind == "turn_start" && event.data.get().contains(r#""kind":"task""#)
    });
    assert_eq!(
        tasks
            .map(|event| event.agent_id.clone())
            .collect::<BTreeSet<_>>()
            .len(),
        MOST - 1,
        "one each"
    );
    close(&team).await?;
    team.end().await
}

async fn close(team: &Team) -> Result<()> {
    let close = session_at(&team.scene.started.session_id, SessionVerb::Close);
    let _: Value = team.scene.world.caller.ask(&close, &json!({})).await?;
    Ok(())
}

/// Starts a team whose orchestrator's reply spawns many workers with endless answers. Returns when
/// some workers answer and most are not created yet.
async fn half_made(more: Value) -> Result<Team> {
    let script = Script::new()
        .rounds(by("lead"), [spawning(OF_ONE_ANSWER), Reply::text("made")])
        .always(Reply::text("word ".repeat(600)).pace(Pace::per_second(1.0)));
    let field = ThreeNodes::start(Backend::Postgres, script).await?;
    let mut body =
        json!({ "dir": field.world.dir(), "members": [lead_at("a", &[])], "prompt": "go" });
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let team = field.started(body).await?;
    within(Duration::from_secs(60), "some are at work", async || {
        (team.scene.world.model.streams() > 10).then_some(())
    })
    .await?;
    Ok(team)
}

/// Checks that nothing of the team runs on any node, and that no node holds any of its agents.
async fn is_gone(team: &Team) -> Result<()> {
    within(Duration::from_secs(120), "nobody is left", async || {
        let world = &team.scene.world;
        let info = world
            .caller
            .session(&team.scene.started.session_id)
            .await
            .ok()?;
        let nodes: Nodes = world
            .caller
            .read(&list_of(Target::Nodes), &json!({}))
            .await
            .ok()?;
        let hosted: u32 = nodes
            .nodes
            .iter()
            .filter(|node| node.state == NodeState::Alive)
            .map(|node| node.agents)
            .sum();
        let is_closed = info.state == SessionState::Closed
            && info.agents.iter().all(|agent| agent.node_id.is_none());
        (is_closed && hosted == 0 && world.model.streams() == 0).then_some(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute of CPU time: make test-all"]
async fn a_team_that_is_closed_while_it_is_created_leaves_no_agent() -> Result<()> {
    let team = half_made(json!({})).await?;
    close(&team).await?;
    is_gone(&team).await?;
    team.end().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute of CPU time: make test-all"]
async fn a_team_whose_orchestrator_dies_while_it_is_created_leaves_no_agent() -> Result<()> {
    let mut team = half_made(json!({ "on_node_death": "stop" })).await?;
    team.nodes.remove(0).kill().await?;
    is_gone(&team).await?;
    team.end_despite(&[""]).await
}
