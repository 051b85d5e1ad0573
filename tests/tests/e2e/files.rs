//! Invalid files, folders that cannot be written, and foreign stores: each command reports all
//! errors at once, and says how to fix them.

use std::{fs, os::unix::fs::PermissionsExt};

use anyhow::Result;
use planck_scripted_model::{Reply, Script, ScriptedFault, When};
use planck_tests::{
    eventually::eventually,
    machine::{PersonalMachine, run},
};

async fn machine() -> Result<PersonalMachine> {
    PersonalMachine::start(Script::new().always("Hello.")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn all_errors_of_a_team_are_reported_at_once() -> Result<()> {
    let machine = machine().await?;
    let team = r#"[{"type": "lead", "tools": ["spawn_agent", "raed"], "system_prompt": "gone.md"},
                   {"type": "", "limits": {"max_tokens": 0}},
                   {"type": "coder", "skills": ["pdf"], "provider": "antropic", "model_id": "x", "tools": ["spawn_agent"]}]"#;
    machine.write("team/TEAM.json", team)?;
    let told = machine.run(&["team", "validate", "team"]).await?;
    assert_eq!(told.code, 2, "{told:?}");
    for wrong in [
        "raed",
        "did you mean `read`?",
        "gone.md",
        "max_tokens",
        "pdf",
        "antropic",
        "several members are orchestrators",
    ] {
        assert!(told.out.contains(wrong), "{wrong}: {}", told.out);
    }
    assert!(
        told.out.lines().all(|line| line.contains("TEAM.json")),
        "{}",
        told.out
    );
    machine.write("team/gone.md", "You lead.")?;
    let ran = machine.run(&["run", "--team", "team", "go"]).await?;
    assert_ne!(ran.code, 0);
    assert!(
        ran.err.contains("antropic") && ran.err.contains("max_tokens"),
        "{}",
        ran.err
    );

    for (text, wrong) in [
        ("{", "line 1"),
        ("[]", "no member"),
        (r#"[{"type": "a", "tols": []}]"#, "tols"),
        ("3", "array"),
    ] {
        machine.write("team/TEAM.json", text)?;
        let told = machine.run(&["team", "validate", "team"]).await?;
        assert!(
            told.code == 2 && told.out.contains("TEAM.json") && told.out.contains(wrong),
            "{text}: {told:?}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn all_errors_of_tools_and_skills_are_reported_by_every_command() -> Result<()> {
    let machine = machine().await?;
    machine.write(
        ".planck/tools/broken/TOOL.json",
        r#"{"name": "a b", "comand": "x"}"#,
    )?;
    machine.write(".planck/tools/torn/TOOL.json", "{\n  \"name\": ")?;
    machine.write(".planck/skills/plain/SKILL.md", "---\nname: plain\n---\n")?;
    assert_eq!(machine.run(&["trust", "--yes"]).await?.code, 0);
    let validate = machine.run(&["team", "validate"]).await?;
    let doctor = machine.run(&["doctor"]).await?;
    let ran = machine.run(&["run", "--model", "openai:m", "go"]).await?;
    assert_eq!(
        (validate.code, doctor.code, ran.code),
        (2, 1, 0),
        "{validate:?}\n{doctor:?}\n{ran:?}"
    );
    for told in [&validate.out, &doctor.out, &ran.err] {
        for wrong in [
            "broken/TOOL.json",
            "comand",
            "description",
            "torn/TOOL.json",
            "line 2",
            "plain/SKILL.md",
            "description: ",
        ] {
            assert!(told.contains(wrong), "{wrong}: {told}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn all_errors_of_the_configuration_are_reported_at_once() -> Result<()> {
    let machine = machine().await?;
    machine.configure(
        "[limits]\nmax_tokns = 3\nmax_requests_per_turn = 0\n\n[tools]\ntimeout = \"soon\"\n",
    )?;
    for command in [
        &["run", "go"][..],
        &["doctor"],
        &["config", "show"],
        &["node"],
    ] {
        let ran = machine.run(command).await?;
        assert_eq!(ran.code, 2, "{ran:?}");
        for wrong in [
            "config.toml",
            "max_tokns",
            "max_tokens",
            "toml:3",
            "max_requests_per_turn",
            "toml:6",
            "tools.timeout",
        ] {
            assert!(ran.err.contains(wrong), "{wrong}: {}", ran.err);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn error_for_a_folder_that_cannot_be_a_store_says_why() -> Result<()> {
    let machine = machine().await?;
    machine.write("file", "")?;
    let ran = machine
        .run(&[
            "run",
            "--store",
            "sqlite:file/sessions",
            "--model",
            "openai:m",
            "go",
        ])
        .await?;
    assert!(
        ran.code == 1 && ran.err.contains("file/sessions"),
        "{ran:?}"
    );
    let doctor = machine
        .run(&["doctor", "--store", "sqlite:file/sessions"])
        .await?;
    assert!(
        doctor.code == 1 && doctor.out.contains("✗ store"),
        "{doctor:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn error_for_a_read_only_folder_says_so() -> Result<()> {
    let machine = machine().await?;
    let folder = machine.work().join("sessions");
    fs::create_dir(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555))?;
    if fs::write(folder.join("try"), "").is_ok() {
        eprintln!("SKIPPED: this user may write everywhere");
        return Ok(());
    }
    let ran = machine
        .run(&[
            "run",
            "--store",
            "sqlite:sessions",
            "--model",
            "openai:m",
            "go",
        ])
        .await?;
    assert!(
        ran.code == 1 && ran.err.contains("sessions") && ran.err.contains("write"),
        "{ran:?}"
    );
    Ok(())
}

/// Returns the path of the file of the machine's session `one`.
fn session_file(machine: &PersonalMachine) -> Result<std::path::PathBuf> {
    let files = fs::read_dir(machine.sessions()?)?
        .flatten()
        .map(|entry| entry.path());
    let mut sessions = files.filter(|path| path.to_string_lossy().ends_with("_one.db"));
    sessions
        .next()
        .ok_or_else(|| anyhow::anyhow!("no session file"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_session_file_is_named_and_the_other_sessions_work() -> Result<()> {
    let machine = machine().await?;
    for name in ["one", "two"] {
        let ran = machine
            .run(&["run", "--model", "openai:m", "--session", name, "go"])
            .await?;
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    let file = session_file(&machine)?;
    fs::write(
        &file,
        "this is no database, whatever its name says".repeat(200),
    )?;
    let shown = machine.run(&["session", "show", "one"]).await?;
    assert!(
        shown.code == 1 && shown.err.contains("_one.db"),
        "{shown:?}"
    );
    let listed = machine.run(&["session", "ls"]).await?;
    assert!(listed.code == 0 && listed.out.contains("two"), "{listed:?}");
    let ran = machine.run(&["run", "--session", "two", "again"]).await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_file_of_a_newer_planck_is_refused() -> Result<()> {
    let machine = machine().await?;
    let ran = machine
        .run(&["run", "--model", "openai:m", "--session", "one", "go"])
        .await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    let file = session_file(&machine)?;
    let mut database = <sqlx::SqliteConnection as sqlx::Connection>::connect(&format!(
        "sqlite:{}",
        file.display()
    ))
    .await?;
    sqlx::query("PRAGMA user_version = 999")
        .execute(&mut database)
        .await?;
    sqlx::Connection::close(database).await?;
    let again = machine.run(&["run", "--session", "one", "again"]).await?;
    assert!(
        again.code == 1 && again.err.contains("999") && again.err.contains("newer"),
        "{again:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn error_for_a_session_at_work_in_another_process_says_what_to_do() -> Result<()> {
    let machine = PersonalMachine::start(
        Script::new().always(Reply::text("a b c").with_fault(ScriptedFault::Hang { after: 1 })),
    )
    .await?;
    let mut first = machine.planck(&["run", "--model", "openai:m", "--session", "one", "go"])?;
    let mut first = first
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()?;
    eventually("the first process asks its model", async || {
        (machine.model.streams() > 0).then_some(())
    })
    .await?;
    for command in [
        &["run", "--session", "one", "more"][..],
        &["session", "prompt", "one", "more"],
    ] {
        let ran = machine.run(command).await?;
        assert!(
            ran.code == 1 && ran.err.contains("NATS_URL"),
            "{command:?}: {ran:?}"
        );
    }
    let attached = machine.run(&["session", "attach", "one"]).await?;
    assert!(
        attached.code == 0 && attached.out.contains("› go") && attached.err.contains("NATS_URL"),
        "{attached:?}"
    );
    first.kill().await?;
    machine.model.set_script(Script::new().always("Hello."));
    let ran = machine.run(&["run", "--session", "one", "again"]).await?;
    assert_eq!(ran.code, 0, "its lock went with it: {ran:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_existing_session_keeps_its_team_and_directory_and_says_so() -> Result<()> {
    let machine = machine().await?;
    assert_eq!(
        machine
            .run(&["run", "--model", "openai:m", "--session", "one", "go"])
            .await?
            .code,
        0
    );
    for (flag, value) in [
        ("--team", "team"),
        ("--workspace", "local:elsewhere"),
        ("--dir", "elsewhere"),
    ] {
        let told = machine
            .run(&["run", "--session", "one", flag, value, "more"])
            .await?;
        assert!(
            told.code == 2 && told.err.contains(flag) && told.err.contains("session one"),
            "{told:?}"
        );
    }
    let ran = machine.run(&["run", "--session", "one", "more"]).await?;
    assert_eq!(ran.code, 0, "nothing was done to it: {ran:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_reported_and_unsaved_data_is_saved_when_there_is_space() -> Result<()> {
    let machine = PersonalMachine::start(
        Script::new()
            .limited(1, When::any(), "Hello.")
            .always(Reply::text("x".repeat(1 << 20))),
    )
    .await?;
    let disk = machine.folder().join("disk");
    fs::create_dir(&disk)?;
    if !mount(&["-t", "tmpfs", "-o", "size=1m", "tmpfs"], &disk).await {
        eprintln!("SKIPPED: cannot mount a small disk here");
        return Ok(());
    }
    let store = format!("sqlite:{}", disk.join("sessions").display());
    let told = fills_up(&machine, &store, &disk).await;
    tokio::process::Command::new("umount")
        .arg("-l")
        .arg(&disk)
        .status()
        .await?;
    told
}

async fn mount(options: &[&str], on: &std::path::Path) -> bool {
    let mounted = tokio::process::Command::new("mount")
        .args(options)
        .arg(on)
        .output()
        .await;
    mounted.is_ok_and(|mounted| mounted.status.success())
}

async fn fills_up(machine: &PersonalMachine, store: &str, disk: &std::path::Path) -> Result<()> {
    let go = |prompt| {
        machine.planck(&[
            "run",
            "--store",
            store,
            "--model",
            "openai:m",
            "--session",
            "one",
            prompt,
        ])
    };
    let first = run(go("go")?).await?;
    assert_eq!(first.code, 0, "{first:?}");
    let log = machine.folder().join("log");
    let mut more = go("more")?
        .stdout(std::process::Stdio::null())
        .stderr(fs::File::create(&log)?)
        .spawn()?;
    let told = || fs::read_to_string(&log).unwrap_or_default();
    eventually("the full disk is reported", async || {
        told().contains("the disk is full").then_some(())
    })
    .await?;
    assert!(mount(&["-o", "remount,size=9m"], disk).await);
    let ended = tokio::time::timeout(std::time::Duration::from_secs(30), more.wait()).await??;
    assert!(ended.success(), "{}", told());
    let kept = run(machine.planck(&["session", "export", "one", "--store", store])?).await?;
    assert!(
        kept.code == 0 && kept.out.contains("Hello.") && kept.out.contains("xxxx"),
        "{:?}",
        kept.err
    );
    assert_eq!(
        machine.model.request_count(),
        2,
        "the model was asked once for each prompt"
    );
    Ok(())
}
