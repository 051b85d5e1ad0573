//! Tests of tools that start real processes: `bash` and external tools, both with and without a
//! sandbox.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use planck_common::{AgentId, CallId, SessionId, TeamId};
use planck_toolbox::{
    CallEnd, Caps, Files, Invocation, Launcher, Roots, Runner, Sandbox, Shell, ToolCatalogue,
    ToolOutcome, Unsandboxed, built_in, external, project::ProjectSource, sandbox::SandboxSettings,
};
use serde_json::{Value, json, value::to_raw_value};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// The tools of a node, and an agent whose working directory is `ws`.
struct World {
    top: TempDir,
    catalogue: ToolCatalogue,
    files: Files,
    shell: Shell,
}

impl World {
    fn new(sandbox: Sandbox) -> Self {
        let top = tempfile::tempdir().unwrap();
        for dir in ["ws/sub", "out", "tools"] {
            fs::create_dir_all(top.path().join(dir)).unwrap();
        }
        fs::write(top.path().join("out/secret"), "secret").unwrap();
        let files = Files::new(
            Roots::confined(vec![top.path().join("ws")], Vec::new()),
            Caps::default(),
        );
        let shell = Shell::new(
            Launcher::alone(env!("CARGO_BIN_EXE_planck").into()),
            sandbox,
            None,
            &[],
            Caps::default(),
        );
        let catalogue = ToolCatalogue::default();
        built_in(
            &files,
            &shell,
            std::time::Duration::from_secs(30),
            Unsandboxed::Off,
        )
        .into_iter()
        .for_each(|tool| catalogue.add(tool).unwrap());
        Self {
            top,
            catalogue,
            files,
            shell,
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.top.path().canonicalize().unwrap().join(path)
    }

    fn call(&self, args: &Value, cancel: &CancellationToken) -> Invocation {
        Invocation {
            session_id: SessionId::parse("s").unwrap(),
            team_id: TeamId::parse("t").unwrap(),
            agent_id: AgentId::parse("a").unwrap(),
            epoch: 1,
            call_id: CallId::parse("c").unwrap(),
            is_repeat: false,
            answer: None,
            args: to_raw_value(args).unwrap().into(),
            dir: self.at("ws"),
            second_judgement: None,
            cancel: cancel.clone(),
            progress: Arc::new(|_| {}),
        }
    }

    async fn outcome(&self, tool: &str, args: Value, cancel: &CancellationToken) -> ToolOutcome {
        let (toolbox, unknown) = self.catalogue.toolbox([tool], 40);
        assert!(unknown.is_empty(), "{unknown:?}");
        Runner::default()
            .run(&toolbox, tool, self.call(&args, cancel))
            .await
    }

    /// Runs a tool, and returns the text that the model would get. The text of an error begins with
    /// `error: `.
    async fn run(&self, tool: &str, args: Value) -> String {
        let outcome = self.outcome(tool, args, &CancellationToken::new()).await;
        if outcome.is_error() {
            format!("error: {}", outcome.text)
        } else {
            outcome.text
        }
    }

    async fn bash(&self, command: &str) -> String {
        self.run("bash", json!({"command": command})).await
    }

    /// Adds an external tool whose script is next to its definition.
    fn add_tool(&self, name: &str, command: &str, script: &str) {
        let home = self.at("tools").join(name);
        fs::create_dir_all(&home).unwrap();
        fs::write(home.join("run.sh"), format!("#!/bin/bash\n{script}")).unwrap();
        fs::set_permissions(home.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        let properties = json!({"text": {"type": "string"}, "n": {"type": "integer"}, "absent": {"type": "string"}});
        let parameters = json!({"type": "object", "properties": properties});
        let definition = json!({"name": name, "description": "x", "command": command, "parameters": parameters, "timeout_ms": 3000});
        fs::write(home.join("TOOL.json"), definition.to_string()).unwrap();
        let (tools, problems) = external::load(
            &[ProjectSource::named(&self.at("tools"))],
            &self.files,
            &self.shell,
        );
        assert!(problems.is_empty(), "{problems:?}");
        tools
            .into_iter()
            .for_each(|tool| self.catalogue.add(tool).unwrap());
    }
}

#[tokio::test]
async fn bash_returns_stdout_then_stderr() {
    let world = World::new(Sandbox::off());
    for (command, told) in [
        ("echo hello", "hello\n"),
        ("true", ""),
        (
            "echo out; echo err >&2; echo out",
            "out\nout\nSTDERR:\nerr\n",
        ),
        ("printf out; echo err >&2", "out\nSTDERR:\nerr\n"),
        ("echo err >&2", "STDERR:\nerr\n"),
        ("echo out; exit 3", "error: exit status 3\nout\n"),
        ("false", "error: exit status 1"),
        ("kill -9 $$", "error: killed by SIGKILL"),
        ("printf 'a\\xff'", "[binary, 2 bytes]"),
        ("cat", ""),
        ("yes | head -1", "y\n"),
        ("pwd | sed 's|.*/||'", "ws\n"),
    ] {
        assert_eq!(world.bash(command).await, told, "{command}");
    }
    assert_eq!(
        world
            .run(
                "bash",
                json!({"command": "pwd | sed 's|.*/||'", "cwd": "sub"})
            )
            .await,
        "sub\n"
    );
    assert!(
        world
            .run("bash", json!({"command": "pwd", "cwd": "../out"}))
            .await
            .contains("outside of the workspace")
    );
    assert!(
        world
            .run("bash", json!({"command": "pwd", "cwd": "none"}))
            .await
            .starts_with("error: cannot start a process in ")
    );
}

#[tokio::test]
async fn bash_keeps_the_output_of_a_command_that_is_killed() {
    let world = World::new(Sandbox::off());
    let timed_out = world
        .run(
            "bash",
            json!({"command": "echo begun; sleep 1000", "timeout": 2000}),
        )
        .await;
    assert_eq!(
        timed_out,
        "error: timed out after 2000 ms and was killed\nbegun\n"
    );
    let cancel = CancellationToken::new();
    let started = Instant::now();
    let args = json!({"command": "echo begun; touch ready; (setsid sleep 1000 &); sleep 1000"});
    let (outcome, ()) = tokio::join!(world.outcome("bash", args, &cancel), async {
        while !world.at("ws/ready").exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cancel.cancel();
    });
    assert_eq!(
        (outcome.text.as_str(), outcome.end),
        ("begun\n", CallEnd::Stopped)
    );
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn long_output_is_cut_and_leaves_room_for_stderr() {
    let world = World::new(Sandbox::off());
    let lines = world.bash("seq 5000").await;
    assert_eq!(
        (lines.lines().count(), lines.lines().last()),
        (2001, Some("[output truncated]"))
    );
    let both = world
        .bash("head -c 1000000 /dev/zero | tr '\\0' x; echo it broke >&2; exit 1")
        .await;
    assert!(
        both.len() <= 50_100 && both.starts_with("error: exit status 1\nxxx"),
        "{}",
        both.len()
    );
    assert!(
        both.ends_with("x\nSTDERR:\nit broke\n[output truncated]"),
        "{}",
        &both[both.len() - 100..]
    );
}

#[tokio::test]
async fn processes_get_no_keys() {
    let world = World::new(Sandbox::off());
    let environment = world.bash("env | sed 's/=.*//' | sort").await;
    let ours = [
        "HOME", "LANG", "OLDPWD", "PATH", "PWD", "SHLVL", "TMPDIR", "_",
    ];
    assert!(
        environment.lines().all(|name| ours.contains(&name)),
        "{environment}"
    );
    assert!(std::env::vars().count() > 10, "the test itself has more");
}

#[tokio::test]
async fn arguments_reach_an_external_tool_as_words_and_as_json() {
    let world = World::new(Sandbox::off());
    world.add_tool(
        "show",
        "./run.sh --text={{text}} {{n}} {{absent}}",
        "printf '<%s>' \"$@\"; cat; pwd | sed 's|.*/||'",
    );
    let evil = "$(touch hacked) `touch hacked`; touch hacked #'\"\n&& touch hacked";
    let args = json!({"text": evil, "n": 3});
    assert_eq!(
        world.run("show", args.clone()).await,
        format!("<--text={evil}><3><>{args}ws\n")
    );
    assert!(!world.at("ws/hacked").exists());
    assert!(
        world
            .run("show", json!({"text": 5}))
            .await
            .contains("`text` must be a string, got 5")
    );
}

#[tokio::test]
async fn an_external_tool_is_killed_when_its_time_is_over() {
    let world = World::new(Sandbox::off());
    world.add_tool("slow", "sh -c 'echo begun; sleep 1000'", "");
    assert_eq!(
        world.run("slow", json!({})).await,
        "error: timed out after 3000 ms and was killed\nbegun\n"
    );
}

/// Returns one sandbox of each kind that this machine supports.
async fn walls() -> Vec<Sandbox> {
    let bubblewrap = [
        "/usr/bin/bwrap".into(),
        concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../.tools/bubblewrap/usr/bin/bwrap"
        )
        .into(),
    ];
    let bubblewrap = bubblewrap
        .into_iter()
        .find(|program: &PathBuf| program.is_file());
    let mut walls = Vec::new();
    for (wanted, program) in [
        ("landlock", Some("/no/bwrap".into())),
        ("bubblewrap", bubblewrap),
    ] {
        let planck = Some(env!("CARGO_BIN_EXE_planck").into());
        let found = Sandbox::probe(SandboxSettings {
            bubblewrap: program,
            planck,
            tmp: 1 << 26,
            ..SandboxSettings::default()
        })
        .await;
        match found.tier() == wanted {
            true => walls.push(found),
            false => eprintln!("skipped: no {wanted} here: {found}"),
        }
    }
    walls
}

#[tokio::test]
async fn a_confined_process_sees_only_its_workspace() {
    for wall in walls().await {
        let tier = wall.tier();
        let world = World::new(wall);
        assert_eq!(
            world.bash("echo hi > file; cat file; pwd").await,
            format!("hi\n{}\n", world.at("ws").display()),
            "{tier}"
        );
        assert_eq!(fs::read_to_string(world.at("ws/file")).unwrap(), "hi\n");
        // bubblewrap replaces the machine's folder for temporary files, which contains the
        // workspace of this test.
        let others = tempfile::NamedTempFile::new().unwrap();
        let hidden = others.path().file_name().unwrap().to_str().unwrap();
        let private = format!(
            "test $HOME = $TMPDIR && test ! -e $HOME/{hidden} && echo x > $HOME/x && cat $HOME/x"
        );
        assert_eq!(world.bash(&private).await, "x\n", "{tier}");
        for refused in [
            "cat ../out/secret",
            "touch ../out/x",
            "touch /usr/x",
            "touch /etc/x",
            "ls /root",
            "cat < /dev/tcp/127.0.0.1/22",
        ] {
            assert!(
                world.bash(refused).await.starts_with("error: exit status"),
                "{tier}: {refused}"
            );
        }
        assert_eq!(world.bash("exit 5").await, "error: exit status 5");
        let killed =
            world.run("bash", json!({"command": "echo begun; (setsid sleep 1000 &); sleep 1000", "timeout": 2000})).await;
        assert_eq!(
            killed,
            "error: timed out after 2000 ms and was killed\nbegun\n"
        );
        world.add_tool(
            "show",
            "./run.sh {{text}}",
            "echo $1; cat; touch /mark $(dirname $0)/mark mark 2>/dev/null",
        );
        assert_eq!(
            world.run("show", json!({"text": "a b"})).await,
            "error: exit status 1\na b\n{\"text\":\"a b\"}",
            "{tier}"
        );
        assert!(world.at("ws/mark").exists() && !world.at("tools/show/mark").exists());
    }
}

#[tokio::test]
async fn a_required_sandbox_that_is_missing_refuses_processes() {
    let world = World::new(Sandbox::refused("bubblewrap (bwrap) is not installed"));
    let told = "error: this node may start processes only in a sandbox, and has none: bubblewrap (bwrap) is not installed";
    assert_eq!(world.bash("true").await, told);
}
