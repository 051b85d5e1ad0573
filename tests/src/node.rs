//! A real `planck node` process with its own log. Tests stop or kill it by its process id.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_common::NodeId;
use serde_json::Value;
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use crate::{
    eventually::{PATIENCE, within},
    process::freeze,
};

/// How long a node may take to leave.
const LEAVE: Duration = Duration::from_secs(30);

/// A running node. Dropping it kills it.
pub struct Node {
    child: Child,
    pid: Pid,
    log: PathBuf,
    id: NodeId,
}

/// How to build `planck` for tests that find none.
const REMEDY: &str = "cargo build -p planck-cli -p planck-tests";

/// Returns the `planck` that was built with these tests.
pub fn planck() -> Result<PathBuf> {
    let test = env::current_exe()?;
    let mut folders = test
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("planck"));
    let Some(planck) = folders.find(|file| file.is_file()) else {
        bail!(
            "no `planck` beside {}: run `{REMEDY}` first",
            test.display()
        );
    };
    fresh(planck, REMEDY)
}

/// Returns a program if it was built from the current sources, and fails with the remedy if not.
pub fn fresh(program: PathBuf, remedy: &str) -> Result<PathBuf> {
    let there = program
        .metadata()
        .with_context(|| format!("no {}: run `{remedy}` first", program.display()))?;
    let built = there.modified()?;
    // Beside a program that `cargo test` builds there is no list of its sources. Such a program
    // counts as current.
    let sources = fs::read_to_string(program.with_extension("d")).unwrap_or_default();
    let newer = |path: &&str| {
        fs::metadata(path)
            .and_then(|file| file.modified())
            .is_ok_and(|changed| changed > built)
    };
    if let Some(source) = sources.split_whitespace().skip(1).find(newer) {
        bail!(
            "{} is older than {source}; run `{remedy}` first",
            program.display()
        );
    }
    Ok(program)
}

/// Returns a `planck` command that uses nothing of the machine's own configuration.
pub fn planck_in(folder: &Path) -> Result<Command> {
    // The kernel kills the child when the test's thread ends, even if the thread panics or is
    // killed.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig=KILL", "--"])
        .arg(planck()?)
        .current_dir(folder)
        .env_clear()
        .env("HOME", folder);
    if let Some(path) = env::var_os("PATH") {
        command.env("PATH", path);
    }
    command.stdin(Stdio::null()).kill_on_drop(true);
    Ok(command)
}

/// Returns whether a process of this machine has these words on its command line, even in another
/// pid namespace.
pub fn runs(words: &str) -> bool {
    processes(words).next().is_some()
}

/// Returns the folders below `/proc` of the processes that have these words on their command line.
pub fn processes(words: &str) -> impl Iterator<Item = PathBuf> {
    has(words, &["cmdline"])
}

/// Returns the resident memory of a process in bytes.
pub fn memory(pid: i32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = rss.and_then(|rss| rss.trim().split(' ').next());
    Ok(kibibytes.context("no VmRSS")?.parse::<u64>()? << 10)
}

/// Returns how many processes of this machine have these words on their command line or in their
/// environment.
pub fn count(words: &str) -> usize {
    has(words, &["cmdline", "environ"]).count()
}

fn has(words: &str, files: &[&str]) -> impl Iterator<Item = PathBuf> {
    let processes = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .map(|process| process.path());
    let says = move |process: &PathBuf, file: &str| {
        let text = fs::read(process.join(file)).unwrap_or_default();
        String::from_utf8_lossy(&text)
            .replace('\0', " ")
            .contains(words)
    };
    processes.filter(move |process| files.iter().any(|file| says(process, file)))
}

impl Node {
    /// Runs the command of a node, and waits until the node is in service.
    pub async fn start(mut command: Command, log: PathBuf) -> Result<Self> {
        let file = File::create(&log)?;
        let mut child = command
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .context("cannot run `setpriv`")?;
        let pid = Pid::from_raw(i32::try_from(child.id().context("it ended at once")?)?);
        let ready = within(PATIENCE, "the node is in service", async || {
            let ended = child.try_wait().ok().flatten();
            in_service(&log).map(Ok).or(ended.map(Err))
        });
        match ready.await.with_context(|| read(&log))? {
            Ok(id) => Ok(Self {
                child,
                pid,
                log,
                id,
            }),
            Err(status) => bail!("the node ended with {status}; its log:\n{}", read(&log)),
        }
    }

