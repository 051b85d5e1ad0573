//! Tools that appear and disappear while agents run.

use anyhow::{Context as _, Result};
use std::time::Duration;

use planck_common::{
    command::{AgentVerb, Sidecars},
    event::{Event, ToolsChanged},
    subject::Target,
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    caller::list_of,
    eventually::{eventually, within},
    example::Example,
    machine::run,
    world::{Backend, World},
};
use serde_json::json;

use super::serving::{Ledger, Serving, echo, found};
use crate::teams::scene::{Scene, by, member};

async fn changed(scene: &Scene, count: usize) -> Result<ToolsChanged> {
    let changes = async || {
        let log = scene.log_of("talker").await.ok()?;
        let changes = log.into_iter().filter_map(|event| {
            if let Event::ToolsChanged(changed) = event {
                Some(changed)
            } else {
                None
            }
        });
        let mut changes: Vec<_> = changes.collect();
        (changes.len() == count).then(|| changes.pop())?
    };
    eventually("the tools change", changes).await
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_added_to_a_running_agent_and_removed() -> Result<()> {
    let script = Script::new()
        .rounds(
            by("talker").user("use it"),
            [
                Reply::call("echo", json!({})),
                Reply::text("got {{result:echo}}"),
            ],
        )
        .always(Reply::text("hello"));
    let mut scene = Scene::start_on(
        World::start(Backend::Sqlite, script).await?,
        &[member("talker", &["read", "echo"])],
        "hi",
    )
    .await?;
    assert_eq!(scene.answer().await?, "hello");
    let serving = Serving::start(&scene.world, echo("mirror", &Ledger::default()));
    let came = changed(&scene, 1).await?;
    assert_eq!(
        (came.added, came.tools),
        (
            vec!["echo".to_owned()],
            vec!["echo".to_owned(), "read".to_owned()]
        )
    );
    let prompted = scene
        .world
        .caller
        .prompt(&scene.started.session_id, "use it")
        .await?;
    scene.started.prompt_id = Some(prompted.prompt_id);
    assert_eq!(scene.answer().await?, "got {}");
    serving.end().await?;
    let left = changed(&scene, 2).await?;
    assert_eq!(
        (left.removed, left.tools),
        (vec!["echo".to_owned()], vec!["read".to_owned()])
    );
    let prompted = scene
        .world
        .caller
        .prompt(&scene.started.session_id, "use it")
        .await?;
    scene.started.prompt_id = Some(prompted.prompt_id);
    scene.answer().await?;
    let end = scene.result("talker", "echo").await?;
    assert!(
        end.error && end.result.contains("there is no tool `echo`"),
        "{end:?}"
    );
    scene.end().await
}

/// How long a node may take to remove an instance that is gone: three rounds of discovery, ten
/// seconds apart, and additional time for a busy machine.
const MISSED: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn tools_of_a_sidecar_that_died_are_removed() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new().always(Reply::text("hello"))).await?;
    let mut sidecar = Example::rust()?.start(&world.nats.url())?;
    let scene = Scene::start_on(world, &[member("talker", &["read", "repeat"])], "hi").await?;
    scene.answer().await?;
    eventually("the agent has its tool", async || {
        let info = scene
            .tell("talker", AgentVerb::Info, json!({}))
            .await
            .ok()?;
        (info["tools"] == json!(["read", "repeat"])).then_some(())
    })
    .await?;
    sidecar.kill().await?;
    within(MISSED, "the sidecar is no longer listed", async || {
        let listed: Sidecars = scene
            .world
            .caller
            .read(&list_of(Target::Sidecars), &json!({}))
            .await
            .ok()?;
        listed.sidecars.is_empty().then_some(())
    })
    .await?;
    // A parked agent learns of the change only when a request wakes it.
    scene.tell("talker", AgentVerb::Info, json!({})).await?;
    let left = within(MISSED, "its tool leaves the agent", async || {
        let log = scene.log_of("talker").await.ok()?;
        log.into_iter().find_map(|event| match event {
            Event::ToolsChanged(changed) if changed.removed == ["repeat"] => Some(changed),
            _ => None,
        })
    });
    assert_eq!(left.await?.tools, ["read"]);
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_agent_finds_the_change_when_it_is_woken() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new().always(Reply::text("hello"))).await?;
    let node = world
        .node_with(&[
            ("PLANCK_NODE_PARK_AFTER", "100ms"),
            ("RUST_LOG", "planck=debug"),
        ])
        .await?;
    let recorder = world.record().await?;
    let started = world
        .caller
        .start(
            &json!({"dir": world.dir(), "members": [member("talker", &["echo"])], "prompt": "hi"}),
        )
        .await?;
    let scene = Scene {
        world,
        node: Some(node),
        recorder,
        started,
    };
    scene.answer().await?;
    let node = scene.node.as_ref().context("no node")?;
    eventually("the agent is parked", async || {
        node.log().contains("\"parked\"").then_some(())
    })
    .await?;
    let serving = Serving::start(&scene.world, echo("mirror", &Ledger::default()));
    found(&scene.world, "mirror", 1).await?;
    let info = scene.tell("talker", AgentVerb::Info, json!({})).await?;
    assert_eq!(info["tools"], json!(["echo"]));
    assert_eq!(changed(&scene, 1).await?.added, ["echo"]);
    scene.end().await?;
    serving.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_name_of_two_sidecars_is_qualified() -> Result<()> {
    let script = Script::new().rounds(
        by("talker"),
        [Reply::call("b__echo", json!({})), Reply::text("done")],
    );
    let world = World::start(Backend::Sqlite, script).await?;
    let ledgers = [Ledger::default(), Ledger::default()];
    let serving = [
        Serving::start(&world, echo("a", &ledgers[0])),
        Serving::start(&world, echo("b", &ledgers[1])),
    ];
    let node = world.node().await?;
    found(&world, "a", 1).await?;
    found(&world, "b", 1).await?;
    let recorder = world.record().await?;
    let started = world
        .caller
        .start(
            &json!({"dir": world.dir(), "members": [member("talker", &["echo"])], "prompt": "go"}),
        )
        .await?;
    let mut scene = Scene {
        world,
        node: Some(node),
        recorder,
        started,
    };
    assert_eq!(scene.answer().await?, "done");
    assert_eq!(ledgers.map(|ledger| ledger.entries().len()), [0, 1]);
    assert_eq!(
        scene.tell("talker", AgentVerb::Info, json!({})).await?["tools"],
        json!(["a__echo", "b__echo"])
    );
    let node = scene.node.take().unwrap();
    let warning =
        "the tool `echo` of sidecar a, b is offered by several; it goes by a__echo, b__echo";
    assert!(node.log().contains(warning), "{}", node.log());
    scene.world.check_model()?;
    node.leave_despite(&[warning]).await?;
    for serving in serving {
        serving.end().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_lists_and_calls_sidecars() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let serving = Serving::start(&world, echo("mirror", &Ledger::default()));
    let node = world.node().await?;
    found(&world, "mirror", 1).await?;
    let planck = async |args: &[&str]| {
        let mut command = world.planck()?;
        command.args(args);
        run(command).await
    };
    let listed = planck(&["sidecar", "ls"]).await?;
    assert!(
        listed.code == 0 && listed.out.contains("mirror") && listed.out.contains("echo"),
        "{listed:?}"
    );
    let called = planck(&["sidecar", "call", "mirror", "echo", r#"{"a":1}"#]).await?;
    assert_eq!(
        (called.code, called.out.trim()),
        (0, r#"{"a":1}"#),
        "{called:?}"
    );
    for (sidecar, tool, way_out) in [
        ("miror", "echo", "did you mean `mirror`?"),
        ("other", "echo", "`planck sidecar ls` lists the sidecars"),
        ("mirror", "ecco", "did you mean `echo`?"),
        ("mirror", "other", "it has echo"),
    ] {
        let missing = planck(&["sidecar", "call", sidecar, tool]).await?;
        let (code, told) = (missing.code, missing.err.contains(way_out));
        assert_eq!((code, told), (3, true), "{missing:?}");
    }
    node.leave().await?;
    serving.end().await
}
