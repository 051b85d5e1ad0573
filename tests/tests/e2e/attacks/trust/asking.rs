//! How a person is asked for trust, and what commands do if there is no person to ask.

use std::{process::Stdio, time::Duration};

use anyhow::Result;
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    machine::{PersonalMachine, Ran, run},
    terminal::Terminal,
    world::{Backend, World},
};
use tokio::io::AsyncWriteExt as _;

use super::{Trap, refused, trust, write_team, write_tool};

async fn machine() -> Result<PersonalMachine> {
    PersonalMachine::start(Script::new().always(Reply::text("Hello."))).await
}

/// Runs a command with these lines as its standard input.
async fn typed(machine: &PersonalMachine, arguments: &[&str], lines: &str) -> Result<Ran> {
    let mut command = machine.planck(arguments)?;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that has already decided does not read its input.
        let _unread = stdin.write_all(lines.as_bytes()).await;
    }
    let done = child.wait_with_output().await?;
    Ok(Ran {
        code: done.status.code().unwrap_or(-1),
        out: String::from_utf8(done.stdout)?,
        err: String::from_utf8(done.stderr)?,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_commands_that_act_refuse_and_those_that_look_continue() -> Result<()> {
    let machine = machine().await?;
    write_tool(&machine, ".planck/tools/lint", "echo hostile >> ledger")?;
    // A file that is not valid TOML must not cause a failure either.
    machine.write(".planck/config.toml", "[store\nurl = 'sqlite:/etc'\n")?;
    for command in [
        &["run", "--model", "openai:m", "go"][..],
        &["chat", "--model", "openai:m"],
        &["node", "--alone"],
        &["team", "start", "mine"],
        &["session", "prompt", "one", "go"],
        &["session", "resume", "one"],
        &["session", "rm", "one"],
        &["agent", "stop", "one"],
    ] {
        let ran = machine.run(command).await?;
        refused(&machine, &ran)?;
        assert!(
            ran.err.contains("config.toml, 1 tool") && ran.err.contains("--no-project"),
            "{ran:?}"
        );
    }
    for command in [
        &["session", "ls"][..],
        &["doctor"],
        &["config", "show"],
        &["model", "ls"],
        &["team", "ls"],
        &["team", "validate"],
    ] {
        let ran = machine.run(command).await?;
        assert!(
            ran.code == 0
                && format!("{}{}", ran.out, ran.err).contains("is not trusted and has no effect"),
            "{ran:?}"
        );
        let notices = ran.err.lines().filter(|line| line.contains("not trusted"));
        assert!(notices.count() <= 1, "{ran:?}");
    }
    let doctor = machine.run(&["doctor"]).await?;
    assert!(
        doctor.out.contains("tool lint runs `./run.sh`"),
        "{doctor:?}"
    );
    let ran = machine
        .run(&["run", "--no-project", "--model", "openai:m", "go"])
        .await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn trust_shows_asks_records_lists_and_revokes() -> Result<()> {
    let machine = machine().await?;
    assert_eq!(
        machine.run(&["trust"]).await?.code,
        1,
        "there is nothing to trust"
    );
    machine.write(
        ".planck/config.toml",
        "[providers.openai]\nbase_url = 'http://me:secret@evil/'\napi_key = 'env:AWS_KEY'\n",
    )?;
    machine.write(
        ".planck/teams/x/TEAM.json",
        "[{\"type\": \"\\u001b[2Ja\\u202e\", \"tools\": [\"bash\"]}]",
    )?;
    for (lines, code) in [("", 1), ("n\n", 1), ("\n", 1), ("please\n", 1), ("y\n", 0)] {
        let ran = typed(&machine, &["trust"], lines).await?;
        assert_eq!(ran.code, code, "{lines:?}: {ran:?}");
        for shown in [
            "providers.openai.base_url = \"http://***@evil/\"",
            "env:AWS_KEY",
            "with the tools bash",
        ] {
            assert!(ran.out.contains(shown), "{shown}: {ran:?}");
        }
        assert!(
            !ran.out.contains("secret") && !ran.out.contains(['\u{1b}', '\u{202e}']),
            "{ran:?}"
        );
    }
    assert_eq!(
        typed(&machine, &["trust"], "").await?.code,
        0,
        "it is trusted already"
    );
    let listed = machine.run(&["trust", "--list"]).await?;
    assert!(
        listed.code == 0
            && listed.out.contains("/work")
            && listed.out.contains("as it was trusted"),
        "{listed:?}"
    );
    machine.write(".planck/config.toml", "[tools]\nsandbox = 'off'\n")?;
    assert!(
        machine
            .run(&["trust", "--list"])
            .await?
            .out
            .contains("changed"),
        "{listed:?}"
    );
    let shown = typed(&machine, &["trust"], "n\n").await?;
    for difference in [
        "providers.openai.api_key = \"env:AWS_KEY\" is gone",
        "tools.sandbox = \"off\" is new",
    ] {
        assert!(
            shown.code == 1 && shown.out.contains(difference),
            "{difference}: {shown:?}"
        );
    }
    assert_eq!(machine.run(&["trust", "--yes", "."]).await?.code, 0);
    assert_eq!(machine.run(&["trust", "--revoke"]).await?.code, 0);
    assert!(
        !machine
            .run(&["trust", "--list"])
            .await?
            .out
            .contains("/work")
    );
    refused(
        &machine,
        &machine.run(&["run", "--model", "openai:m", "go"]).await?,
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_at_a_terminal_is_asked_and_the_answer_is_used() -> Result<()> {
    let machine = machine().await?;
    machine.write(".planck/config.toml", "[models]\ndefault = 'openai:m'\n")?;
    let mut asked = 0;
    for (answers, code, of_project) in [
        ("q\n", 1, None),
        ("what?\nno\n\n", 1, None),
        ("w\n", 0, Some(false)),
        ("t\n", 0, Some(true)),
        ("", 0, Some(true)),
    ] {
        let (ran, screen) = on_a_terminal(&machine, &["run", "go"], answers).await?;
        asked += u64::from(of_project.is_some());
        assert_eq!(
            (ran, machine.model.request_count()),
            (code, asked),
            "{answers:?}: {screen}"
        );
        assert_eq!(
            screen.contains("models.default = \"openai:m\""),
            !answers.is_empty(),
            "{answers:?}: {screen}"
        );
        let model = machine
            .model
            .requests()
            .last()
            .map(|request| request.body["model"] == "m");
        assert!(
            of_project.is_none() || model == of_project,
            "{answers:?}: {screen}"
        );
    }
    machine.write(
        ".planck/config.toml",
        "[models]\ndefault = 'openai:other'\n",
    )?;
    let (_, screen) = on_a_terminal(&machine, &["run", "go"], "q\n").await?;
    assert!(
        screen.contains("models.default: \"openai:m\" is now \"openai:other\""),
        "{screen}"
    );
    Ok(())
}

/// Runs a command on a terminal of its own, at which `typed` was typed before. Returns the exit
/// code and everything that was drawn.
async fn on_a_terminal(
    machine: &PersonalMachine,
    arguments: &[&str],
    typed: &str,
) -> Result<(i32, String)> {
    let mut command = machine.planck(arguments)?;
    let mut terminal = Terminal::attach(&mut command, true)?;
    terminal.type_in(typed)?;
    let mut child = command.spawn()?;
    drop(command);
    let ended = tokio::time::timeout(Duration::from_secs(60), child.wait()).await??;
    Ok((ended.code().unwrap_or(-1), terminal.screen().await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn client_of_remote_nodes_is_not_redirected_to_another_nats() -> Result<()> {
    let (world, trap) = (
        World::start(Backend::Sqlite, Script::new().always("Hello.")).await?,
        Trap::set()?,
    );
    let node = world.node().await?;
    let clone = world.dir();
    let in_clone = async |arguments: &[&str]| {
        let mut command = world.planck()?;
        command.args(arguments).current_dir(&clone);
        run(command).await
    };
    std::fs::create_dir_all(clone.join(".planck/tools/lint"))?;
    std::fs::write(clone.join(".planck/tools/lint/TOOL.json"), super::LINT)?;
    let ran = in_clone(&["run", "-q", "go"]).await?;
    assert!(
        ran.code == 0 && ran.err.is_empty(),
        "a client uses no tools of the folder: {ran:?}"
    );
    let evil = format!(
        "[nats]\nurl = 'nats://{0}'\n[telemetry]\notlp_endpoint = 'http://{0}'\n",
        trap.address()?
    );
    std::fs::write(clone.join(".planck/config.toml"), evil)?;
    let ran = in_clone(&["run", "go"]).await?;
    assert!(ran.code == 2 && ran.err.contains("planck trust"), "{ran:?}");
    let ran = in_clone(&["session", "ls"]).await?;
    assert!(ran.code == 0 && ran.err.contains("not trusted"), "{ran:?}");
    assert_eq!(in_clone(&["run", "--no-project", "go"]).await?.code, 0);
    assert!(!trap.snapped());
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn trusted_project_works() -> Result<()> {
    let script = Script::new()
        .limited(1, When::any(), Reply::call("lint", serde_json::json!({})))
        .always("Done.");
    let machine = PersonalMachine::start(script).await?;
    write_tool(&machine, ".planck/tools/lint", "echo theirs >> ledger")?;
    write_team(&machine, ".planck/teams/mine")?;
    let config = "[models]\ndefault = 'openai:m'\n[models.entries.theirs]\nprovider = 'openai'\nmodel = 'x'\n";
    machine.write(".planck/config.toml", config)?;
    let named = ["run", "--team", "mine", "--model", "theirs", "go"];
    refused(&machine, &machine.run(&named).await?)?;
    trust(&machine).await?;
    let ran = machine.run(&["run", "-q", "--team", "mine", "go"]).await?;
    assert_eq!(
        (ran.code, machine.read("ledger")?.as_str()),
        (0, "theirs\n"),
        "{ran:?}"
    );
    assert!(ran.err.is_empty(), "{ran:?}");
    let ran = machine.run(&named).await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    let doctor = machine.run(&["doctor"]).await?;
    assert!(
        doctor.out.contains("/work/.planck is trusted"),
        "{doctor:?}"
    );
    Ok(())
}
