//! Files of a repository that are not what they seem: links, pipes, hard links to other files,
//! endless files.

use std::{fs, os::unix::fs::symlink, path::Path, process::Stdio, time::Duration};

use anyhow::Result;
use nix::{sys::stat::Mode, unistd::mkfifo};
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{eventually::eventually, machine::PersonalMachine};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use super::{trust, write_team, write_tool};

/// How long a command may take that a pipe could block forever.
const SOON: Duration = Duration::from_secs(30);

/// Creates an entry of the file system at `at`, for example a link to the file `secret`.
type Plant = fn(secret: &Path, at: &Path) -> Result<()>;

const PLANTS: [(&str, Plant); 4] = [
    ("a link", |secret, at| Ok(symlink(secret, at)?)),
    ("a link", |_, at| Ok(symlink("/proc/self/environ", at)?)),
    ("hard links", |secret, at| Ok(fs::hard_link(secret, at)?)),
    ("a pipe", |_, at| {
        Ok(mkfifo(at, Mode::S_IRUSR | Mode::S_IWUSR)?)
    }),
];

#[tokio::test(flavor = "multi_thread")]
async fn instructions_of_a_repository_send_no_other_file_to_the_model() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Hello.")).await?;
    let (secret, agents) = (
        machine.work().join(".env"),
        machine.work().join("AGENTS.md"),
    );
    machine.write(".env", "PRIVATE")?;
    fs::create_dir(machine.work().join(".git"))?;
    for (told, plant) in PLANTS {
        plant(&secret, &agents)?;
        let ran = tokio::time::timeout(SOON, machine.run(&["run", "--model", "openai:m", "go"]))
            .await??;
        assert!(
            ran.code == 0 && ran.err.contains("AGENTS.md") && ran.err.contains(told),
            "{told}: {ran:?}"
        );
        fs::remove_file(&agents)?;
    }
    symlink("/dev/zero", &agents)?;
    assert_eq!(
        tokio::time::timeout(SOON, machine.run(&["run", "--model", "openai:m", "go"]))
            .await??
            .code,
        0
    );
    fs::remove_file(&agents)?;
    machine.write("AGENTS.md", &"word ".repeat(1 << 20))?;
    let ran = machine.run(&["run", "--model", "openai:m", "go"]).await?;
    assert!(ran.code == 0 && ran.err.contains("first 64 KiB"), "{ran:?}");
    for request in machine.model.requests() {
        let body = request.body.to_string();
        assert!(
            !body.contains("PRIVATE") && !body.contains("key-0123456789") && body.len() < 100_000
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn links_pipes_and_hard_links_make_a_project_untrustable() -> Result<()> {
    for (told, plant) in PLANTS {
        for name in ["config.toml", "tools/lint/lib.sh", "teams/review/TEAM.json"] {
            let machine = PersonalMachine::start(Script::new().always("Hello.")).await?;
            write_tool(&machine, ".planck/tools/lint", "echo fine")?;
            machine.write(".planck/teams/review/prompt.md", "")?;
            machine.write("secret", "PRIVATE")?;
            plant(
                &machine.work().join("secret"),
                &machine.work().join(".planck").join(name),
            )?;
            for (command, code) in [
                (&["trust", "--yes"][..], 1),
                (&["run", "--model", "openai:m", "go"], 2),
                (&["session", "ls"], 0),
                (&["doctor"], 0),
            ] {
                let ran = tokio::time::timeout(SOON, machine.run(command)).await??;
                let said = format!("{}{}", ran.out, ran.err);
                assert!(
                    ran.code == code
                        && said.contains(&format!(".planck/{name}"))
                        && said.contains(told),
                    "{ran:?}"
                );
                assert!(!said.contains("PRIVATE"), "{ran:?}");
            }
            assert_eq!(machine.model.request_count(), 0);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn skills_and_prompts_of_a_trusted_project_read_no_other_file() -> Result<()> {
    let load = Reply::call("load_skill", json!({"name": "plan"}));
    let machine =
        PersonalMachine::start(Script::new().limited(1, When::any(), load).always("Hello."))
            .await?;
    machine.write(
        "secret",
        "---\nname: plan\ndescription: PRIVATE\n---\nPRIVATE",
    )?;
    machine.write(
        ".planck/skills/good/SKILL.md",
        "---\nname: good\ndescription: Good.\n---\n",
    )?;
    machine.write(".planck/skills/plan/resources/x", "")?;
    write_team(&machine, ".planck/teams/mine")?;
    trust(&machine).await?;
    let (skill, prompt) = (
        machine.work().join(".planck/skills/plan/SKILL.md"),
        machine.work().join(".planck/teams/mine/prompt.md"),
    );
    for (told, plant) in PLANTS {
        plant(&machine.work().join("secret"), &skill)?;
        let ran = tokio::time::timeout(SOON, machine.run(&["run", "--model", "openai:m", "go"]))
            .await??;
        assert!(
            ran.code == 0 && ran.err.contains("plan/SKILL.md") && ran.err.contains(told),
            "{told}: {ran:?}"
        );
        fs::remove_file(&skill)?;
    }
    fs::remove_file(&prompt)?;
    symlink("../../../secret", &prompt)?;
    let ran = machine
        .run(&["run", "--model", "openai:m", "--team", "mine", "go"])
        .await?;
    assert_eq!(
        ran.code, 2,
        "a link among the teams is not what was trusted: {ran:?}"
    );
    let bodies: Vec<String> = machine
        .model
        .requests()
        .iter()
        .map(|request| request.body.to_string())
        .collect();
    assert!(
        bodies.iter().any(|body| body.contains("Good.")),
        "the other skill is there"
    );
    assert!(bodies.iter().all(|body| !body.contains("PRIVATE")));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_files_that_execute_are_refused_and_changed_texts_are_not() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Hello.")).await?;
    write_tool(&machine, ".planck/tools/lint", "echo fine")?;
    write_team(&machine, ".planck/teams/mine")?;
    machine.write(".planck/config.toml", "[limits]\nmax_tokens = 90000\n")?;
    machine.write(
        ".planck/skills/plan/SKILL.md",
        "---\nname: plan\ndescription: Plans.\n---\n",
    )?;
    trust(&machine).await?;
    let run = ["run", "--model", "openai:m", "--team", "mine", "go"];
    for (name, text) in [
        (".planck/teams/mine/prompt.md", "You lint twice."),
        (
            ".planck/skills/plan/SKILL.md",
            "---\nname: plan\ndescription: Plans more.\n---\n",
        ),
    ] {
        machine.write(name, text)?;
        let ran = machine.run(&run).await?;
        assert_eq!(ran.code, 0, "{name}: {ran:?}");
    }
    assert!(
        machine.model.requests()[0]
            .body
            .to_string()
            .contains("You lint twice.")
    );
    let asked = machine.model.request_count();
    for (name, text) in [
        (".planck/tools/lint/run.sh", "echo evil"),
        (".planck/tools/lint/more/lib.sh", ""),
        (".planck/teams/mine/TEAM.json", "[]"),
        (".planck/teams/new/TEAM.json", "[]"),
        (".planck/config.toml", "[tools]\nsandbox = 'off'\n"),
    ] {
        let ran = machine.run(&["run", "--model", "openai:m", "go"]).await?;
        assert_eq!(ran.code, 0, "{name}: {ran:?}");
        machine.write(name, text)?;
        let ran = machine.run(&["run", "--model", "openai:m", "go"]).await?;
        assert!(
            ran.code == 2 && ran.err.contains("is not what you trusted"),
            "{name}: {ran:?}"
        );
        let shown = machine.run(&["trust"]).await?;
        assert!(
            shown.code == 1 && shown.out.contains(name),
            "{name}: {shown:?}"
        );
        trust(&machine).await?;
    }
    assert_eq!(machine.model.request_count(), asked + 5);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_that_changes_while_planck_runs_is_not_run() -> Result<()> {
    let script = Script::new()
        .rule(When::any().last("lint"), Reply::call("lint", json!({})))
        .always("Done.");
    let machine = PersonalMachine::start(script).await?;
    write_tool(&machine, ".planck/tools/lint", "echo fine >> ledger")?;
    write_team(&machine, ".planck/teams/mine")?;
    trust(&machine).await?;
    let mut command = machine.planck(&["chat", "--model", "openai:m", "--team", "mine"])?;
    let mut chat = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut lines = chat
        .stdin
        .take()
        .ok_or_else(|| anyhow::anyhow!("no input"))?;
    lines.write_all(b"lint\n").await?;
    eventually("the tool runs", async || machine.read("ledger").ok()).await?;
    eventually("the first turn ends", async || {
        (machine.model.request_count() == 2).then_some(())
    })
    .await?;
    write_tool(&machine, ".planck/tools/lint", "echo hostile >> ledger")?;
    lines.write_all(b"lint\n").await?;
    drop(lines);
    assert!(tokio::time::timeout(SOON, chat.wait()).await??.success());
    assert_eq!(machine.read("ledger")?, "fine\n");
    let last = machine
        .model
        .requests()
        .last()
        .map(|request| request.body.to_string())
        .unwrap_or_default();
    assert!(
        last.contains("changed since the project was trusted"),
        "{last}"
    );
    Ok(())
}
