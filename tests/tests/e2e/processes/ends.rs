//! When a call has ended, for any reason, none of its processes is left.

use std::time::Duration;

use anyhow::Result;
use planck_common::command::AgentVerb;
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    eventually::{eventually, within},
    world::{Backend, World},
};
use serde_json::json;

use super::{Marker, escaping};
use crate::teams::scene::{Scene, by, member};

async fn runs(marker: &Marker, timeout: u64) -> Result<Scene> {
    let script = Script::new()
        .rule(
            by("runner").result_of("bash"),
            Reply::text("told: {{result:bash}}"),
        )
        .rule(
            by("runner"),
            Reply::call(
                "bash",
                json!({ "command": escaping(marker), "timeout": timeout }),
            ),
        );
    Scene::start(script, &[member("runner", &["bash"])], "go").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_out_kills_processes_and_keeps_the_output() -> Result<()> {
    let marker = Marker::new();
    let scene = runs(&marker, 1500).await?;
    assert_eq!(
        scene.answer().await?,
        "told: error: timed out after 1500 ms and was killed\nstarted\n"
    );
    assert_eq!(marker.count(), 0);
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_kills_processes_and_keeps_the_output() -> Result<()> {
    let marker = Marker::new();
    let scene = runs(&marker, 600_000).await?;
    // The sixth process starts after the output was written.
    eventually("the processes run", async || {
        (marker.count() >= 6).then_some(())
    })
    .await?;
    scene
        .tell("runner", AgentVerb::Abort, json!({ "reason": "too slow" }))
        .await?;
    assert_eq!(marker.count(), 0, "it is answered when all is dead");
    assert_eq!(
        scene.result("runner", "bash").await?.result,
        "aborted by request: too slow\nstarted\n"
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn background_processes_of_a_command_die_with_it() -> Result<()> {
    let marker = Marker::new();
    let command = format!(
        "export MARK={}; (setsid sleep 1000 >/dev/null 2>&1 &); sleep 0.3; echo done",
        marker.name()
    );
    let script = Script::new()
        .rule(
            by("runner").result_of("bash"),
            Reply::text("told: {{result:bash}}"),
        )
        .rule(
            by("runner"),
            Reply::call("bash", json!({ "command": command })),
        );
    let scene = Scene::start(script, &[member("runner", &["bash"])], "go").await?;
    assert_eq!(scene.answer().await?, "told: done\n");
    assert_eq!(marker.count(), 0);
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_leaves_no_process_and_the_next_node_continues() -> Result<()> {
    let marker = Marker::new();
    let mut scene = runs(&marker, 600_000).await?;
    eventually("the processes run", async || {
        (marker.count() >= 4).then_some(())
    })
    .await?;
    scene.node.take().unwrap().kill().await?;
    within(
        Duration::from_secs(5),
        "the processes are dead",
        async || (marker.count() == 0).then_some(()),
    )
    .await?;
    scene.node = Some(scene.world.node().await?);
    assert_eq!(
        scene.answer().await?,
        "told: error: interrupted; it may or may not have taken effect"
    );
    scene.end().await
}

/// A node that gets a second signal while it leaves does not wait for anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_stops_the_node_at_once() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let node = world.node().await?;
    let pid = nix::unistd::Pid::from_raw(node.pid());
    for _ in 0..2 {
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT)?;
    }
    within(Duration::from_secs(5), "it has left", async || {
        is_over(node.pid()).then_some(())
    })
    .await
}

/// Returns whether a process is dead, including one that is not reaped yet.
fn is_over(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}
