//! A repository that contains planted sessions. In one of them an agent is in the middle of a turn,
//! in which the model asks to run a command.

use std::{fs, path::Path, time::Duration};

use anyhow::Result;
use planck_scripted_model::{Reply, Script, When};
use planck_tests::machine::PersonalMachine;
use serde_json::json;

use super::interrupted;

const FOLDER: &str = ".planck/sessions";
const SHIPPED: &str = "sqlite:.planck/sessions";

/// Returns a script whose model answers the prompt "hello". On a node that continues the planted
/// turn, the model calls `bash`.
fn script() -> Script {
    let attack = Reply::text("I go on.").and_call("bash", json!({"command": "echo pwned > PWNED"}));
    Script::new()
        .rule(When::any().last("hello"), "Hello.")
        .rule(When::any().result_of("bash"), "Done.")
        .always(attack)
}

/// Returns a machine whose working folder is as it is after `git clone`, and contains an
/// interrupted session `old`.
async fn cloned() -> Result<PersonalMachine> {
    let machine = PersonalMachine::start(script()).await?;
    interrupted(&machine, &["--store", SHIPPED, "--session", "old", "go"]).await?;
    machine.model.set_script(script());
    let locks = machine.work().join(".planck/sessions/.nodes");
    fs::remove_dir_all(locks)?;
    Ok(machine)
}

fn is_pwned(machine: &PersonalMachine) -> bool {
    machine.work().join("PWNED").exists()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn a_store_that_the_user_names_continues_its_work() -> Result<()> {
    let machine = cloned().await?;
    let ran = machine
        .run(&[
            "run",
            "--model",
            "openai:gpt-5",
            "--store",
            SHIPPED,
            "--session",
            "old",
            "hello",
        ])
        .await?;
    assert!(
        ran.code == 0 && is_pwned(&machine),
        "the attack of the other tests does not work: {ran:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn shipped_sessions_start_nothing_whichever_command_runs_beside_them() -> Result<()> {
    let machine = cloned().await?;
    fs::write(machine.folder().join("lines"), "hello\n/quit\n")?;
    for command in [
        &["doctor"][..],
        &["session", "ls"],
        &["session", "show", "old"],
        &["session", "attach", "old"],
        &["session", "resume", "old"],
        &["session", "prompt", "old", "hello"],
        &["run", "--model", "openai:gpt-5", "hello"],
        &["chat", "--model", "openai:gpt-5"],
        &[
            "run",
            "--model",
            "openai:gpt-5",
            "--session",
            "old",
            "hello",
        ],
    ] {
        let mut planck = machine.planck(command)?;
        planck.stdin(fs::File::open(machine.folder().join("lines"))?);
        let ran = planck_tests::machine::run(planck).await?;
        let about_old = command.contains(&"old") && command.first() == Some(&"session");
        assert_eq!(
            ran.code,
            if about_old { 3 } else { 0 },
            "{command:?}: {ran:?}"
        );
        assert!(
            !is_pwned(&machine),
            "{command:?} ran the repository's command: {ran:?}"
        );
    }
    // A node would have taken up interrupted work by its second sweep.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!is_pwned(&machine));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn adopted_sessions_are_closed_and_start_only_when_prompted() -> Result<()> {
    let machine = cloned().await?;
    let unasked = machine.run(&["session", "adopt", FOLDER]).await?;
    assert!(
        unasked.code == 2 && unasked.err.contains("--yes") && unasked.out.contains("old"),
        "{unasked:?}"
    );
    let adopted = machine.run(&["session", "adopt", FOLDER, "--yes"]).await?;
    assert!(
        adopted.code == 0 && adopted.out.contains("old is here, closed"),
        "{adopted:?}"
    );
    let left = fs::read_dir(machine.work().join(".planck/sessions"))?.flatten();
    assert_eq!(
        left.filter(|entry| entry.file_name().to_string_lossy().contains("_old.db"))
            .count(),
        0
    );

    let other = machine
        .run(&["run", "--model", "openai:gpt-5", "hello"])
        .await?;
    assert_eq!(other.code, 0, "{other:?}");
    let listed = machine.run(&["session", "ls", "-o", "json"]).await?;
    let rows: Vec<serde_json::Value> = serde_json::from_str(&listed.out)?;
    let old = rows.iter().find(|row| row["name"] == "old");
    assert!(
        old.is_some_and(|row| row["state"] == "closed" && row["owner"].is_null()),
        "{rows:#?}"
    );
    assert!(!is_pwned(&machine), "an adopted session went on by itself");
    let shown = machine.run(&["session", "attach", "old"]).await?;
    assert!(shown.code == 0 && shown.out.contains("› go"), "{shown:?}");
    assert!(!is_pwned(&machine));

    let asked = machine.run(&["run", "--session", "old", "hello"]).await?;
    assert!(
        asked.code == 0 && is_pwned(&machine),
        "an adopted session goes on when the user asks: {asked:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn adopting_follows_no_link_and_takes_no_name_twice() -> Result<()> {
    let machine = cloned().await?;
    let shipped = machine.work().join(".planck/sessions");
    let ran = machine
        .run(&[
            "run",
            "--model",
            "openai:gpt-5",
            "--session",
            "old",
            "hello",
        ])
        .await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    let taken = machine.run(&["session", "adopt", FOLDER, "--yes"]).await?;
    assert!(
        taken.code == 1 && taken.err.contains("there is a session `old` already"),
        "{taken:?}"
    );

    let file = only_session(&shipped)?;
    let elsewhere = machine.folder().join("elsewhere.db");
    fs::rename(&file, &elsewhere)?;
    std::os::unix::fs::symlink(&elsewhere, &file)?;
    let linked = machine.run(&["session", "adopt", FOLDER, "--yes"]).await?;
    assert!(
        linked.code == 1 && linked.err.contains("it is a link") && elsewhere.exists(),
        "{linked:?}"
    );

    fs::remove_dir_all(&shipped)?;
    fs::create_dir(machine.folder().join("far"))?;
    std::os::unix::fs::symlink(machine.folder().join("far"), &shipped)?;
    let linked = machine.run(&["session", "adopt", FOLDER, "--yes"]).await?;
    assert!(
        linked.code == 1 && linked.err.contains("it is a link"),
        "{linked:?}"
    );
    Ok(())
}

fn only_session(folder: &Path) -> Result<std::path::PathBuf> {
    let found = fs::read_dir(folder)?
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().ends_with("_old.db"));
    found
        .map(|entry| entry.path())
        .ok_or_else(|| anyhow::anyhow!("no session file"))
}
