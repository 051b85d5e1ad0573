//! Untrusted text that is written to a user's terminal: escape sequences, C1 controls,
//! bidirectional and invisible characters.

use std::{fs::File, process::Stdio};

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use planck_common::event::EventKind;
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    eventually::eventually,
    machine::{PersonalMachine, of_kind, run},
    terminal::Terminal,
    world::{Backend, World},
};
use serde_json::json;

/// Text that would write the clipboard, clear the screen, hide the text that follows, and reverse
/// the direction of the line. It uses escape sequences, C1 controls and Unicode characters.
const HOSTILE: &str = "\x1b]52;c;cm0gLXJmIH4=\x07\x1b[2J\x1b[8m\u{9b}2J\u{9d}0;t\u{9c}\x07\u{202e}exe\u{2066}\u{200b}\u{e0041}";

/// Returns those characters of a text that must not reach a terminal.
fn hostile(text: &str) -> Vec<char> {
    let is_hostile = |c: &char| match *c {
        '\n' | '\t' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200b}' | '\u{e0041}' => true,
        c => c.is_control(),
    };
    text.chars().filter(is_hostile).collect()
}

fn team(member: serde_json::Value) -> String {
    json!([member]).to_string()
}

/// Returns the script of a model that says the hostile text, has a tool print it, and passes it to
/// a tool that does not exist.
fn script() -> Script {
    let call = Reply::text(HOSTILE).and_call(
        "bash",
        json!({"command": format!("printf '%s' '{HOSTILE}' # {HOSTILE}")}),
    );
    let unknown = Reply::text("next").and_call("none", json!({ HOSTILE: HOSTILE, "b": 1 }));
    Script::new().rounds(
        When::any(),
        [call, unknown, Reply::text(format!("the end {HOSTILE}"))],
    )
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn team_file_of_a_stranger_writes_no_escapes_into_errors() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("hi")).await?;
    for (file, member) in [
        ("name", json!({"type": "a", "name": HOSTILE, "tools": []})),
        ("type", json!({"type": HOSTILE, "tools": ["none"]})),
        ("field", json!({"type": "a", HOSTILE: 1})),
        ("tool", json!({"type": "a", "tools": [HOSTILE]})),
        (
            "provider",
            json!({"type": "a", "provider": HOSTILE, "model_id": HOSTILE}),
        ),
        ("address", json!({"type": "a", "base_url": HOSTILE})),
    ] {
        machine.write(&format!("{file}/TEAM.json"), &team(member))?;
        for command in [
            &["team", "validate", file][..],
            &["run", "--team", file, "--model", "openai:m", "go"],
        ] {
            let ran = machine.run(command).await?;
            assert_eq!(
                (hostile(&ran.out), hostile(&ran.err)),
                (vec![], vec![]),
                "{command:?}: {ran:?}"
            );
        }
    }
    let told = machine.run(&["team", "validate", "field"]).await?;
    assert!(
        told.out.contains("␛]52;c;") && told.out.contains("\\u{202e}"),
        "it is shown that somebody tried: {told:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn model_and_tools_write_no_escapes_in_any_form_of_output() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let ran = machine
        .run(&["run", "--model", "openai:m", "--session", "one", "go"])
        .await?;
    assert!(
        ran.code == 0 && ran.out.contains("the end ␛]52;c;"),
        "{ran:?}"
    );
    let mut commands = vec![
        vec!["session", "ls", "-o", "json"],
        vec!["session", "show", "one"],
        vec!["session", "export", "one"],
        vec!["session", "show", "one", "-o", "json"],
        vec!["agent", "ls", "one"],
        vec!["run", "-o", "jsonl", "--session", "one", "again"],
    ];
    commands.push(vec!["session", "show", HOSTILE]);
    let mut seen = vec![ran];
    for command in &commands {
        seen.push(machine.run(command).await?);
    }
    for ran in &seen {
        assert_eq!(
            (hostile(&ran.out), hostile(&ran.err)),
            (vec![], vec![]),
            "{ran:?}"
        );
    }
    let exported = seen.get(3).context("the export")?;
    let ends = of_kind(&exported.events()?, EventKind::TurnEnd);
    assert_eq!(
        ends[0]["message"],
        format!("the end {HOSTILE}"),
        "the export means what was said"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn only_plancks_own_colours_reach_a_terminal() -> Result<()> {
    let machine = PersonalMachine::start(script()).await?;
    let mut command = machine.planck(&["run", "--model", "openai:m", "go"])?;
    command
        .stdin(Stdio::null())
        .env_remove("NO_COLOR")
        .env("TERM", "xterm-256color");
    let terminal = Terminal::attach(&mut command, false)?;
    let mut child = command.spawn()?;
    drop(command);
    let ended = tokio::time::timeout(std::time::Duration::from_secs(60), child.wait()).await??;
    let drawn = terminal.screen().await?;
    assert!(
        ended.success() && drawn.contains("\x1b[2m") && drawn.contains("the end"),
        "{drawn:?}"
    );
    let ours = [
        "\x1b[0m",
        "\x1b[1m",
        "\x1b[2m",
        "\x1b[3m",
        "\x1b[36m",
        "\x1b[31m",
        "\x1b[32m",
        "\x1b[33m",
        "\r\x1b[2K",
        "\r\n",
    ];
    let foreign = ours
        .iter()
        .fold(drawn.clone(), |text, own| text.replace(own, "\n"));
    assert_eq!(hostile(&foreign), Vec::<char>::new(), "{drawn:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn sidecar_of_any_nats_client_writes_no_escapes_into_lists() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new().always("hi")).await?;
    let node = world.node().await?;
    let nats = world.caller.nats.clone();
    // The node asks all sidecars, and then this one.
    let mut asked = nats.subscribe("$SRV.>").await?;
    let info = json!({
        "type": "io.nats.micro.v1.info_response", "name": "evil", "id": "one", "version": format!("1\nalive{HOSTILE}"),
        "description": "", "metadata": {"planck": "1"},
        "endpoints": [{"name": "t", "subject": format!("tool.evil.{HOSTILE}"), "queue_group": "evil", "metadata":
            {"kind": "tool", "description": HOSTILE, "parameters": "{\"type\":\"object\"}", "effect": HOSTILE}}],
    });
    let answering = tokio::spawn(async move {
        while let Some(message) = asked.next().await {
            let Some(reply) = message.reply else { continue };
            let _sent = nats.publish(reply, info.to_string().into()).await;
        }
    });
    let hello = json!({"v": 1, "type": "hello", "sidecar": "evil", "instance": "one"});
    world
        .caller
        .nats
        .publish("sidecar.evil", hello.to_string().into())
        .await?;
    let listed = eventually("the sidecar is listed", async || {
        let mut command = world.planck().ok()?;
        command.args(["sidecar", "ls"]);
        run(command)
            .await
            .ok()
            .filter(|listed| listed.out.contains("evil"))
    })
    .await?;
    assert_eq!(hostile(&listed.out), Vec::<char>::new(), "{listed:?}");
    assert_eq!(
        listed.out.lines().count(),
        2,
        "it forges no row: {listed:?}"
    );
    answering.abort();
    let log = node.log();
    node.leave_despite(&["is left out"]).await?;
    assert_eq!(hostile(&log), Vec::<char>::new(), "{log:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn published_text_writes_no_escapes_into_events() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new().always("hi")).await?;
    let nats = world.caller.nats.clone();
    let publishing = tokio::spawn(async move {
        loop {
            let _sent = nats
                .publish("agent.forged", format!("{{\"a\":\n\"{HOSTILE}\"}}").into())
                .await;
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    });
    for arguments in [
        &["events", "agent.>"][..],
        &["events", "agent.>", "-o", "jsonl"],
    ] {
        let log = world.folder().join("events.log");
        let mut command = world.planck()?;
        let mut child = command
            .args(arguments)
            .stdout(File::create(&log)?)
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let seen = eventually("events are shown", async || {
            std::fs::read_to_string(&log)
                .ok()
                .filter(|text| text.lines().count() > 1)
        })
        .await?;
        child.kill().await?;
        assert_eq!(hostile(&seen), Vec::<char>::new(), "{seen:?}");
        assert!(
            seen.lines()
                .all(|line| line.starts_with('{') || line.contains("agent.forged")),
            "one line each: {seen:?}"
        );
    }
    publishing.abort();
    Ok(())
}
