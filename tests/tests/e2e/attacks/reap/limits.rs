//! A tool that tries to exhaust the machine. The limits are low here, so a failing test does no
//! harm to the machine.

use anyhow::Result;
use planck_scripted_model::{Reply, Script};
use planck_tests::world::{Backend, World};
use serde_json::json;

use super::escapes::NO_WALL;
use crate::{
    processes::Marker,
    teams::scene::{Scene, by, member},
};

/// A command that takes 144 MB in files of memory, of which no page is mapped.
const MEMORY_FILES: &str = "for i in $(seq 6); do python3 -c 'import os, time\n\
    for f in [os.memfd_create(\"x\") for _ in range(24)]: os.posix_fallocate(f, 0, 1000000)\n\
    time.sleep(1000)' & done; wait";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn a_tool_that_takes_too_much_is_ended_and_its_node_lives() -> Result<()> {
    let marker = Marker::new();
    let mark = format!("export MARK={}; ", marker.name());
    let bombs = [
        (
            "for i in $(seq 300); do setsid sleep 1000 & done; sleep 1000",
            "more than 40 processes at one time (`tools.limits.processes`)",
        ),
        (
            "x=$(head -c 200000000 /dev/zero | tr '\\0' x); sleep 1000; true",
            "more than 100 MiB of memory at one time (`tools.limits.memory`)",
        ),
        (
            MEMORY_FILES,
            "more than 100 MiB of memory at one time (`tools.limits.memory`)",
        ),
        (
            "head -c 20000000 /dev/zero > big; echo; stat -c %s big",
            "1048576",
        ),
        ("ulimit -Hn; true", "32"),
    ];
    let mut rounds: Vec<Reply> = bombs
        .iter()
        .map(|(bomb, _)| Reply::call("bash", json!({ "command": format!("{mark}{bomb}") })))
        .collect();
    rounds.push(Reply::text("done"));
    let world = World::start(Backend::Sqlite, Script::new().rounds(by("agent"), rounds)).await?;
    let limits = [
        NO_WALL,
        ("PLANCK_TOOLS_LIMITS_PROCESSES", "40"),
        ("PLANCK_TOOLS_LIMITS_MEMORY", "100MiB"),
        ("PLANCK_TOOLS_LIMITS_FILE_SIZE", "1MiB"),
        ("PLANCK_TOOLS_LIMITS_OPEN_FILES", "32"),
    ];
    let results = results_of(world, &limits).await?;
    assert_eq!(results.len(), bombs.len());
    for ((bomb, wanted), result) in bombs.iter().zip(&results) {
        assert!(result.contains(wanted), "{bomb}: {result}");
    }
    assert_eq!(marker.count(), 0);
    Ok(())
}

/// Other programs use the disk too, so this node lets a call take a little of it only.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_fills_the_disk_is_ended() -> Result<()> {
    let fill = "for i in $(seq 4000); do fallocate -l 1000000 part$i || exit; done; sleep 1000";
    let replies = [
        Reply::call("bash", json!({ "command": fill })),
        Reply::text("done"),
    ];
    let world = World::start(Backend::Sqlite, Script::new().rounds(by("agent"), replies)).await?;
    let limits = [NO_WALL, ("PLANCK_TOOLS_LIMITS_DISK_FREE", "1000000GiB")];
    let results = results_of(world, &limits).await?;
    assert!(
        results[0].contains("(`tools.limits.disk_free`)"),
        "{results:?}"
    );
    Ok(())
}

/// Runs the calls of the world's script on a node with these limits, and returns their results.
async fn results_of(world: World, limits: &[(&str, &str)]) -> Result<Vec<String>> {
    let (node, recorder) = (world.node_with(limits).await?, world.record().await?);
    let started = world
        .caller
        .start(
            &json!({ "dir": world.dir(), "members": [member("agent", &["bash"])], "prompt": "go" }),
        )
        .await?;
    let scene = Scene {
        world,
        node: Some(node),
        recorder,
        started,
    };
    scene.answer().await?;
    let results = scene.results("agent", "bash").await?;
    scene.end().await?;
    Ok(results.into_iter().map(|end| end.result).collect())
}
