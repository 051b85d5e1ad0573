//! MCP servers, with one of the MCP project, which `tools/install` fetches. This file has those behind
//! `planck mcp bridge`.

mod hostile;
mod offered;
mod own;
mod questions;
mod sessions;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    eventually::eventually,
    machine::run,
    node::{count, processes},
    sdk::{is_there, node_in},
    world::{Backend, World},
};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

use super::serving::found;
use crate::teams::scene::{Scene, by, member};

const PATIENCE: Duration = Duration::from_secs(30);

/// The sidecar's name.
const NAME: &str = "everything";

/// Returns the program of the server.
fn program() -> Option<PathBuf> {
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/mcp/node_modules");
    let program = modules.join("@modelcontextprotocol/server-everything/dist/index.js");
    is_there(&program).then_some(program)
}

/// A bridge with the server, and the words by which its processes are found.
struct RunningBridge {
    process: Child,
    mark: String,
    log: PathBuf,
}

impl RunningBridge {
    fn start(world: &World, program: &Path) -> Result<Self> {
        let log = world.folder().join("bridge.log");
        // The server ignores further arguments.
        let mark = format!("marked {}", world.folder().display());
        let mut command = world.planck()?;
        command
            .args(["mcp", "bridge", NAME, "--", "node"])
            .arg(program)
            .args(["stdio", "marked"])
            .arg(world.folder())
            .env("ANTHROPIC_API_KEY", "the key of a provider")
            .stdout(Stdio::null())
            .stderr(File::create(&log)?);
        Ok(Self {
            process: command.spawn()?,
            mark,
            log,
        })
    }

