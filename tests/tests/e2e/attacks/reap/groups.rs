//! Control groups of calls, on a machine that lets nodes create them. On another machine each test
//! prints that it was skipped.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    eventually::{eventually, within},
    node::Node,
    world::{Backend, World},
};
use serde_json::json;

use super::escapes::NO_WALL;
use crate::{
    attacks::wall::{Walled, tiers},
    processes::Marker,
    teams::scene::member,
};

/// How long it may take until processes are dead and groups are removed.
const SOON: Duration = Duration::from_secs(20);

/// Returns the folder in which a node creates the groups of its calls, according to the node's log.
/// Returns `None` and prints a warning if the node creates no groups.
fn folder(node: &Node) -> Option<PathBuf> {
    let log = node.log();
    let told = log
        .lines()
        .find(|line| line.contains("each tool call has a control group"));
    if told.is_none() {
        eprintln!("SKIPPED: no control groups of version 2 are delegated to this test");
    }
    let folder = told?.split_once("\"folder\":\"")?.1.split('"').next()?;
    Some(folder.into())
}

/// Returns the groups of a node's calls.
fn groups(folder: &Path, node: i32) -> Vec<String> {
    let names = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| name.starts_with("planck-call-") && name.contains(&format!("-{node}-")))
        .collect()
}

/// Starts a node without a sandbox, and a call in it that forks twice into other sessions and
/// writes the process id of its reaper to a file. The call continues, and kills its reaper when
/// there is a file `go`.
async fn escaped(marker: &Marker) -> Result<(World, Node)> {
    let command = format!(
        "export MARK={}; (setsid sh -c '(setsid sleep 1000 &); sleep 1000; true' &); echo $PPID > reaper.tmp; mv reaper.tmp reaper; \
         while ! test -e go; do sleep 0.05; done; kill -KILL $PPID; sleep 1000",
        marker.name()
    );
    let call = Reply::call("bash", json!({ "command": command, "timeout": 600_000 }));
    let world = World::start(
        Backend::Sqlite,
        Script::new().limited(1, When::any(), call).always("Done."),
    )
    .await?;
    let node = world.node_with(&[NO_WALL]).await?;
    world.caller.start(&json!({ "dir": world.dir(), "members": [member("attacker", &["bash"])], "prompt": "go" })).await?;
    let begun = async || (marker.count() >= 3 && world.dir().join("reaper").exists()).then_some(());
    eventually("the processes run", begun).await?;
    Ok((world, node))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn a_call_is_in_a_group_that_ends_with_it_though_its_reaper_is_killed() -> Result<()> {
    let marker = Marker::new();
    let (world, node) = escaped(&marker).await?;
    let Some(folder) = folder(&node) else {
        return Ok(());
    };
    let groups = || groups(&folder, node.pid());
    let [group] = &groups()[..] else {
        anyhow::bail!("one call has {:?}", groups())
    };
    for pid in marker.pids() {
        // Each short `sleep` of the command is a process too, and may have ended before this reads
        // its file.
        let Ok(of_process) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else {
            continue;
        };
        let own = of_process
            .lines()
            .find_map(|line| line.strip_prefix("0::"))
            .context("no group")?;
        ensure!(
            own.ends_with(&format!("/{group}")),
            "{pid} is in {own}, not in {group}"
        );
    }
    fs::write(world.dir().join("go"), "")?;
    within(SOON, "all are dead", async || {
        (marker.count() == 0 && groups().is_empty()).then_some(())
    })
    .await?;
    node.leave_despite(&["ending processes that outlived"])
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn the_reaper_of_a_killed_node_removes_the_group() -> Result<()> {
    let marker = Marker::new();
    let (_world, mut node) = escaped(&marker).await?;
    let Some(folder) = folder(&node) else {
        return Ok(());
    };
    assert_eq!(groups(&folder, node.pid()).len(), 1);
    node.kill().await?;
    within(SOON, "all are dead", async || {
        (marker.count() == 0 && groups(&folder, node.pid()).is_empty()).then_some(())
    })
    .await
}

/// The reaper is killed while its node is frozen, and then the node is killed, so only the call's
/// control group shows which processes are left.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn the_next_node_ends_what_a_node_and_its_reaper_left() -> Result<()> {
    let marker = Marker::new();
    let (world, mut node) = escaped(&marker).await?;
    let Some(folder) = folder(&node) else {
        return Ok(());
    };
    let reaper = fs::read_to_string(world.dir().join("reaper"))?
        .trim()
        .parse()?;
    node.pause()?;
    kill(Pid::from_raw(reaper), Signal::SIGKILL)?;
    // The command dies with its reaper. Its background processes continue, because a paused node
    // ends nothing.
    assert!(
        groups(&folder, node.pid()).len() == 1 && marker.count() >= 2,
        "nobody is there to end them"
    );
    node.kill().await?;
    // Every node that starts on this machine ends what dead nodes left. A node of another test may
    // do it before this one.
    let _next = world.node_with(&[NO_WALL]).await?;
    within(SOON, "all are dead", async || {
        (marker.count() == 0 && groups(&folder, node.pid()).is_empty()).then_some(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn a_tool_behind_the_wall_cannot_leave_its_group() -> Result<()> {
    for tier in tiers() {
        let walled = Walled::start(&tier, Backend::Sqlite, &[]).await?;
        let Some(folder) = folder(&walled.node) else {
            return Ok(());
        };
        let tried = |kind, name, attempt: &str| (kind, name, attempt.to_owned());
        let attempts = [
            tried('+', "a file of its own", "echo 0 > own"),
            tried(
                '-',
                "the group of the node, as a process",
                "echo 0 > $G/cgroup.procs",
            ),
            tried(
                '-',
                "the group of the node, as a thread",
                "echo 0 > $G/cgroup.threads",
            ),
            tried(
                '-',
                "a group beside its own",
                "mkdir $G/planck-call-1-0000000000000000",
            ),
            tried(
                '-',
                "its own group's state",
                "for group in $G/planck-call-*; do echo 0 > $group/cgroup.freeze; done",
            ),
            tried('-', "a view of the groups", "ls $G/ | grep -q ."),
            tried(
                '-',
                "a hierarchy of its own",
                "mkdir m && mount -t cgroup2 none m",
            ),
        ];
        walled
            .attempts(&format!("G={}", folder.display()), &attempts)
            .await?;
        walled.end(&[]).await?;
    }
    Ok(())
}
