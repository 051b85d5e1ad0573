//! Files in the workspace that run code later: hooks, settings, start-up files.

use std::{fs, os::unix::fs::symlink, path::Path};

use anyhow::{Context as _, Result};
use planck_tests::world::Backend;
use serde_json::json;

use super::{Walled, put, tiers};

/// Part of the warning that a node logs when a tool has changed protected files.
const SAID: &str = "changed protected files";

/// Writes the minimal files of a repository, and settings of Planck and of an editor.
fn repository(dir: &Path) -> Result<()> {
    put(dir.join(".git/HEAD"), "ref: refs/heads/main\n")?;
    put(
        dir.join(".git/config"),
        "[core]\n\trepositoryformatversion = 0\n",
    )?;
    fs::create_dir_all(dir.join(".git/objects"))?;
    fs::create_dir_all(dir.join(".git/refs"))?;
    put(dir.join(".git/hooks/pre-commit.sample"), "sample")?;
    put(dir.join(".planck/config.toml"), "")?;
    put(dir.join(".vscode/settings.json"), "{}")
}

/// Checks that the files of [`repository`] that run code later are unchanged, and that none of
/// several others was added.
fn assert_unharmed(dir: &Path, after: &str) {
    let text = |path: &str| {
        fs::read_to_string(dir.join(path)).unwrap_or_else(|why| panic!("{after}: {path}: {why}"))
    };
    assert_eq!(text(".git/HEAD"), "ref: refs/heads/main\n", "{after}");
    assert_eq!(
        text(".git/config"),
        "[core]\n\trepositoryformatversion = 0\n",
        "{after}"
    );
    assert_eq!(
        (text(".planck/config.toml"), text(".vscode/settings.json")),
        (String::new(), "{}".into()),
        "{after}"
    );
    for gone in [
        ".git/hooks/post-checkout",
        ".git/commondir",
        ".envrc",
        ".bashrc",
        ".mcp.json",
        ".idea",
        ".planck/tools",
    ] {
        assert!(
            fs::symlink_metadata(dir.join(gone)).is_err(),
            "{after}: {gone} is there"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute of CPU time: make test-all"]
async fn bash_leaves_no_file_that_runs_code_later() -> Result<()> {
    for tier in tiers() {
        let walled = Walled::start(&tier, Backend::Sqlite, &[]).await?;
        let dir = walled.world.dir();
        repository(&dir)?;
        for attack in [
            "printf evil > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout",
            "printf '[core]\\nfsmonitor = evil\\n' >> .git/config",
            "git config core.hooksPath /tmp/evil",
            "mv .git/config .git/c; printf evil > .git/config",
            "mv .git/hooks .git/h; mkdir .git/hooks; printf evil > .git/hooks/post-checkout",
            "mv .git moved; cp -r moved .git; printf evil > .git/hooks/post-checkout",
            "mv .git moved; printf 'gitdir: moved' > .git; printf evil > moved/hooks/post-checkout",
            "mv .git moved; ln -s moved .git; printf evil > moved/hooks/post-checkout",
            "printf /tmp > .git/commondir",
            "ln .git/config alias; printf evil >> alias; printf evil >> alias",
            "printf evil > .planck/config.toml; mkdir -p .planck/tools/x; printf evil > .planck/tools/x/TOOL.json",
            "mv .planck gone; mkdir .planck; printf evil > .planck/config.toml",
            "rm -r .vscode; mkdir .vscode; printf evil > .vscode/settings.json",
            "printf evil > .envrc; printf evil > .bashrc; printf evil > .mcp.json; mkdir .idea; printf evil > .idea/x",
            "ln -s /etc .idea; ln -s .git/config .envrc",
            "mkdir .bash_aliases; (cd .bash_aliases; touch $(seq 5000)); printf evil > .envrc; printf evil > .git/hooks/post-checkout",
            "(cd .vscode; touch $(seq 5000)); printf evil > .vscode/settings.json; mkdir .idea; printf evil > .idea/x",
            "mkdir .idea; touch .idea/x; chmod 444 .idea; printf evil > .envrc",
            "mkdir .idea; printf evil > .idea/x; printf evil > .bashrc; chmod 0 .idea",
            "printf evil > .git/hooks/post-checkout; chmod 0 .git/hooks; chmod 0 .git; printf evil > .envrc",
            "printf evil > .envrc; chmod 0 .",
            "mkdir .idea; (cd .idea; for i in $(seq 200); do mkdir d && cd d; done); printf evil > .idea/x",
            "(setsid sh -c 'sleep 0.2; printf evil > .git/hooks/post-checkout' &) ; sleep 0.1",
        ] {
            walled.bash(attack).await?;
            assert_unharmed(&dir, &format!("{tier:?}: {attack}"));
        }
        walled.end(&[SAID]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn model_is_told_what_was_undone() -> Result<()> {
    for tier in tiers() {
        let walled = Walled::start(&tier, Backend::Sqlite, &[]).await?;
        repository(&walled.world.dir())?;
        let said = walled.bash("printf evil > .envrc; echo done").await?;
        assert!(
            said.starts_with(
                "done\n[protected files were changed while this ran, and put back: .envrc"
            ),
            "{tier:?}: {said}"
        );
        let kept = said
            .split("the changed versions are in ")
            .nth(1)
            .and_then(|rest| rest.split(']').next())
            .context("no folder")?;
        assert!(
            Path::new(kept).starts_with(walled.world.folder()) && kept.contains("/undone/"),
            "{tier:?}: {kept}"
        );
        assert_eq!(
            fs::read_to_string(Path::new(kept).join(".envrc"))?,
            "evil",
            "{tier:?}"
        );
        let log = walled.node.log();
        assert!(log.contains(SAID) && log.contains(".envrc"), "{log}");
        let said = walled
            .bash("echo x > ordinary; echo y > .git/description; echo done")
            .await?;
        assert_eq!(said, "done\n", "{tier:?}");
        assert!(
            walled.world.dir().join("ordinary").exists()
                && walled.world.dir().join(".git/description").exists()
        );
        walled.end(&[SAID]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_among_protected_files_shows_nothing_outside() -> Result<()> {
    for tier in tiers() {
        let walled = Walled::start(&tier, Backend::Sqlite, &[]).await?;
        put(walled.outside("keys/id"), "key")?;
        symlink(walled.outside("keys"), walled.world.dir().join(".vscode"))?;
        let said = walled
            .bash("cat .vscode/id; printf evil > .vscode/new")
            .await?;
        assert!(
            !said.contains("key\n") && !walled.outside("keys/new").exists(),
            "{tier:?}: {said}"
        );
        walled.end(&[]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn write_and_edit_refuse_files_that_run_code_later() -> Result<()> {
    let tier = super::landlock();
    let walled = Walled::start(&tier, Backend::Sqlite, &[]).await?;
    let dir = walled.world.dir();
    repository(&dir)?;
    symlink(".git/hooks", dir.join("way"))?;
    let write = |path: &str| ("write", json!({ "path": path, "content": "evil" }));
    let edit = |path: &str, old: &str| {
        (
            "edit",
            json!({ "path": path, "old_string": old, "new_string": "evil" }),
        )
    };
    let said = walled
        .calls(&[
            write(".git/hooks/post-checkout"),
            write("way/post-checkout"),
            write("./.vscode/../.git/config"),
            write(".planck/tools/x/TOOL.json"),
            write("nested/.git/config"),
            write(".envrc"),
            write("sub/.vscode/tasks.json"),
            edit(".git/config", "[core]"),
            edit(".vscode/settings.json", "{}"),
            write("x/ordinary"),
        ])
        .await?;
    let (last, refused) = said.split_last().unwrap();
    assert_eq!(last, "wrote 4 bytes to x/ordinary");
    for told in refused {
        assert!(told.contains("may not be changed by tools"), "{told}");
    }
    assert_unharmed(&dir, "write and edit");
    walled.end(&[]).await
}
