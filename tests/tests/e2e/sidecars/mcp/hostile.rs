//! A hostile MCP server: what it says and does harms neither the node nor the agents' other tools.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    eventually::within,
    node::{Node, memory},
    world::{Backend, World},
};
use serde_json::{Value, json};

use super::{own::Configured, process_of};
use crate::teams::scene::{Scene, by, member, said};

const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/e2e/sidecars/mcp/hostile.py"
);

/// The growth of a node's memory that a server may cause, in bytes. It was 61 to 143 MiB; a node that
/// kept the answer of 100 MB, as a message and as a value, would grow by more.
const GROWTH: u64 = 192 << 20;

/// How long a turn may take. The longest ends after 30 s, and a busy machine needs the rest to read what
/// a server wrote without a pause.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long it may take until a server that answers nothing is started again.
const RESTART: Duration = Duration::from_secs(40);

/// A turn of the agent: its prompt, the tool that it calls, and the arguments.
type CallingTurn = (&'static str, &'static str, Value);

fn script(turns: &[CallingTurn]) -> Script {
    turns
        .iter()
        .fold(Script::new(), |script, (prompt, tool, args)| {
            let said = Reply::text(format!("{{{{result:{tool}}}}}"));
            script.rounds(
                by("talker").user(prompt),
                [Reply::call(tool, args.clone()), said],
            )
        })
}

fn configured(world: &World) -> Configured {
    let mut configured = Configured::empty(world);
    let mark = configured.mark.clone();
    configured.set(
        "HOSTILE_COMMAND",
        format!("python3,{PROGRAM},{}", mark.replace(' ', ",")),
    );
    configured.set("HOSTILE_SANDBOX", "off");
    configured.set("HOSTILE_TIMEOUT", "3s");
    configured
}

/// Waits for another process of the server than this one.
async fn another(pid: Pid, configured: &Configured) -> Result<Pid> {
    within(RESTART, "the server is started again", async || {
        process_of(&configured.mark).filter(|now| *now != pid)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "waits two minutes until servers that hang are started again: make test-all"]
async fn a_hostile_server_harms_only_its_own_calls() -> Result<()> {
    let turns: [CallingTurn; 7] = [
        ("go", "hostile__echo", json!({})),
        ("shadow", "hostile__bash", json!({"command": "id"})),
        ("huge", "hostile__huge", json!({})),
        ("endless", "hostile__endless", json!({})),
        ("changes", "hostile__changes", json!({})),
        ("chatter", "hostile__chatter", json!({})),
        ("hung", "hostile__echo", json!({})),
    ];
    let world = World::start(Backend::Sqlite, script(&turns)).await?;
    let configured = configured(&world);
    let node = configured.node(&world).await?;
    let talker = member("talker", &["bash", "hostile__*"]);
    let mut scene = Scene::start_beside(world, node, &[talker], "go").await?;
    let first = scene.answer().await?;
    assert_eq!(first, "[resource file:///../../etc/passwd]\nroot");
    let pid = scene.node.as_ref().context("no node")?.pid();
    let before = memory(pid)?;
    let listed = configured.planck(&scene.world, &["sidecar", "ls"]).await?;
    for left_out in ["`remote` is left out", "`wide` is left out"] {
        assert!(listed.out.contains(left_out), "{listed:?}");
    }
    let shown = configured
        .planck(&scene.world, &["mcp", "allow", "hostile", "--dry-run"])
        .await?;
    assert!(
        !shown.out.contains(['\u{1b}', '\u{202e}', '\u{e0041}']),
        "{shown:?}"
    );

    let session = scene.started.session_id.clone();
    let log = || scene.node.as_ref().map_or(String::new(), Node::log);
    for (prompt, wanted, ends) in [
        ("shadow", r#"the server got {"command": "id"}"#, false),
        ("changes", "changed", false),
        ("chatter", "said much", false),
        // The server ends at 16 MiB, unless the time-out of 3 s ends the call before.
        ("huge", "error", true),
        // Progress renews the time-out for at most ten times as long. Then the server still writes, so
        // it is started again.
        ("endless", "timed out", true),
        ("hung", "timed out", true),
    ] {
        configured.listed(&scene.world, &["hostile", " 1 "]).await?;
        let server = process_of(&configured.mark).context("no server")?;
        if prompt == "hung" {
            kill(server, Signal::SIGSTOP)?;
        }
        let began = Instant::now();
        let accepted = scene.world.caller.prompt(session.as_str(), prompt).await?;
        let end = scene
            .recorder
            .answered_within(PATIENCE, &accepted.prompt_id)
            .await?;
        let said = said(&end)?;
        let shown = said.get(..500).unwrap_or(&said);
        assert!(said.contains(wanted), "{prompt}: {shown}");
        let took = began.elapsed();
        ensure!(took < PATIENCE, "{prompt} took {took:?}");
        if ends {
            another(server, &configured).await.with_context(log)?;
        }
    }

    let grown = memory(pid)?.saturating_sub(before);
    ensure!(grown < GROWTH, "the node has grown by {} MiB", grown >> 20);
    println!("the node has grown by {} MiB", grown >> 20);
    let log = log();
    let lines = log.lines().filter(|line| line.contains("zzzz")).count();
    ensure!(
        (1..2_000).contains(&lines),
        "{lines} lines of the server are in the log"
    );
    let node = scene.node.take().context("no node")?;
    node.leave_despite(&["is a tool of this node too"]).await?;
    configured.leaves_nothing().await
}
