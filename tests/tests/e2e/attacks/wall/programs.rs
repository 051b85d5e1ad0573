//! Ordinary programs in the sandbox. The sandbox is useful only if they work.

use std::{env, fs, os::unix::fs::PermissionsExt as _};

use anyhow::{Context as _, Result};
use planck_scripted_model::Script;
use planck_tests::world::{Backend, World};

use super::{Walled, has, put, tiers, tiers_and_container};

const WORK: &[(&str, &str)] = &[
    (
        "bash",
        "diff <(echo a) <(echo a) && cat <<< x && [ \"$(echo $BASHPID)\" -gt 0 ] && (sleep 0.1 & wait) && f=$(mktemp) && echo y > $f && rm $f",
    ),
    (
        "sort",
        "seq 2000 | sort -R | sort -n | tail -n 1 | grep 2000 && ls -la /usr && date && nproc && id -u && stat . && mkdir from && touch from/x && cp -a from to && ls to/x",
    ),
    (
        "git",
        "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --oneline && git status -s",
    ),
    (
        "python3",
        "python3 -c 'import subprocess, tempfile, json, ssl, sqlite3, threading, asyncio\nprint(subprocess.run([\"echo\", \"x\"], capture_output=True))\nasyncio.run(asyncio.sleep(0))\nsqlite3.connect(\"d\").execute(\"create table t(x)\")'",
    ),
    (
        "node",
        "node -e 'require(\"child_process\").execFileSync(\"echo\"); require(\"fs\").writeFileSync(\"n\", \"x\"); setTimeout(() => {}, 10)'",
    ),
    (
        "gcc",
        "printf '#include <stdio.h>\\nint main(){puts(\"x\");}' > m.c && gcc m.c -o m && ./m",
    ),
    (
        "make",
        "printf 'all:\\n\\t@echo made\\n' > Makefile && make -j2",
    ),
    ("perl", "perl -e 'print `echo x`'"),
    (
        "tar",
        "mkdir -p t && echo x > t/x && tar czf t.tgz t && tar xzf t.tgz -C t",
    ),
    ("find", "find . -name '*.c' | xargs -r grep -l main; true"),
    (
        "cat",
        "cat /sys/devices/system/cpu/online && ls /sys/devices/system/cpu",
    ),
    ("awk", "awk 'BEGIN { \"date\" | getline d; print d }'"),
];

#[tokio::test(flavor = "multi_thread")]
async fn ordinary_programs_work() -> Result<()> {
    for tier in tiers_and_container() {
        let walled = Walled::start(&tier, Backend::Sqlite, &[]).await?;
        let work: Vec<_> = WORK.iter().filter(|(program, _)| has(program)).collect();
        let attempts: Vec<_> = work
            .iter()
            .map(|(program, command)| ('+', *program, format!("set -e; {command}")))
            .collect();
        walled.attempts("", &attempts).await?;
        walled.end(&[]).await?;
    }
    Ok(())
}

/// `git init` in a workspace without a repository is ordinary work. It asks, because the repository
/// has settings, and must produce a usable one.
#[tokio::test(flavor = "multi_thread")]
async fn new_repository_works_when_its_settings_are_kept() -> Result<()> {
    if !has("git") {
        return Ok(());
    }
    for tier in tiers() {
        let walled = Walled::start(&tier, Backend::Sqlite, &[]).await?;
        let (_, wait) = walled.bash_or_wait("git init -q -b main .").await?;
        walled
            .answer(&wait.context("nothing waits")?, "allow")
            .await?;
        let said =
            walled.bash("git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --oneline | wc -l").await?;
        assert_eq!(
            said.lines().next().map(str::trim),
            Some("1"),
            "{tier:?}: {said}"
        );
        walled.end(&["changed protected files"]).await?;
    }
    Ok(())
}

/// A result names the setting that admits a program of the home folder, and the setting admits it
/// without the credentials beside it.
#[tokio::test(flavor = "multi_thread")]
async fn toolchain_in_the_home_is_named_and_admitted() -> Result<()> {
    for tier in tiers() {
        let world = World::start(Backend::Sqlite, Script::new()).await?;
        let home = world.folder().join("laptop");
        let program = home.join(".cargo/bin/hello-planck");
        put(
            program.clone(),
            "#!/bin/sh\necho \"hello from $CARGO_HOME\"\n",
        )?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        put(home.join(".cargo/credentials.toml"), "token = 1")?;
        let path = env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", home.join(".cargo/bin").display());
        let home = home.display().to_string();
        let settings = [("HOME", home.as_str()), ("PATH", path.as_str())];
        let walled = Walled::start_in(world, &tier, &settings).await?;
        let said = walled.bash("hello-planck").await?;
        assert!(
            said.contains("tools.toolchains = [\"rustup\"]"),
            "{tier:?}: {said}"
        );

        let mut walled = walled;
        walled.node.kill().await?;
        let admitted = [("PLANCK_TOOLS_TOOLCHAINS", "rustup")];
        let settings = [settings.as_slice(), &admitted].concat();
        let walled = Walled::start_in(walled.world, &tier, &settings).await?;
        let said = walled
            .bash("hello-planck; cat $CARGO_HOME/credentials.toml")
            .await?;
        assert!(
            said.contains(&format!("hello from {home}/.cargo")) && !said.contains("token"),
            "{tier:?}: {said}"
        );
        walled.end(&[]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_have_the_users_name_unless_the_repository_has_one() -> Result<()> {
    if !has("git") {
        return Ok(());
    }
    for tier in tiers() {
        let world = World::start(Backend::Sqlite, Script::new()).await?;
        let home = world.folder().join("laptop");
        put(
            home.join(".gitconfig"),
            "[user]\nname = \"Ann O\\\"Neil\"\nemail = ann@example.org\n[alias]\nsecret = !env\n",
        )?;
        let home = home.display().to_string();
        let walled = Walled::start_in(world, &tier, &[("HOME", home.as_str())]).await?;
        let said = walled
            .bash(
                "set -e; git init -q r; cd r; git commit -q --allow-empty -m x; git log --format='%an %ae'; \
                 git config user.name Ben; git commit -q --allow-empty -m y; git log -1 --format=%an; \
                 git config --global user.email ben@example.org; git config --get alias.secret || echo no aliases",
            )
            .await?;
        assert_eq!(
            said, "Ann O\"Neil ann@example.org\nBen\nno aliases\n",
            "{tier:?}"
        );
        walled.end(&[]).await?;
    }
    Ok(())
}
