//! The MCP servers that a node runs itself, from its configuration.

use std::{
    fs,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use planck_common::{envelope::Envelope, event::Event};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    eventually::{eventually, within},
    machine::{Ran, run},
    nats::free_port,
    node::{Node, count, memory},
    world::{Backend, World},
};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::{PATIENCE, process_of, processes_of, program};

use crate::teams::scene::{Scene, by, member, said};

/// How long all agents of a test may take.
const LONG: Duration = Duration::from_secs(120);

/// The configuration of a node with the server `everything`, which runs without a sandbox because it
/// is not in a folder of the system, and the words by which its processes are found.
pub struct Configured {
    environment: Vec<(String, String)>,
    pub mark: String,
}

impl Configured {
    pub fn empty(world: &World) -> Self {
        Self {
            environment: Vec::new(),
            mark: format!("marked {}", world.folder().display()),
        }
    }

    pub fn new(world: &World, program: &Path) -> Self {
        let (program, folder) = (program.display(), world.folder().display());
        let mut configured = Self::empty(world);
        // The server ignores further arguments.
        configured.set(
            "EVERYTHING_COMMAND",
            format!("node,{program},stdio,marked,{folder}"),
        );
        configured.set("EVERYTHING_SANDBOX", "off");
        configured.set("EVERYTHING_DENY", "get-env");
        configured
    }

    pub fn set(&mut self, key: &str, value: impl Into<String>) {
        self.environment
            .push((format!("PLANCK_MCP_{key}"), value.into()));
    }

    pub async fn node(&self, world: &World) -> Result<Node> {
        let pairs = self.environment.iter();
        let pairs: Vec<(&str, &str)> = pairs
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        world.node_with(&pairs).await
    }

    pub async fn planck(&self, world: &World, args: &[&str]) -> Result<Ran> {
        let mut command = world.planck()?;
        command.args(args).envs(self.environment.iter().cloned());
        run(command).await
    }

    /// Waits until `planck sidecar ls` has a line with these words.
    pub async fn listed(&self, world: &World, words: &[&str]) -> Result<()> {
        let list = async || {
            let listed = self.planck(world, &["sidecar", "ls"]).await.ok()?;
            let mut lines = listed.out.lines();
            let found = lines.any(|line| words.iter().all(|word| line.contains(word)));
            found.then_some(())
        };
        within(PATIENCE, &format!("a line with {words:?}"), list).await
    }

