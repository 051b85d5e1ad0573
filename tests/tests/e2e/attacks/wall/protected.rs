//! Files in the workspace that run code later: hooks, settings, start-up files.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use planck_common::{command::SessionVerb, wait::WaitKind};
use planck_scripted_model::{Reply, Script};
use planck_tests::{caller::session_at, eventually::within, world::Backend};
use serde_json::{Value, json};

use super::{PATIENCE, Walled, landlock, put, tiers};
use crate::teams::scene::{by, member};

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

/// The files of [`repository`] that run code later, with their content.
const PROTECTED: &[(&str, &str)] = &[
    (".git/config", "[core]\n\trepositoryformatversion = 0\n"),
    (".planck/config.toml", ""),
    (".vscode/settings.json", "{}"),
];

/// Protected names that [`repository`] does not have.
const ABSENT: &[&str] = &[
    ".git/hooks/post-checkout",
    ".git/commondir",
    ".envrc",
    ".bashrc",
    ".mcp.json",
    ".idea",
    ".planck/tools",
];

/// Returns whether a process has changed protected files.
fn is_harmed(dir: &Path) -> bool {
    let changed = PROTECTED
        .iter()
        .any(|(path, text)| fs::read_to_string(dir.join(path)).ok().as_deref() != Some(*text));
    let added = ABSENT
        .iter()
        .any(|path| fs::symlink_metadata(dir.join(path)).is_ok());
    let is_folder = fs::symlink_metadata(dir.join(".git")).is_ok_and(|git| git.is_dir());
    changed || added || !is_folder
}

