//! MCP servers that ask a person during a call.

use std::path::Path;

use anyhow::{Context as _, Result};
use planck_common::command::{SessionsVerb, WaitRow, Waits};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    caller::sessions,
    eventually::eventually,
    world::{Backend, World},
};
use serde_json::json;

use super::{NAME, RunningBridge, own::Configured, program};
use crate::{
    sidecars::serving::found,
    teams::scene::{Scene, by, member},
};

const TOOL: &str = "everything__trigger-elicitation-request";

fn script() -> Script {
    Script::new().rounds(
        by("talker"),
        [
            Reply::call(TOOL, json!({})),
            Reply::text(format!("{{{{result:{TOOL}}}}}")),
        ],
    )
}

/// Waits for the question of the session.
async fn question(scene: &Scene) -> Result<WaitRow> {
    let session = scene.started.session_id.as_str();
    let asked = async || {
        let (list, of) = (sessions(SessionsVerb::Waits), json!({"session": session}));
        let list: Waits = scene.world.caller.read(&list, &of).await.ok()?;
        list.waits.into_iter().next()
    };
    eventually("the tool asks", asked).await
}

/// Starts a session on a node that runs the server, and waits for the question.
async fn asked_on_a_node(program: &Path) -> Result<(Configured, Scene, WaitRow)> {
    let world = World::start(Backend::Sqlite, script()).await?;
    let configured = Configured::new(&world, program);
    let node = configured.node(&world).await?;
    let members = [member("talker", &["everything__*"])];
    let scene = Scene::start_beside(world, node, &members, "go").await?;
    let wait = question(&scene).await?;
    Ok((configured, scene, wait))
}

/// Answers the question with `planck answer`, without the fields that have a default.
async fn answer(scene: &Scene, wait: &WaitRow) -> Result<()> {
    let mut command = scene.world.planck()?;
    command.args(["answer", wait.id.as_str(), r#"{"name": "Ann"}"#]);
    let ran = planck_tests::machine::run(command).await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    Ok(())
}

fn assert_accepted(said: &str) {
    let is_accepted = said.contains("Name: Ann") && said.contains("Favorite Integer: 42");
    assert!(is_accepted, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_answers_what_a_server_of_a_node_asks() -> Result<()> {
    let Some(program) = program() else {
        return Ok(());
    };
    let (configured, scene, wait) = asked_on_a_node(&program).await?;
    let title = format!("{TOOL} asks: Please provide inputs for the following fields:");
    assert_eq!(wait.title, title);
    answer(&scene, &wait).await?;
    assert_accepted(&scene.answer().await?);
    scene.end().await?;
    configured.leaves_nothing().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_answers_what_a_server_behind_a_bridge_asks() -> Result<()> {
    let Some(program) = program() else {
        return Ok(());
    };
    let world = World::start(Backend::Sqlite, script()).await?;
    let node = world.node().await?;
    let bridge = RunningBridge::start(&world, &program)?;
    found(&world, NAME, 1).await.with_context(|| bridge.log())?;
    let members = [member("talker", &["everything__*"])];
    let scene = Scene::start_beside(world, node, &members, "go").await?;
    let wait = question(&scene).await?;
    answer(&scene, &wait).await?;
    assert_accepted(&scene.answer().await?);
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_after_the_node_was_killed_says_what_is_not_known() -> Result<()> {
    let Some(program) = program() else {
        return Ok(());
    };
    let (configured, mut scene, wait) = asked_on_a_node(&program).await?;
    let mut node = scene.node.take().context("no node")?;
    node.kill().await?;
    configured.leaves_nothing().await?;
    scene.node = Some(configured.node(&scene.world).await?);
    answer(&scene, &wait).await?;
    let said = scene.answer().await?;
    assert!(said.contains("may or may not have taken effect"), "{said}");
    scene.end().await?;
    configured.leaves_nothing().await
}