    pub fn id(&self) -> &NodeId {
        &self.id
    }

    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Returns the node's whole log.
    pub fn log(&self) -> String {
        read(&self.log)
    }

    /// Kills the node with SIGKILL, and waits until it is dead.
    pub async fn kill(&mut self) -> Result<()> {
        kill(self.pid, Signal::SIGKILL)?;
        self.child.wait().await?;
        Ok(())
    }

    /// Freezes the node: its connections stay open, and it does nothing.
    pub fn pause(&self) -> Result<()> {
        freeze(self.pid)
    }

    pub fn resume(&self) -> Result<()> {
        Ok(kill(self.pid, Signal::SIGCONT)?)
    }

    /// Runs the command of a node that must end by itself before it is in service. Returns its exit
    /// code and its standard error.
    pub async fn refused(mut command: Command) -> Result<(Option<i32>, String)> {
        let output = timeout(PATIENCE, command.output())
            .await
            .context("it does not end")??;
        Ok((
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ))
    }

    /// Waits until the node has ended by itself.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait().await?)
    }

    /// Asks the node to leave, and waits until it has. Fails if its exit code is not 0, or if its
    /// log has warnings, errors or panics.
    pub async fn leave(self) -> Result<()> {
        self.leave_despite(&[]).await
    }

    /// Like [`leave`](Self::leave), but ignores warnings that contain one of these texts.
    pub async fn leave_despite(mut self, excused: &[&str]) -> Result<()> {
        kill(self.pid, Signal::SIGTERM)?;
        let ended = timeout(LEAVE, self.child.wait()).await;
        let status: ExitStatus = ended
            .with_context(|| format!("the node does not leave; its log:\n{}", self.log()))??;
        let complaints = self.complaints(excused);
        if !status.success() || !complaints.is_empty() {
            let said = if status.success() {
                complaints
            } else {
                self.complaints(&[])
            };
            bail!(
                "the node left with {status} and complained:\n{}",
                said.join("\n")
            );
        }
        Ok(())
    }

    /// Returns the warnings and errors in the log, and lines that are not log entries, such as
    /// panics, except the lines that contain one of the texts in `excused`.
    pub fn complaints(&self, excused: &[&str]) -> Vec<String> {
        let log = self.log();
        let bad = log
            .lines()
            .filter(|line| is_complaint(line) && !excused.iter().any(|text| line.contains(text)));
        bad.map(str::to_owned).collect()
    }
}

/// Returns whether a line of the log is a warning or an error that the node itself caused, or is no
/// log entry at all.
///
/// Slow statements and slow waits for a connection are due to the machine. The warning about tools
/// that run as root without a sandbox is due to the test's configuration. All nodes of a machine
/// share its control groups, so a starting node may find processes that another test's killed node
/// has left.
fn is_complaint(line: &str) -> bool {
    let Ok(entry) = serde_json::from_str::<Value>(line) else {
        return !line.trim().is_empty();
    };
    let of_machine = [
        "slow statement",
        "acquired connection, but time to acquire exceeded",
        "tool processes run as root without a sandbox",
        "ending processes that outlived the reaper of their call and its node",
    ];
    let said = entry
        .get("message")
        .and_then(Value::as_str)
        .unwrap_or_default();
    !of_machine.iter().any(|start| said.starts_with(start))
        && matches!(
            entry.get("level").and_then(Value::as_str),
            Some("WARN" | "ERROR")
        )
}

fn in_service(log: &Path) -> Option<NodeId> {
    let log = read(log);
    let entries = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let said = |entry: &Value| {
        entry.get("message").and_then(Value::as_str) == Some("the node is in service")
    };
    let entry = entries.into_iter().find(said)?;
    NodeId::parse(entry.get("node")?.as_str()?).ok()
}

fn read(log: &Path) -> String {
    fs::read_to_string(log).unwrap_or_default()
}
