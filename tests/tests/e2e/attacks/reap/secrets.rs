//! What a tool, and any process of the node's user, can learn from a node, and which secrets its
//! log must not contain.

use std::{
    fs::{self, File},
    os::fd::AsRawFd,
    path::Path,
    process::Stdio,
};

use anyhow::{Context, Result};
use nix::unistd::{Uid, chown};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    nats::NatsServer,
    node::{Node, planck},
    world::{Backend, World},
};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use super::escapes::NO_WALL;
use crate::teams::scene::{Scene, by, member};

/// The id of a user that owns nothing here.
const NOBODY: u32 = 65534;

const CANARY: &str = "sk-canary-0123456789abcdef";

/// Returns a command that runs as [`NOBODY`] if this test runs as root, else as the user who runs
/// the test.
fn as_ordinary_user(program: &str) -> Command {
    if !Uid::effective().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    let user = NOBODY.to_string();
    command.args([
        "--reuid",
        &user,
        "--regid",
        &user,
        "--clear-groups",
        "--",
        program,
    ]);
    command
}

/// Starts a node as an ordinary user, in a folder that this user owns. This function opens the
/// program before the user changes, because that user may not be able to read the build folder.
async fn ordinary_node(folder: &Path) -> Result<Node> {
    let program = File::open(planck()?)?;
    nix::fcntl::fcntl(
        &program,
        nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()),
    )?;
    let mut command = as_ordinary_user(&format!("/proc/self/fd/{}", program.as_raw_fd()));
    if Uid::effective().is_root() {
        chown(folder, Some(NOBODY.into()), Some(NOBODY.into()))?;
    }
    command
        .args(["node", "--alone"])
        .current_dir(folder)
        .env_clear()
        .env("HOME", folder)
        .env("XDG_DATA_HOME", folder);
    command.env("PATH", std::env::var_os("PATH").context("no PATH")?);
    command.env("ANTHROPIC_API_KEY", CANARY).env(
        "PLANCK_STORE_URL",
        format!("sqlite:{}/sessions", folder.display()),
    );
    command.stdin(Stdio::null()).kill_on_drop(true);
    Node::start(command, folder.with_extension("log")).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn a_process_of_the_same_user_reads_neither_environment_nor_memory_of_a_node() -> Result<()> {
    let folder = TempDir::new()?;
    let node = ordinary_node(folder.path()).await?;
    let pid = node.pid();
    for attack in [
        format!("cat /proc/{pid}/environ"),
        format!("dd if=/proc/{pid}/mem bs=1 count=1 skip=4194304"),
        format!("cat /proc/{pid}/maps"),
        format!("ls /proc/{pid}/fd"),
        format!("cat /proc/{pid}/cwd/anything"),
    ] {
        let output = as_ordinary_user("sh")
            .args(["-c", &attack])
            .output()
            .await?;
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && told.contains("Permission denied"),
            "{attack}: {output:?}"
        );
    }
    // Root may read the environment, and finds no key in it.
    if Uid::effective().is_root() {
        let environment = fs::read_to_string(format!("/proc/{pid}/environ"))?;
        assert!(
            environment.contains("HOME=") && !environment.contains("canary"),
            "{environment}"
        );
    }
    fs::remove_file(folder.path().with_extension("log"))?;
    node.leave_despite(&["root"]).await
}

/// A tool searches the environment of every process that it may read, and looks for the file
/// descriptor 9 in itself and in its reaper. Its words are in no other test, because the nodes of
/// tests that run at the same time have secrets in their environment until they have started.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn a_tool_finds_no_key_of_its_node() -> Result<()> {
    const KEY: &str = "sk-goldfinch-0123456789abcdef";
    let search = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c 'gold''finch\\|hun''ter2'; true";
    let opened = "ls -l /proc/self/fd | grep -c ' 9 -> '; for fd in /proc/$PPID/fd/9; do test -e $fd && echo reaper; done; true";
    let calls = Reply::call("bash", json!({ "command": search }));
    let own = Reply::call(
        "bash",
        json!({ "command": "cat /proc/self/environ > own && test -O /proc/self/environ && echo readable" }),
    );
    let opened = Reply::call("bash", json!({ "command": opened }));
    let script = Script::new().rounds(by("agent"), [calls, own, opened, Reply::text("done")]);
    let world = World::start(Backend::Sqlite, script).await?;
    let secrets = [
        NO_WALL,
        ("ANTHROPIC_API_KEY", KEY),
        ("PLANCK_PROVIDERS_SCRIPTED_API_KEY", KEY),
        ("UNRELATED", "redis://me:hunter2@cache"),
    ];
    let (node, recorder) = (world.node_with(&secrets).await?, world.record().await?);
    let started = world
        .caller
        .start(
            &json!({ "dir": world.dir(), "members": [member("agent", &["bash"])], "prompt": "go" }),
        )
        .await?;
    let scene = Scene {
        world,
        node: Some(node),
        recorder,
        started,
    };
    scene.answer().await?;
    let results: Vec<String> = scene
        .results("agent", "bash")
        .await?
        .into_iter()
        .map(|end| end.result)
        .collect();
    assert_eq!(
        results,
        ["0\n", "readable\n", "0\n"],
        "a tool itself is an ordinary process"
    );
    let sent = scene
        .world
        .model
        .requests()
        .into_iter()
        .all(|request| request.headers.iter().any(|(_, value)| value.contains(KEY)));
    assert!(
        sent,
        "the key that was taken out of the environment is used"
    );
    let name = fs::read_to_string(format!(
        "/proc/{}/comm",
        scene.node.as_ref().context("no node")?.pid()
    ))?;
    assert_eq!(
        name.trim(),
        "planck",
        "a program that executes itself again keeps its name"
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn passwords_of_nats_and_postgres_are_in_no_log() -> Result<()> {
    let password = "pw-canary-77";
    let users =
        format!("authorization {{ users: [{{ user: planck, password: \"{password}\" }}] }}");
    let nats = NatsServer::start_with(&users)?;
    let url = nats.url().replace("//", &format!("//planck:{password}@"));
    let folder = TempDir::new()?;
    let database = Backend::Postgres.database().await?.context("no database")?;
    let store = with_password(&database.url(), password);
    let mut command = planck_tests::node::planck_in(folder.path())?;
    command
        .arg("node")
        .env("NATS_URL", &url)
        .env("DATABASE_URL", &store)
        .env("RUST_LOG", "trace");
    let log = folder.path().join("log");
    let mut node = Node::start(command, log.clone()).await?;
    node.kill().await?;
    let mut run = planck_tests::node::planck_in(folder.path())?;
    run.args(["session", "ls"])
        .env("NATS_URL", &url)
        .env("DATABASE_URL", &store)
        .env("RUST_LOG", "trace");
    let output = run.output().await?;
    let logs = fs::read_to_string(&log)? + &String::from_utf8_lossy(&output.stderr);
    assert!(
        logs.contains("async_nats") && logs.contains("sqlx"),
        "the libraries' own lines are there"
    );
    let told: Vec<&str> = logs
        .lines()
        .filter(|line| line.contains(password))
        .collect();
    assert_eq!(told, Vec::<&str>::new());
    Ok(())
}

/// Returns the URL with this password, unless it has a password already. If the URL has no user,
/// the user is `postgres`. A server whose URL has no password asks for none, and ignores the added
/// one.
fn with_password(url: &str, password: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
    match rest.split_once('@') {
        Some((user, _)) if user.contains(':') => url.into(),
        Some((user, host)) => format!("{scheme}://{user}:{password}@{host}"),
        None => format!("{scheme}://postgres:{password}@{rest}"),
    }
}