    pub async fn leaves_nothing(&self) -> Result<()> {
        eventually("no process of the server is left", async || {
            (count(&self.mark) == 0).then_some(())
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_runs_the_mcp_servers_of_its_configuration() -> Result<()> {
    let Some(program) = program() else {
        return Ok(());
    };
    let script = Script::new()
        .rounds(
            by("talker").user("go"),
            [
                Reply::call("everything__echo", json!({"message": "hi"})),
                Reply::text("it said {{result:everything__echo}}"),
            ],
        )
        .rounds(
            by("talker").user("again"),
            [
                Reply::call("everything__get-env", json!({})),
                Reply::text("{{result:everything__get-env}}"),
            ],
        );
    let world = World::start(Backend::Sqlite, script).await?;
    let mut configured = Configured::new(&world, &program);
    configured.set(
        "BROKEN_COMMAND",
        "sh,-c,echo 'error: no such port' >&2; exit 3",
    );
    configured.set("BROKEN_SANDBOX", "off");
    let node = configured.node(&world).await?;
    let mut scene =
        Scene::start_beside(world, node, &[member("talker", &["everything__*"])], "go").await?;
    assert_eq!(scene.answer().await?, "it said Echo: hi");
    let world = &scene.world;
    configured
        .listed(world, &["broken", "exit status 3: error: no such port"])
        .await?;
    let listed = configured.planck(world, &["sidecar", "ls"]).await?;
    let everything = listed
        .out
        .lines()
        .find(|line| line.starts_with("everything"));
    let everything = everything.context("not listed")?;
    assert!(
        everything.contains("get-sum") && !everything.contains("get-env"),
        "{everything}"
    );
    let said = scene.ask("again").await?;
    assert!(said.contains("no tool"), "{said}");

    // `call` starts the server of the configuration, also without a node.
    let called = configured
        .planck(
            world,
            &[
                "sidecar",
                "call",
                "everything",
                "get-sum",
                r#"{"a": 2, "b": 3}"#,
            ],
        )
        .await?;
    assert!(called.code == 0 && called.out.contains('5'), "{called:?}");

    let mut node = scene.node.take().context("no node")?;
    node.kill().await?;
    configured.leaves_nothing().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_mcp_server_of_a_node_ends_its_calls_and_comes_back() -> Result<()> {
    let Some(program) = program() else {
        return Ok(());
    };
    let script = slow_then_echo("everything");
    let world = World::start(Backend::Sqlite, script).await?;
    let configured = Configured::new(&world, &program);
    let node = configured.node(&world).await?;
    let talker = member("talker", &["everything__*"]);
    let scene = Scene::start_beside(world, node, &[talker], "go").await?;
    has_progressed(&scene).await?;
    let killed = Instant::now();
    kill(
        process_of(&configured.mark).context("no server")?,
        Signal::SIGKILL,
    )?;
    let said = scene.answer().await?;
    let took = killed.elapsed();
    assert!(said.contains("may or may not have taken effect"), "{said}");
    ensure!(took < Duration::from_secs(2), "the answer took {took:?}");
    configured
        .listed(&scene.world, &["everything", " 1 "])
        .await?;
    assert_eq!(scene.ask("again").await?, "Echo: again");
    println!("answered {took:?} after the kill");
    scene.end().await?;
    configured.leaves_nothing().await
}

/// Returns a script in which the agent calls a tool that runs for long, and `echo` in its next turn.
fn slow_then_echo(server: &str) -> Script {
    let slow = format!("{server}__trigger-long-running-operation");
    let echo = format!("{server}__echo");
    let said = |tool: &str| Reply::text(format!("{{{{result:{tool}}}}}"));
    Script::new()
        .rounds(
            by("talker").user("go"),
            [
                Reply::call(&slow, json!({"duration": 100, "steps": 1000})),
                said(&slow),
            ],
        )
        .rounds(
            by("talker").user("again"),
            [Reply::call(&echo, json!({"message": "again"})), said(&echo)],
        )
}

/// Waits until a call of the session has made progress.
async fn has_progressed(scene: &Scene) -> Result<()> {
    let subject = format!("session.{}", scene.started.session_id);
    eventually("the call has made progress", async || {
        let events = scene.recorder.events(&subject);
        let mut events = events.iter();
        let is_progress =
            |event: &Envelope| matches!(event.event(), Some(Ok(Event::ToolProgress(_))));
        events.any(is_progress).then_some(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_tool_is_left_out_until_it_is_allowed() -> Result<()> {
    let Some(program) = program() else {
        return Ok(());
    };
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let configured = Configured::new(&world, &program);
    let node = configured.node(&world).await?;
    configured
        .listed(&world, &["everything", "get-sum"])
        .await?;
    node.leave().await?;
    let mut files = fs::read_dir(world.folder().join(".planck/mcp"))?;
    let file = files.next().context("nothing was allowed")??.path();
    let mut pinned: Value = serde_json::from_slice(&fs::read(&file)?)?;
    let tools = pinned["tools"].as_array_mut().context("no tools")?;
    for tool in &mut *tools {
        if tool["name"] == "echo" {
            tool["description"] = "Another text.".into();
        }
    }
    tools.retain(|tool| tool["name"] != "get-sum");
    fs::write(&file, serde_json::to_vec(&pinned)?)?;

    let node = configured.node(&world).await?;
    configured
        .listed(
            &world,
            &[
                "everything",
                "`echo` is left out: it has changed",
                "`get-sum` is left out: it is new",
            ],
        )
        .await?;
    let shown = configured
        .planck(&world, &["mcp", "allow", "everything", "--dry-run"])
        .await?;
    assert!(shown.out.contains("Echoes back the input"), "{shown:?}");
    let allowed = configured
        .planck(&world, &["mcp", "allow", "everything"])
        .await?;
    assert_eq!(allowed.code, 0, "{allowed:?}");
    node.leave().await?;
    let node = configured.node(&world).await?;
    configured
        .listed(&world, &["everything", " echo ", "get-sum"])
        .await?;
    node.leave().await?;
    configured.leaves_nothing().await
}

/// Starts the server on HTTP.
fn serve(program: &Path, port: u16, world: &World) -> Result<Child> {
    let log = fs::File::create(world.folder().join("server.log"))?;
    Ok(Command::new("setpriv")
        .args(["--pdeathsig=KILL", "--", "node"])
        .arg(program)
        .arg("streamableHttp")
        .env("PORT", port.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_at_an_address_may_die_and_come_back() -> Result<()> {
    let Some(program) = program() else {
        return Ok(());
    };
    let script = slow_then_echo("remote");
    let world = World::start(Backend::Sqlite, script).await?;
    let port = free_port()?;
    let mut server = serve(&program, port, &world)?;
    let mut configured = Configured::empty(&world);
    configured.set("REMOTE_URL", format!("http://127.0.0.1:{port}/mcp"));
    let node = configured.node(&world).await?;
    configured.listed(&world, &["remote", "get-sum"]).await?;
    let scene = Scene::start_beside(world, node, &[member("talker", &["remote__*"])], "go").await?;
    has_progressed(&scene).await?;
    let killed = Instant::now();
    server.kill().await?;
    let said = scene.answer().await?;
    let took = killed.elapsed();
    assert!(said.contains("may or may not have taken effect"), "{said}");
    configured
        .listed(&scene.world, &["remote", "cannot be reached"])
        .await?;
    let _server = serve(&program, port, &scene.world)?;
    configured.listed(&scene.world, &["remote", " 1 "]).await?;
    assert_eq!(scene.ask("again").await?, "Echo: again");
    println!("answered {took:?} after the kill");
    scene.end().await
}

/// The number of agents that use the servers of three nodes.
const AGENTS: usize = 100;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs 100 agents on three nodes: make test-all"]
async fn agents_share_one_process_of_a_server_on_each_node() -> Result<()> {
    let Some(program) = program() else {
        return Ok(());
    };
    let echo = Reply::call("everything__echo", json!({"message": "hi"}));
    let last = Reply::text("{{result:everything__echo}}");
    let script = Script::new().rounds(by("talker"), [echo, last]);
    let world = World::start(Backend::Sqlite, script).await?;
    let configured = Configured::new(&world, &program);
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(configured.node(&world).await?);
    }
    let recorder = world.record().await?;
    let talker = member("talker", &["everything__*"]);
    let body = json!({"dir": world.dir(), "members": [talker], "prompt": "go"});
    let mut prompts = Vec::new();
    for _ in 0..AGENTS {
        let started = world.caller.start(&body).await?;
        prompts.push(started.prompt_id.context("no prompt")?);
    }
    for prompt in &prompts {
        let end = recorder.answered_within(LONG, prompt).await?;
        let logs: String = nodes.iter().map(Node::log).collect();
        assert_eq!(said(&end)?, "Echo: hi", "{logs}");
    }
    let servers = processes_of(&configured.mark);
    assert_eq!(servers.len(), nodes.len(), "{servers:?}");
    let sizes: Vec<u64> = servers
        .iter()
        .map(|pid| memory(pid.as_raw()))
        .collect::<Result<_>>()?;
    let (all, one) = (sizes.iter().sum::<u64>() >> 20, sizes[0] >> 20);
    println!(
        "{AGENTS} agents use {all} MiB of servers; with one for each agent, {} MiB",
        one * AGENTS as u64
    );
    for node in nodes {
        node.leave().await?;
    }
    configured.leaves_nothing().await
}