/// Removes everything in a folder, whatever its rights are.
fn clear(dir: &Path) -> Result<()> {
    let cleared = Command::new("sh")
        .args(["-c", "chmod -R u+rwX . && find . -mindepth 1 -delete"])
        .current_dir(dir)
        .status()?;
    ensure!(cleared.success(), "cannot clear {}", dir.display());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute of CPU time: make test-all"]
async fn command_that_changes_a_file_which_runs_code_later_stops_its_session() -> Result<()> {
    for tier in tiers() {
        let walled = Walled::start(&tier, Backend::Sqlite, &[]).await?;
        let dir = walled.world.dir();
        for attack in [
            "printf evil > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout",
            "printf '[core]\\nfsmonitor = evil\\n' >> .git/config",
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
            "(cd .vscode; touch $(seq 5000)); printf evil > .vscode/settings.json; mkdir .idea; printf evil > .idea/x",
            "mkdir .idea; printf evil > .idea/x; printf evil > .bashrc; chmod 0 .idea",
            "printf evil > .git/hooks/post-checkout; chmod 0 .git/hooks; chmod 0 .git; printf evil > .envrc",
            "printf evil > .envrc; chmod 0 .",
            "mkdir .idea; (cd .idea; for i in $(seq 200); do mkdir d && cd d; done); printf evil > .idea/x",
            "(setsid sh -c 'sleep 0.2; printf evil > .git/hooks/post-checkout' &) ; sleep 0.1",
            "mkdir .cargo; printf evil > .cargo/config.toml; printf evil > .npmrc",
        ] {
            clear(&dir)?;
            repository(&dir)?;
            let (_, wait) = walled.bash_or_wait(attack).await?;
            let is_harmed = is_harmed(&dir) || dir.join(".cargo/config.toml").exists();
            let asks = wait.as_ref().map(|wait| wait.kind) == Some(WaitKind::Change);
            assert_eq!(asks, is_harmed, "{tier:?}: {attack}: {wait:?}");
            if let Some(wait) = wait {
                walled.answer(&wait, "deny").await?;
            }
        }
        walled.end(&[SAID]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn change_of_protected_files_waits_until_it_is_kept_or_put_back() -> Result<()> {
    let walled = Walled::start(&landlock(), Backend::Sqlite, &[]).await?;
    let dir = walled.world.dir();
    repository(&dir)?;
    let (started, wait) = walled
        .bash_or_wait("printf evil > .envrc; echo said")
        .await?;
    let wait = wait.context("nothing waits")?;
    assert_eq!(wait.kind, WaitKind::Change);
    let request: Value = serde_json::from_str(wait.request.get())?;
    assert_eq!(request["tool"], "bash");
    assert_eq!(request["result"]["text"], "said\n");
    let change = &request["changes"][0];
    let path = dir.canonicalize()?.join(".envrc");
    assert_eq!(
        (&change["path"], &change["change"], &change["text"]),
        (&json!(path), &json!("added"), &json!("evil"))
    );

    // An abort withdraws the wait, but decides nothing.
    let to = session_at(&started.session_id, SessionVerb::Abort);
    walled.world.caller.ask::<Value>(&to, &json!({})).await?;
    let prompt = started.prompt_id.as_ref().context("no prompt")?;
    let is_over = walled.ended_or_waits(&started.session_id, prompt);
    assert!(is_over.await?.is_none());
    let calls = |command: &str| {
        let calls = [
            Reply::call("bash", json!({ "command": command })),
            Reply::text("done"),
        ];
        Script::new().without_auth().rounds(by("agent"), calls)
    };
    let again = async |command: &str| {
        walled.world.model.set_script(calls(command));
        let accepted = walled
            .world
            .caller
            .prompt(&started.session_id, "on")
            .await?;
        let waits = walled.ended_or_waits(&started.session_id, &accepted.prompt_id);
        anyhow::Ok((waits.await?, accepted.prompt_id))
    };
    let (wait, input) = again("touch ran").await?;
    let wait = wait.context("nothing waits")?;
    assert!(
        wait.title.contains("has to wait") && wait.title.contains(".envrc"),
        "{wait:?}"
    );
    assert!(!dir.join("ran").exists());
    walled.answer(&wait, "deny").await?;
    assert!(
        walled
            .ended_or_waits(&started.session_id, &input)
            .await?
            .is_none()
    );
    assert!(
        !dir.join("ran").exists() && path.exists(),
        "nothing is put back"
    );

    let (wait, input) = again("touch ran").await?;
    walled
        .answer(&wait.context("nothing waits")?, "allow")
        .await?;
    assert!(
        walled
            .ended_or_waits(&started.session_id, &input)
            .await?
            .is_none()
    );
    assert!(dir.join("ran").exists(), "the call that waited has run");

    // The change was kept, so the next calls ask no more.
    let (wait, _) = again("rm .envrc").await?;
    assert!(wait.context("nothing waits")?.title.contains(".envrc"));
    fs::write(&path, "evil")?;
    walled.end(&[SAID]).await
}

/// A call that was allowed for the whole session, and then changes protected files, waits twice.
#[tokio::test(flavor = "multi_thread")]
async fn wait_about_a_change_leaves_the_rule_of_an_approval() -> Result<()> {
    let walled = Walled::start(&landlock(), Backend::Sqlite, &[]).await?;
    let touch = || Reply::call("bash", json!({ "command": "touch .envrc" }));
    let replies = [touch(), touch(), Reply::text("done")];
    let script = Script::new().without_auth().rounds(by("agent"), replies);
    walled.world.model.set_script(script);
    let start = json!({
        "dir": walled.world.dir(), "members": [member("agent", &["bash"])], "prompt": "go", "permissions": "careful",
    });
    let started = walled.world.caller.start(&start).await?;
    let prompt = started.prompt_id.as_ref().context("no prompt")?;
    let mut kinds = Vec::new();
    while let Some(wait) = walled.ended_or_waits(&started.session_id, prompt).await? {
        let mut answer = json!({ "wait": wait.id, "decision": "allow", "digest": wait.digest });
        if wait.kind == WaitKind::Approval {
            answer["scope"] = json!("session");
        }
        let to = session_at(&started.session_id, SessionVerb::Answer);
        match walled.world.caller.ask::<Value>(&to, &answer).await {
            Ok(_) => kinds.push(wait.kind),
            // The wait of the second call is open until the rule has answered it.
            Err(error) if error.to_string().contains("was answered before") => {}
            Err(error) => return Err(error),
        }
    }
    assert_eq!(
        kinds,
        [WaitKind::Approval, WaitKind::Change, WaitKind::Change],
        "the second call was allowed by the rule"
    );
    walled.end(&[SAID]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_node_loses_no_change_of_protected_files() -> Result<()> {
    let mut walled = Walled::start(&landlock(), Backend::Sqlite, &[]).await?;
    let dir = walled.world.dir();
    let calls = [
        Reply::call(
            "bash",
            json!({ "command": "printf evil > .envrc; touch begun; sleep 60" }),
        ),
        Reply::call("bash", json!({ "command": "touch ran" })),
        Reply::text("done"),
    ];
    let script = Script::new().without_auth().rounds(by("agent"), calls);
    walled.world.model.set_script(script);
    let start = json!({ "dir": &dir, "members": [member("agent", &["bash"])], "prompt": "go" });
    let started = walled.world.caller.start(&start).await?;
    let begun = dir.join("begun");
    within(PATIENCE, "the call runs", async || {
        begun.exists().then_some(())
    })
    .await?;
    walled.restart().await?;
    let prompt = started.prompt_id.as_ref().context("no prompt")?;
    let wait = walled.ended_or_waits(&started.session_id, prompt).await?;
    let wait = wait.context("nothing waits")?;
    assert!(
        wait.title.contains("has to wait") && wait.title.contains(".envrc"),
        "{wait:?}"
    );
    assert!(!dir.join("ran").exists());
    walled.answer(&wait, "allow").await?;
    assert!(
        walled
            .ended_or_waits(&started.session_id, prompt)
            .await?
            .is_none()
    );
    assert!(dir.join("ran").exists());
    walled.end(&[SAID]).await
}

/// `git status` in the root runs what the settings of a linked repository name.
#[tokio::test(flavor = "multi_thread")]
async fn repository_that_git_enters_from_the_root_stops_its_session() -> Result<()> {
    if !super::has("git") {
        return Ok(());
    }
    for tier in tiers() {
        let walled = Walled::start(&tier, Backend::Sqlite, &[]).await?;
        let init = "git init -q . && git init -q sub && cd sub && touch x && git add x &&
            git -c user.name=a -c user.email=a@b commit -qm x && cd .. && git add sub";
        let (_, wait) = walled.bash_or_wait(init).await?;
        let kept = wait.context("the new repository asks nothing")?;
        walled.answer(&kept, "allow").await?;
        let evil = "git -C sub config core.fsmonitor 'touch PWNED; false'";
        let (_, wait) = walled.bash_or_wait(evil).await?;
        let wait = wait.with_context(|| format!("{tier:?}: nothing waits"))?;
        assert!(wait.title.contains("sub/.git/config"), "{wait:?}");
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
    assert!(!is_harmed(&dir) && !dir.join("nested").exists() && !dir.join("sub").exists());
    walled.end(&[]).await
}
