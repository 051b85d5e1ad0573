//! The default place of sessions: outside of the project, private, and used only if Planck made it.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    process::Stdio,
};

use anyhow::Result;
use planck_scripted_model::{Reply, Script, ScriptedFault};
use planck_tests::{
    eventually::eventually,
    machine::{PersonalMachine, run},
};
use tokio::process::Command;

use super::listing;

const RUN: [&str; 4] = ["run", "--model", "openai:gpt-5", "hello"];

async fn machine() -> Result<PersonalMachine> {
    PersonalMachine::start(Script::new().always("Hello.")).await
}

/// Returns the same command under another umask.
fn under_umask(mask: &str, command: &Command) -> Command {
    let inner = command.as_std();
    let mut outer = Command::new("sh");
    outer
        .args(["-c", r#"umask "$0"; exec "$@""#, mask])
        .arg(inner.get_program())
        .args(inner.get_args());
    outer.env_clear().envs(
        inner
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    if let Some(folder) = inner.get_current_dir() {
        outer.current_dir(folder);
    }
    outer
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    outer
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn sessions_are_readable_by_their_user_alone_whatever_the_umask() -> Result<()> {
    for (mask, store) in [
        ("022", None),
        ("000", None),
        ("000", Some("sqlite:named/sessions")),
    ] {
        let machine = PersonalMachine::start(
            Script::new().always(Reply::text("a b c").with_fault(ScriptedFault::Hang { after: 1 })),
        )
        .await?;
        let arguments = [
            &RUN[..],
            &store
                .map(|store| ["--store", store])
                .unwrap_or(["--dir", "."]),
        ]
        .concat();
        // During a turn there are journals too, so this test looks at the files during a turn.
        let mut running = under_umask(mask, &machine.planck(&arguments)?).spawn()?;
        eventually("the model is asked", async || {
            (machine.model.streams() > 0).then_some(())
        })
        .await?;
        let place = match store {
            Some(_) => machine.work().join("named"),
            None => machine.folder().join("home/.local/share/planck"),
        };
        let found = listing(&place)?;
        let name = |wanted: &str| {
            found
                .keys()
                .any(|path| path.to_string_lossy().ends_with(wanted))
        };
        assert!(
            name("index.db") && name("-wal") && name("-shm") && name(".lock"),
            "{:?}",
            found.keys()
        );
        for (path, (mode, ..)) in &found {
            let expected = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(
                mode & 0o777,
                expected,
                "{} under umask {mask}",
                path.display()
            );
        }
        assert_eq!(place.metadata()?.mode() & 0o777, 0o700);
        running.kill().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn running_leaves_the_project_unchanged() -> Result<()> {
    let machine = machine().await?;
    let ran = machine.run(&RUN).await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        listing(&machine.work())?.is_empty(),
        "{:?}",
        listing(&machine.work())?.keys()
    );
    let place = machine.sessions()?;
    for command in [&["config", "show", "--origin"][..], &["doctor"]] {
        let ran = machine.run(command).await?;
        assert!(
            ran.out.contains(&place.display().to_string()),
            "{command:?}: {ran:?}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn the_data_directory_is_where_the_user_says() -> Result<()> {
    let machine = machine().await?;
    let mut command = machine.planck(&RUN)?;
    command.env("XDG_DATA_HOME", machine.folder().join("data"));
    let ran = run(command).await?;
    assert!(
        ran.code == 0 && machine.folder().join("data/planck/projects").is_dir(),
        "{ran:?}"
    );
    let mut command = machine.planck(&RUN)?;
    command.env("XDG_DATA_HOME", "data");
    let ran = run(command).await?;
    assert!(
        ran.code == 0 && !machine.work().join("data").exists(),
        "{ran:?}"
    );
    let mut command = machine.planck(&RUN)?;
    command.env_remove("HOME");
    let ran = run(command).await?;
    assert!(
        ran.code == 1 && ran.err.contains("HOME") && ran.err.contains("--store"),
        "{ran:?}"
    );
    let mut command = machine.planck(&[&RUN[..], &["--store", "sqlite:named"]].concat())?;
    command.env_remove("HOME");
    let ran = run(command).await?;
    assert!(ran.code == 0, "a named store needs no home: {ran:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn a_default_place_that_planck_did_not_make_is_refused() -> Result<()> {
    type Spoil = fn(&PersonalMachine, &std::path::Path) -> Result<()>;
    let cases: [(&str, Spoil); 5] = [
        ("it is a link", |machine, place| {
            fs::rename(place, machine.folder().join("moved"))?;
            Ok(symlink(machine.folder().join("moved"), place)?)
        }),
        ("it is a link", |machine, place| {
            let sessions = place.join("sessions");
            fs::rename(&sessions, machine.folder().join("moved"))?;
            Ok(symlink(machine.folder().join("moved"), sessions)?)
        }),
        ("it belongs to /somewhere/else", |_, place| {
            Ok(fs::write(place.join("project"), "/somewhere/else")?)
        }),
        ("planck did not make it", |_, place| {
            Ok(fs::remove_file(place.join("project"))?)
        }),
        ("other users can write to it", |_, place| {
            Ok(fs::set_permissions(
                place.join("sessions"),
                fs::Permissions::from_mode(0o770),
            )?)
        }),
    ];
    for (told, spoil) in cases {
        let machine = machine().await?;
        assert_eq!(machine.run(&RUN).await?.code, 0);
        let place = machine.sessions()?;
        let place = place.parent().unwrap();
        spoil(&machine, place)?;
        let before = listing(machine.folder())?;
        for command in [&RUN[..], &["session", "ls"], &["doctor"]] {
            let ran = machine.run(command).await?;
            let said = format!("{}{}", ran.out, ran.err);
            assert!(
                ran.code == 1 && said.contains(told) && said.contains("--store"),
                "{told}: {command:?}: {ran:?}"
            );
            assert_eq!(
                listing(machine.folder())?,
                before,
                "{told}: {command:?} changed something"
            );
        }
    }
    Ok(())
}
