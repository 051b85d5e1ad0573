//! A Postgres server on a unix socket in a temporary folder. A shell starts and stops the server. The
//! shell outlives the process that the server is for just long enough to stop the server and remove
//! its files.

use std::{
    env,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Output, Stdio},
    sync::Mutex,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sys::{
        signal::{Signal, kill},
        statvfs::statvfs,
    },
    unistd::{Pid, Uid, User},
};
use sqlx::{Connection as _, PgConnection, postgres::PgConnectOptions};

use super::programs;
use crate::{process::freeze, run};

/// The script of the shell that starts and stops the server. Its `read` returns when the other end of
/// the pipe is closed.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP
folder=$1; shift
"$@" >"$folder/log" 2>&1 &
server=$!
read -r _
kill -INT "$server"
wait "$server"
rm -rf "$folder"
"#;

/// The server's settings. Its data need not survive a crash of the machine, so no write waits for
/// the disk.
const SETTINGS: [&str; 5] = [
    "listen_addresses=",
    "max_connections=200",
    "max_wal_size=128MB",
    "fsync=off",
    "full_page_writes=off",
];

/// The user that runs the server if the tests run as root, because Postgres refuses to run as root.
const UNPRIVILEGED: &str = "nobody";
/// The number of bytes that the databases of a run may need.
const ROOM: u64 = 2 << 30;

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A server of one test. Dropping it stops it, and so does the end of the test's process.
pub struct Server {
    folder: PathBuf,
    watchdog: Mutex<Child>,
    _pipe: Option<ChildStdin>,
}

/// Starts a server that ends with this run of tests, and returns its folder.
pub async fn start_for_run() -> Result<PathBuf> {
    // `tail` keeps its end of the watchdog's pipe open until the process has ended.
    let mut owner = Command::new("tail");
    owner
        .args(["-f", "/dev/null"])
        .arg(format!("--pid={}", run::owner()));
    owner
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut owner = owner
        .process_group(0)
        .spawn()
        .context("cannot start tail")?;
    let pipe = owner.stdout.take().context("no pipe")?;
    Ok(Server::start_with(pipe.into()).await?.folder)
}

impl Server {
    pub async fn start() -> Result<Self> {
        Self::start_with(Stdio::piped()).await
    }

    /// Starts a server that ends when the other end of this pipe is closed.
    async fn start_with(pipe: Stdio) -> Result<Self> {
        let programs = programs::find()?;
        let folder = tempfile::Builder::new()
            .prefix("planck-pg-")
            .tempdir_in(memory().unwrap_or_else(env::temp_dir))?
            .keep();
        let started = Self::launch(&programs, folder.clone(), pipe);
        if started.is_err() {
            let _ = std::fs::remove_dir_all(&folder);
        }
        let server = started?;
        server.wait_until_ready().await?;
        Ok(server)
    }

    fn launch(programs: &Path, folder: PathBuf, pipe: Stdio) -> Result<Self> {
        make_cluster(programs, &folder)?;
        let mut command = Command::new("sh");
        command
            .args(["-c", WATCHDOG, "planck-test-postgres"])
            .arg(&folder);
        command.args(unprivileged()?).arg(programs.join("postgres"));
        command
            .arg("-D")
            .arg(folder.join("data"))
            .arg("-k")
            .arg(&folder);
        command.args(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
        // In a process group of its own it outlives a test that is killed for taking too long.
        let mut watchdog = command
            .process_group(0)
            .stdin(pipe)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start sh")?;
        let pipe = watchdog.stdin.take();
        Ok(Self {
            folder,
            watchdog: Mutex::new(watchdog),
            _pipe: pipe,
        })
    }

    pub fn options(&self) -> PgConnectOptions {
        options(&self.folder)
    }

    /// Freezes all processes of the server: connections stay open, and it does not answer.
    pub fn pause(&self) -> Result<Paused> {
        let watchdog = self
            .watchdog
            .lock()
            .map_err(|_| anyhow::anyhow!("the watchdog's lock is poisoned"))?
            .id();
        let mut frozen = Paused(Vec::new());
        // The first process starts no more children once it is frozen.
        let mut parents = vec![watchdog];
        while let Some(parent) = parents.pop() {
            for child in children(parent)? {
                let pid = Pid::from_raw(i32::try_from(child)?);
                freeze(pid)?;
                frozen.0.push(pid);
                parents.push(child);
            }
        }
        Ok(frozen)
    }

    async fn wait_until_ready(&self) -> Result<()> {
        let deadline = tokio::time::Instant::now() + START_TIMEOUT;
        loop {
            match PgConnection::connect_with(&self.options()).await {
                Ok(connection) => return Ok(connection.close().await?),
                Err(error) if self.has_ended() || tokio::time::Instant::now() > deadline => {
                    let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                    bail!("the test server did not come up: {error}\n{log}");
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.watchdog
            .lock()
            .is_ok_and(|mut watchdog| matches!(watchdog.try_wait(), Ok(Some(_))))
    }
}

/// Returns the folder of files in memory, if there is room for the databases of a run. Each test's
/// database has 300 files, and a disk's file system takes longer to create and remove them than
/// Postgres takes for the test.
fn memory() -> Option<PathBuf> {
    let folder = Path::new("/dev/shm");
    let space = statvfs(folder).ok()?;
    (space.blocks_available() * space.fragment_size() >= ROOM).then(|| folder.to_owned())
}

/// Returns how to connect to the server in this folder.
pub fn options(folder: &Path) -> PgConnectOptions {
    PgConnectOptions::new_without_pgpass()
        .socket(folder)
        .port(5432)
        .username("planck")
        .database("postgres")
}

/// A frozen server. Dropping it continues the server.
pub struct Paused(Vec<Pid>);

impl Drop for Paused {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _gone = kill(*pid, Signal::SIGCONT);
        }
    }
}

fn children(parent: u32) -> Result<Vec<u32>> {
    let text = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    Ok(text
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?)
}

fn make_cluster(programs: &Path, folder: &Path) -> Result<()> {
    if Uid::effective().is_root() {
        let user = nobody()?;
        nix::unistd::chown(folder, Some(user.uid), Some(user.gid))?;
    }
    let mut command = Command::new("env");
    command.args(unprivileged()?).arg(programs.join("initdb"));
    command.args([
        "--username=planck",
        "--auth=trust",
        "--no-sync",
        "--no-locale",
        "--encoding=UTF8",
        "-D",
    ]);
    let Output { status, stderr, .. } = command
        .arg(folder.join("data"))
        .output()
        .context("cannot run initdb")?;
    if !status.success() {
        bail!("initdb failed: {}", String::from_utf8_lossy(&stderr));
    }
    Ok(())
}

fn nobody() -> Result<User> {
    User::from_name(UNPRIVILEGED)?.with_context(|| format!("there is no user {UNPRIVILEGED}"))
}

/// Returns the words that precede a server program on the command line if the tests run as root.
/// With them the program runs unprivileged and ends with the process that started it.
fn unprivileged() -> Result<Vec<String>> {
    if !Uid::effective().is_root() {
        return Ok(Vec::new());
    }
    let user = nobody()?;
    let (user, group) = (
        format!("--reuid={}", user.uid),
        format!("--regid={}", user.gid),
    );
    Ok([
        "setpriv",
        &user,
        &group,
        "--clear-groups",
        "--pdeathsig=INT",
        "--",
    ]
    .map(str::to_owned)
    .to_vec())
}
