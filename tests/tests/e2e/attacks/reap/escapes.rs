//! A tool attacks its reaper, and then its node. The nodes of these tests have no sandbox, so the
//! reaper and the node must defend themselves.

use std::{env::consts::ARCH, time::Duration};

use anyhow::Result;
use nix::sys::signal::Signal;
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    eventually::{eventually, within},
    node::Node,
    world::{Backend, World},
};
use serde_json::json;

use crate::{
    processes::Marker,
    teams::scene::{Scene, by, member},
};

pub const NO_WALL: (&str, &str) = ("PLANCK_TOOLS_SANDBOX", "off");

/// Texts that the log may contain after a tool attacked its reaper.
const EXCUSED: [&str; 2] = ["ending processes that outlived", "killing a reaper that"];

/// Returns commands that attack their reaper, whose process id is in `R`. None ends by itself soon.
fn escapes() -> Vec<String> {
    // The numbers of the system calls `prctl` and `ptrace`.
    let (prctl, ptrace) = if ARCH == "aarch64" {
        (167, 117)
    } else {
        (157, 101)
    };
    vec![
        "setsid bash -c \"kill -KILL $R; sleep 1000\" & sleep 1000".into(),
        "(setsid bash -c \"kill -KILL $R; sleep 1000\" &) ; exec sleep 1000".into(),
        "for i in $(seq 40); do setsid bash -c 'trap \"\" TERM HUP INT; sleep 1000; sleep 1000' & done; kill -KILL $R; sleep 1000".into(),
        "setsid bash -c \"kill -STOP $R; sleep 1000\" & sleep 1000".into(),
        "(setsid bash -c \"for i in \\$(seq 300); do kill -STOP $R; sleep 0.02; done; sleep 1000\" &) ; sleep 1000".into(),
        "for s in TERM HUP INT QUIT; do kill -$s $R; done; (setsid sleep 1000 &); sleep 1000".into(),
        // Starts 400 processes while the reaper dies or is stopped. They end after 1000 s.
        "(setsid bash -c 'for i in $(seq 400); do setsid sleep 1000 & done; wait' &); kill -KILL $R; sleep 1000".into(),
        "(setsid bash -c 'for i in $(seq 400); do setsid sleep 1000 & done; wait' &); kill -STOP $R; sleep 1000".into(),
        // The processes of this chain each live for a moment. The chain lasts 40 s.
        "hop() { [ $1 = 0 ] || { sleep 0.01; hop $(($1-1)) & }; }; (setsid bash -c \"$(declare -f hop); hop 4000\" &); kill -KILL $R; sleep 1000".into(),
        // The tool becomes the parent of its own orphans, and does not die with its parent.
        format!(
            "exec perl -e 'syscall({prctl}, 36, 1, 0, 0, 0); syscall({prctl}, 1, 0, 0, 0, 0); system(\"(setsid sleep 1000 &) ; (setsid sleep 1000 &)\"); \
             kill(9, $ENV{{R}}); sleep 1000'"
        ),
        // The tool traces the reaper and stops it: SEIZE, then INTERRUPT.
        format!("exec perl -e 'syscall({ptrace}, 0x4206, $ENV{{R}}, 0, 0); syscall({ptrace}, 0x4207, $ENV{{R}}, 0, 0); sleep 1000'"),
    ]
}

