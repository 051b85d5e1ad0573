//! A store folder whose lock files and databases are links, FIFOs or hard links, or which holds
//! files of other users.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use nix::{sys::stat::Mode, unistd::mkfifo};
use planck_scripted_model::Script;
use planck_tests::machine::PersonalMachine;

/// A node id that an attacker could choose.
const NODE: &str = "01a2b3c4-d5e6-7890-8abc-def012345678";

/// Commands that open the store, in the default place and in the folder that the repository fills.
const COMMANDS: [&[&str]; 6] = [
    &["doctor"],
    &["session", "ls"],
    &["run", "--model", "openai:gpt-5", "hello"],
    &["doctor", "--store", "sqlite:.planck/sessions"],
    &["session", "ls", "--store", "sqlite:.planck/sessions"],
    &[
        "run",
        "--model",
        "openai:gpt-5",
        "--store",
        "sqlite:.planck/sessions",
        "hello",
    ],
];

/// Prepares a user's home folder with keys, and a working folder with a cloned repository.
async fn victim() -> Result<(PersonalMachine, PathBuf)> {
    let machine = PersonalMachine::start(Script::new().always("Hello.")).await?;
    let keys = machine.folder().join("home/.ssh");
    fs::create_dir_all(&keys)?;
    for name in [
        "id_ed25519",
        "known_hosts",
        "index.db",
        "index.lock",
        &format!("{NODE}.lock"),
    ] {
        fs::write(keys.join(name), format!("the user's own {name}"))?;
    }
    fs::create_dir_all(machine.work().join(".planck/sessions"))?;
    Ok((machine, keys))
}

/// Returns the files of a folder with their contents.
fn contents(folder: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))? {
        let path = entry?.path();
        let content = fs::read(&path)?;
        found.insert(path, content);
    }
    Ok(found)
}

/// Runs every command to its end, and fails if a file of the folder changed.
async fn nothing_changes(machine: &PersonalMachine, folder: &Path) -> Result<()> {
    let before = contents(folder)?;
    for command in COMMANDS {
        let ran = machine.run(command).await?;
        assert_eq!(
            contents(folder)?,
            before,
            "{command:?} changed files of the user: {ran:?}"
        );
    }
    Ok(())
}

/// Runs commands on the folder that the repository fills. Each must be refused with an error that
/// names the file and the fault.
async fn refused(machine: &PersonalMachine, told: &[&str]) -> Result<()> {
    for command in COMMANDS
        .iter()
        .filter(|command| command.contains(&"sqlite:.planck/sessions"))
    {
        let ran = machine.run(command).await?;
        let said = format!("{}{}", ran.out, ran.err);
        assert!(
            ran.code != 0 && told.iter().all(|told| said.contains(told)),
            "{command:?} does not say {told:?}: {ran:?}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn cloned_repository_cannot_delete_files_by_a_link_at_the_lock_folder() -> Result<()> {
    let (machine, keys) = victim().await?;
    symlink(
        "../../../home/.ssh",
        machine.work().join(".planck/sessions/.nodes"),
    )?;
    assert!(
        machine
            .work()
            .join(".planck/sessions/.nodes/id_ed25519")
            .exists(),
        "the attack leads nowhere"
    );
    nothing_changes(&machine, &keys).await?;
    refused(
        &machine,
        &[
            ".planck/sessions/.nodes",
            "it is a link",
            "--store sqlite:DIR",
        ],
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn cloned_repository_cannot_write_elsewhere_by_a_link_at_the_store() -> Result<()> {
    let (machine, keys) = victim().await?;
    fs::remove_dir(machine.work().join(".planck/sessions"))?;
    symlink("../../home/.ssh", machine.work().join(".planck/sessions"))?;
    nothing_changes(&machine, &keys).await?;
    refused(&machine, &[".planck/sessions", "it is a link"]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn files_in_the_lock_folder_that_are_not_locks_stay() -> Result<()> {
    let (machine, keys) = victim().await?;
    let locks = machine.work().join(".planck/sessions/.nodes");
    fs::create_dir(&locks)?;
    let mine = format!("{NODE}.lock");
    for name in ["thesis.txt", "id_ed25519", "notes.lock", &mine] {
        fs::write(locks.join(name), "pages of work")?;
    }
    fs::write(locks.join("empty.lock"), "")?;
    symlink(
        keys.join("id_ed25519"),
        locks.join("01a2b3c4-d5e6-7890-8abc-def012345679.lock"),
    )?;
    fs::hard_link(
        keys.join("known_hosts"),
        locks.join("01a2b3c4-d5e6-7890-8abc-def01234567a.lock"),
    )?;
    // The lock of a dead node is removed, which shows that the test can fail.
    fs::write(
        locks.join("01a2b3c4-d5e6-7890-8abc-def01234567b.lock"),
        "4194304 12345 pid:[4026531836]",
    )?;
    let kept = |names: &[&str]| {
        names
            .iter()
            .all(|name| fs::symlink_metadata(locks.join(name)).is_ok())
    };
    nothing_changes(&machine, &keys).await?;
    let links = [
        "01a2b3c4-d5e6-7890-8abc-def012345679.lock",
        "01a2b3c4-d5e6-7890-8abc-def01234567a.lock",
    ];
    assert!(
        kept(&[
            "thesis.txt",
            "id_ed25519",
            "notes.lock",
            "empty.lock",
            &mine
        ]) && kept(&links)
    );
    assert_eq!(fs::read_to_string(locks.join(&mine))?, "pages of work");
    assert!(
        !kept(&["01a2b3c4-d5e6-7890-8abc-def01234567b.lock"]),
        "the lock of a dead node stays"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn fifos_in_a_store_are_refused_without_waiting() -> Result<()> {
    for (file, told) in [
        ("index.db", "it is a FIFO"),
        ("index.db-wal", "it is a FIFO"),
        (".nodes", "it is no folder"),
    ] {
        let (machine, keys) = victim().await?;
        mkfifo(
            &machine.work().join(".planck/sessions").join(file),
            Mode::from_bits_truncate(0o600),
        )?;
        nothing_changes(&machine, &keys).await?;
        refused(&machine, &[file, told]).await?;
    }
    let (machine, keys) = victim().await?;
    fs::create_dir(machine.work().join(".planck/sessions/.nodes"))?;
    mkfifo(
        &machine
            .work()
            .join(".planck/sessions/.nodes")
            .join(format!("{NODE}.lock")),
        Mode::from_bits_truncate(0o600),
    )?;
    nothing_changes(&machine, &keys).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn links_in_place_of_a_database_are_refused() -> Result<()> {
    for file in ["index.db", "index.db-wal", "index.db-shm"] {
        let (machine, keys) = victim().await?;
        symlink(
            keys.join("index.db"),
            machine.work().join(".planck/sessions").join(file),
        )?;
        nothing_changes(&machine, &keys).await?;
        refused(&machine, &[file, "it is a link"]).await?;
        fs::remove_file(machine.work().join(".planck/sessions").join(file))?;
        fs::hard_link(
            keys.join("index.db"),
            machine.work().join(".planck/sessions").join(file),
        )?;
        nothing_changes(&machine, &keys).await?;
        refused(&machine, &[file, "hard link"]).await?;
    }
    Ok(())
}
