//! The `nats` command line client works as a client.

use std::{fs::File, process::Stdio, time::Duration};

use anyhow::Result;
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    eventually::eventually,
    nats::find_cli,
    world::{Backend, World},
};
use serde_json::Value;
use tokio::{process::Command, time::timeout};

fn nats(world: &World) -> Result<Command> {
    let mut command = Command::new(find_cli()?);
    command
        .env("HOME", world.folder())
        .env("XDG_CONFIG_HOME", world.folder())
        .args(["--server", &world.nats.url()]);
    command.stdin(Stdio::null()).kill_on_drop(true);
    Ok(command)
}

async fn said(world: &World, args: &[&str]) -> Result<String> {
    let output = timeout(Duration::from_secs(20), nats(world)?.args(args).output()).await??;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr))
}

/// Waits until the server knows a subscription of the command line client.
pub async fn subscribed(world: &World, subject: &str) -> Result<()> {
    eventually("the server knows the subscription", async || {
        let connections = world.nats.monitor("/connz?subs=true").ok()?;
        let is_it = |connection: &Value| {
            let name = connection["name"].as_str().unwrap_or_default();
            name.starts_with("NATS CLI")
                && connection["subscriptions_list"]
                    .to_string()
                    .contains(&format!("\"{subject}\""))
        };
        connections["connections"]
            .as_array()?
            .iter()
            .any(is_it)
            .then_some(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_cli_watches_prompts_and_lists() -> Result<()> {
    if let Err(missing) = find_cli() {
        println!("NOT TESTED: {missing}");
        return Ok(());
    }
    let world = World::start(
        Backend::Sqlite,
        Script::new().always(Reply::text("Hello, nats.")),
    )
    .await?;
    let (node, recorder) = (world.node().await?, world.record().await?);
    let started = world.caller.start(&world.solo()).await?;

    let file = world.folder().join("sub.txt");
    let out = File::create(&file)?;
    let watch = nats(&world)?
        .args(["sub", "agent.>", "--raw"])
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()?;
    subscribed(&world, "agent.>").await?;
    let subject = format!("cmd.agent.{}.prompt", started.orchestrator);
    let reply = said(
        &world,
        &[
            "req",
            &subject,
            r#"{"text":"hello"}"#,
            "--raw",
            "--timeout",
            "10s",
        ],
    )
    .await?;
    let reply: Value = serde_json::from_str(reply.trim())?;
    assert_eq!(reply["v"], 1);
    let prompt = reply["ok"]["prompt_id"]
        .as_str()
        .unwrap_or_else(|| panic!("{reply}"));
    recorder
        .answered(&planck_common::InputId::parse(prompt)?)
        .await?;
    eventually("`nats sub` shows the end", async || {
        let seen = std::fs::read_to_string(&file).ok()?;
        (seen.contains("\"turn_end\"") && seen.contains("Hello, nats.")).then_some(())
    })
    .await?;
    drop(watch);

    let refused = said(
        &world,
        &[
            "req",
            "cmd.agent.nobody.info",
            "",
            "--raw",
            "--timeout",
            "10s",
        ],
    )
    .await?;
    assert!(refused.contains("not_found"), "{refused}");
    let listed = said(&world, &["service", "ls"]).await?;
    assert!(listed.contains("planck-node"), "{listed}");
    let stats = said(&world, &["service", "stats", "planck-node"]).await?;
    assert!(
        stats.contains("cmd.agent") || stats.contains("agent"),
        "{stats}"
    );
    node.leave().await
}