    /// Returns the process of the server itself, not that of its reaper.
    fn server(&self) -> Option<Pid> {
        process_of(&self.mark)
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    async fn leaves_nothing(&self) -> Result<()> {
        eventually("no process of the server is left", async || {
            (count(&self.mark) == 0).then_some(())
        })
        .await
    }
}

/// Returns the process of a server whose command line has these words, not that of its reaper.
fn process_of(mark: &str) -> Option<Pid> {
    processes_of(mark).first().copied()
}

fn processes_of(mark: &str) -> Vec<Pid> {
    let servers = processes(mark).filter_map(|process| {
        let words = fs::read_to_string(process.join("cmdline")).ok()?;
        let program = Path::new(words.split('\0').next()?).file_name()?;
        let is_server = ["node", "python3"].iter().any(|name| program == *name);
        is_server.then(|| process.file_name()?.to_str()?.parse().ok())?
    });
    servers.map(Pid::from_raw).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_server_is_a_sidecar() -> Result<()> {
    let Some(program) = program() else {
        return Ok(());
    };
    let script = Script::new().rounds(
        by("talker"),
        [
            Reply::call("echo", json!({"message": "hi"})),
            Reply::text("it said {{result:echo}}"),
        ],
    );
    let world = World::start(Backend::Sqlite, script).await?;
    let node = world.node().await?;
    let mut bridge = RunningBridge::start(&world, &program)?;
    found(&world, NAME, 1).await.with_context(|| bridge.log())?;
    let scene = Scene::start_beside(world, node, &[member("talker", &["echo"])], "go").await?;
    assert_eq!(scene.answer().await?, "it said Echo: hi");
    let planck = async |args: &[&str]| {
        let mut command = scene.world.planck()?;
        command.args(args);
        run(command).await
    };
    let listed = planck(&["sidecar", "ls"]).await?;
    assert!(listed.out.contains("get-sum"), "{listed:?}");
    for (tool, args, wanted) in [
        ("get-sum", r#"{"a": 2, "b": 3}"#, "5"),
        ("get-tiny-image", "{}", "[image, image/png, about"),
        ("get-resource-links", "{}", "[link to "),
        (
            "get-structured-content",
            r#"{"location": "Chicago"}"#,
            "temperature",
        ),
    ] {
        let called = planck(&["sidecar", "call", NAME, tool, args]).await?;
        let (code, told) = (called.code, called.out.contains(wanted));
        assert_eq!((code, told), (0, true), "{called:?}");
    }
    let environment = planck(&["sidecar", "call", NAME, "get-env"]).await?;
    let has_key = environment.out.contains("ANTHROPIC");
    assert!(environment.code == 0 && !has_key, "{environment:?}");
    let refused = planck(&["sidecar", "call", NAME, "get-sum", r#"{"a": "x"}"#]).await?;
    assert_eq!(refused.code, 1, "{refused:?}");

    kill(Pid::from_raw(pid(&bridge.process)?), Signal::SIGTERM)?;
    let ended = timeout(PATIENCE, bridge.process.wait()).await??;
    assert!(ended.success(), "{ended:?}: {}", bridge.log());
    bridge.leaves_nothing().await?;
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_killed_mcp_server_are_answered_and_its_tools_come_back() -> Result<()> {
    let Some(program) = program() else {
        return Ok(());
    };
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let node = world.node().await?;
    let mut bridge = RunningBridge::start(&world, &program)?;
    found(&world, NAME, 1).await.with_context(|| bridge.log())?;
    let slow = r#"{"duration": 100, "steps": 1000}"#;
    let mut command = world.planck()?;
    let tool = "trigger-long-running-operation";
    command
        .args(["sidecar", "call", NAME, tool, slow])
        .stderr(Stdio::piped());
    let mut calling = command.spawn()?;
    let stderr = calling.stderr.take().context("no stderr")?;
    let mut lines = BufReader::new(stderr).lines();
    let report = timeout(PATIENCE, lines.next_line()).await??;
    assert!(
        report.as_ref().is_some_and(|line| line.contains("of 1000")),
        "{report:?}"
    );

    let server = bridge.server().context("no server runs")?;
    let killed = Instant::now();
    kill(server, Signal::SIGKILL)?;
    let ended = timeout(PATIENCE, calling.wait()).await??;
    let took = killed.elapsed();
    let mut said = String::new();
    while let Some(line) = lines.next_line().await? {
        said = line;
    }
    assert_eq!(ended.code(), Some(1), "{said}");
    assert!(said.contains("may or may not have taken effect"), "{said}");
    ensure!(took < Duration::from_secs(2), "the answer took {took:?}");
    eventually("the tools are back", async || {
        let mut command = world.planck().ok()?;
        command.args(["sidecar", "call", NAME, "echo", r#"{"message":"again"}"#]);
        let called = run(command).await.ok()?;
        (called.code == 0).then_some(())
    })
    .await
    .with_context(|| bridge.log())?;
    println!(
        "answered {took:?} after the kill, and back after {:?}",
        killed.elapsed()
    );

    bridge.process.kill().await?;
    bridge.leaves_nothing().await?;
    node.leave().await
}

fn pid(process: &Child) -> Result<i32> {
    Ok(process.id().context("it has ended")?.try_into()?)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs every case of the checker, 45 s: make test-all"]
async fn the_checker_of_sidecars_accepts_a_bridge() -> Result<()> {
    let Some(program) = program() else {
        return Ok(());
    };
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let planck = planck_tests::node::planck()?;
    let mut command = world.planck()?;
    command
        .args([
            "sidecar",
            "conform",
            NAME,
            "--patience",
            "3s",
            "--start-within",
            "20s",
        ])
        .args(["--args", r#"get-sum={"a":1,"b":2}"#])
        .args(["--args", r#"echo={"message":"hi"}"#])
        .args([
            "--slow",
            r#"trigger-long-running-operation={"duration":10,"steps":100}"#,
        ])
        .arg("--")
        .arg(planck)
        .args(["mcp", "bridge", NAME, "--trust-hints", "--", "node"])
        .arg(program)
        .arg("stdio");
    let checked = run(command).await?;
    assert_eq!(checked.code, 0, "{}", checked.out);
    let last = checked.out.lines().last().unwrap_or_default();
    assert!(last.contains(" passed, 0 failed"), "{last}");
    Ok(())
}

/// The suite plays servers, and `planck sidecar call` is the client. What is not passed, and why, is in a
/// list for each revision. The suite also fails if something of the list is passed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the conformance suite of MCP: make test-all"]
async fn the_conformance_suite_accepts_the_client_of_servers() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let modules = root.join(".tools/mcp-conformance/node_modules");
    let suite = modules.join("@modelcontextprotocol/conformance/dist/index.js");
    let judges = root.join("tests/judges/mcp-conformance");
    if !is_there(&suite) {
        return Ok(());
    }
    let node = node_in(&modules);
    for revision in ["2025-11-25", "2026-07-28"] {
        let results = tempfile::tempdir()?;
        let client = format!("python3 {}", judges.join("client.py").display());
        let known = judges.join(format!("known-client-{revision}.yaml"));
        let mut command = Command::new(&node);
        command
            .arg(&suite)
            .args(["client", "--command", &client, "--requirements", revision])
            .arg("--expected-failures")
            .arg(known)
            .arg("--output-dir")
            .arg(results.path())
            .env("PLANCK", planck_tests::node::planck()?)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let said = run(command).await?;
        let summary = said
            .out
            .split("=== SUITE SUMMARY")
            .last()
            .unwrap_or_default();
        assert_eq!(said.code, 0, "{revision}: {summary}{}", said.err);
    }
    Ok(())
}
