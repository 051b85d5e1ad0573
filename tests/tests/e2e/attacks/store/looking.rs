//! Commands that only look leave no trace: they create, change and remove no file, and take up no
//! work.

use std::fs;

use anyhow::Result;
use planck_scripted_model::Script;
use planck_tests::machine::PersonalMachine;

use super::{interrupted, listing};

const LOOKING: [&[&str]; 13] = [
    &["doctor"],
    &["config", "show", "--origin"],
    &["session", "ls"],
    &["session", "ls", "--state", "failed", "-o", "json"],
    &["session", "rewind", "one"],
    &["session", "show", "one"],
    &["session", "attach", "one"],
    &["session", "attach", "one", "--from", "2", "-o", "jsonl"],
    &["session", "export", "one"],
    &["session", "prune", "--older-than", "1h", "--dry-run"],
    &["agent", "ls", "one"],
    &["team", "ls"],
    &["model", "ls"],
];

/// Runs every command that only looks, and checks that no file changes and no model is asked. All
/// commands must succeed, except that those about the session `one` end with 3 if `is_there` is
/// false.
async fn leave_no_trace(machine: &PersonalMachine, is_there: bool) -> Result<()> {
    let before = listing(machine.folder())?;
    let asked = machine.model.request_count();
    for command in LOOKING {
        let ran = machine.run(command).await?;
        let wants_one = command.contains(&"one");
        assert_eq!(
            ran.code,
            if wants_one && !is_there { 3 } else { 0 },
            "{command:?}: {ran:?}"
        );
        let after = listing(machine.folder())?;
        let changed: Vec<_> = after
            .iter()
            .filter(|(path, there)| before.get(*path) != Some(there))
            .map(|(path, _)| path)
            .collect();
        let gone: Vec<_> = before
            .keys()
            .filter(|path| !after.contains_key(*path))
            .collect();
        assert!(
            changed.is_empty() && gone.is_empty(),
            "{command:?} changed {changed:?} and removed {gone:?}"
        );
    }
    assert_eq!(
        machine.model.request_count(),
        asked,
        "looking asked a model"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn looking_at_an_empty_folder_creates_nothing() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Hello.")).await?;
    leave_no_trace(&machine, false).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn looking_at_sessions_leaves_no_trace() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Hello.")).await?;
    let ran = machine
        .run(&["run", "--model", "openai:gpt-5", "--session", "one", "go"])
        .await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    leave_no_trace(&machine, true).await?;
    fs::remove_file(machine.sessions()?.join("index.db"))?;
    leave_no_trace(&machine, true).await?;
    fs::write(
        machine.sessions()?.join("index.db"),
        "this is no database, whatever its name says".repeat(200),
    )?;
    leave_no_trace(&machine, true).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn looking_at_interrupted_work_shows_it_and_does_not_take_it_up() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Hello.")).await?;
    interrupted(&machine, &["--session", "one", "go"]).await?;
    machine.model.set_script(Script::new().always("Hello."));
    let journals = || -> Result<usize> {
        let names = fs::read_dir(machine.sessions()?)?
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned());
        Ok(names.filter(|name| name.ends_with("-wal")).count())
    };
    assert!(journals()? > 0, "a killed process leaves its journal");
    leave_no_trace(&machine, true).await?;
    let attached = machine.run(&["session", "attach", "one"]).await?;
    assert!(
        attached.out.contains("› go") && attached.err.contains("planck run --session one"),
        "{attached:?}"
    );
    // Removes the journal's index, as a restored backup has none.
    for entry in fs::read_dir(machine.sessions()?)?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().ends_with("-shm"))
    {
        fs::remove_file(entry.path())?;
    }
    leave_no_trace(&machine, true).await?;
    let ran = machine.run(&["run", "--session", "one", "more"]).await?;
    assert_eq!(ran.code, 0, "an acting command takes it up: {ran:?}");
    Ok(())
}