/// Runs each command. Returns the result of each, and how many of its processes are left after it.
async fn attack(commands: &[String], marker: &Marker) -> Result<Vec<(String, String)>> {
    let count = format!(
        "grep -lzs '^MARK={}$' /proc/[0-9]*/environ | wc -l; true",
        marker.name()
    );
    let mut rounds = Vec::new();
    for (at, command) in commands.iter().enumerate() {
        let command = format!(
            "export MARK={} R=$PPID; echo {at}; {command}",
            marker.name()
        );
        rounds.push(Reply::call(
            "bash",
            json!({ "command": command, "timeout": 2500 }),
        ));
        rounds.push(Reply::call(
            "bash",
            json!({ "command": format!("true {at}; {count}") }),
        ));
    }
    rounds.push(Reply::text("done"));
    let script = Script::new().rounds(by("attacker"), rounds);
    let world = World::start(Backend::Sqlite, script).await?;
    let (node, recorder) = (world.node_with(&[NO_WALL]).await?, world.record().await?);
    let start =
        json!({ "dir": world.dir(), "members": [member("attacker", &["bash"])], "prompt": "go" });
    let started = world.caller.start(&start).await?;
    let mut scene = Scene {
        world,
        node: Some(node),
        recorder,
        started,
    };
    within(Duration::from_secs(180), "the turn ends", async || {
        scene.answer().await.ok()
    })
    .await?;
    let results: Vec<String> = scene
        .results("attacker", "bash")
        .await?
        .into_iter()
        .map(|end| end.result)
        .collect();
    leave(scene.node.take()).await?;
    Ok(results
        .chunks(2)
        .map(|pair| (pair[0].clone(), pair[1].trim().to_owned()))
        .collect())
}

async fn leave(node: Option<Node>) -> Result<()> {
    match node {
        Some(node) => node.leave_despite(&EXCUSED).await,
        None => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn nothing_outlives_a_call_whatever_it_does_to_its_reaper() -> Result<()> {
    let (marker, commands) = (Marker::new(), escapes());
    let results = attack(&commands, &marker).await?;
    assert_eq!(results.len(), commands.len());
    for (command, (told, left)) in commands.iter().zip(&results) {
        assert_eq!(left, "0", "{command}\n{told}");
        let is_true = told.contains("timed out after 2500 ms and was killed")
            || told.contains("killed by SIGKILL");
        assert!(is_true, "{command}\n{told}");
    }
    assert_eq!(marker.count(), 0);
    Ok(())
}

/// A tool stops its reaper, and then the node is killed. The processes of the tool must die
/// nevertheless.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn a_stopped_reaper_does_not_save_its_tool_from_the_nodes_death() -> Result<()> {
    let marker = Marker::new();
    let command = format!(
        "export MARK={}; (setsid sleep 1000 &); (setsid sleep 1000 &); kill -STOP $PPID; sleep 1000",
        marker.name()
    );
    let script = Script::new().always(Reply::call(
        "bash",
        json!({ "command": command, "timeout": 600_000 }),
    ));
    let world = World::start(Backend::Sqlite, script).await?;
    let mut node = world.node_with(&[NO_WALL]).await?;
    world.caller.start(&json!({ "dir": world.dir(), "members": [member("attacker", &["bash"])], "prompt": "go" })).await?;
    eventually("the processes run", async || {
        (marker.count() >= 3).then_some(())
    })
    .await?;
    node.kill().await?;
    within(
        Duration::from_secs(10),
        "the processes are dead",
        async || (marker.count() == 0).then_some(()),
    )
    .await
}

/// A node that receives SIGTERM ends the processes of its calls, even if a tool has stopped its
/// reaper.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn a_leaving_node_ends_a_tool_whose_reaper_is_stopped() -> Result<()> {
    let marker = Marker::new();
    let command = format!(
        "export MARK={}; (setsid sleep 1000 &); kill -STOP $PPID; sleep 1000",
        marker.name()
    );
    let script = Script::new().always(Reply::call(
        "bash",
        json!({ "command": command, "timeout": 600_000 }),
    ));
    let world = World::start(Backend::Sqlite, script).await?;
    let node = world
        .node_with(&[NO_WALL, ("PLANCK_NODE_DRAIN_TIMEOUT", "100ms")])
        .await?;
    world.caller.start(&json!({ "dir": world.dir(), "members": [member("attacker", &["bash"])], "prompt": "go" })).await?;
    eventually("the processes run", async || {
        (marker.count() >= 2).then_some(())
    })
    .await?;
    let pid = nix::unistd::Pid::from_raw(node.pid());
    nix::sys::signal::kill(pid, Signal::SIGTERM)?;
    within(
        Duration::from_secs(20),
        "the processes are dead",
        async || (marker.count() == 0).then_some(()),
    )
    .await
}
