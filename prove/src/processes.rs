//! The processes that a proof or the demo starts, as NATS and nodes. Each ends when this process
//! ends in any way. Its output goes to a file.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::Command,
    time::{sleep, timeout},
};

/// Builds a command whose process is killed when this process ends.
pub type Launch = fn(&OsStr) -> std::process::Command;

/// How long a process may take to end when it is asked to.
pub const LEAVES: Duration = Duration::from_secs(30);
/// How many lines of a log are shown.
const LAST_LINES: usize = 12;

pub struct Process {
    name: String,
    child: tokio::process::Child,
    pid: Pid,
    log: PathBuf,
}

impl Process {
    /// Starts a program in a folder, with this environment and nothing of this process's but `PATH`, `LANG`
    /// and `TMPDIR`. Its output goes to the file `NAME.log` there. The calling thread must run as long as
    /// the process, which is killed when that thread ends.
    pub fn start(
        name: &str,
        launch: Launch,
        program: &OsStr,
        arguments: &[OsString],
        environment: &[(&str, OsString)],
        folder: &Path,
    ) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let errors = File::create(folder.join(format!("{name}.err")))?;
        let output =
            File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let kept = ["PATH", "LANG", "TMPDIR"];
        let kept = kept
            .into_iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?)));
        let mut command = Command::from(launch(program));
        command
            .args(arguments)
            .current_dir(folder)
            .env_clear()
            .env("HOME", folder)
            .envs(kept)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .kill_on_drop(true);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok());
        Ok(Self {
            name: name.to_owned(),
            pid: Pid::from_raw(pid.with_context(|| format!("{name} ended at once"))?),
            child,
            log,
        })
    }

    /// Returns what the program has written to its standard output.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns the last lines of what the program has written, errors included.
    pub fn last_lines(&self) -> String {
        let errors = fs::read_to_string(self.log.with_extension("err")).unwrap_or_default();
        let text = self.output() + &errors;
        let lines: Vec<&str> = text.lines().collect();
        let skipped = lines.len().saturating_sub(LAST_LINES);
        let last = lines.iter().skip(skipped);
        last.map(|line| format!("  {line}\n")).collect()
    }

    /// Fails with the end of the log if the process has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended with {status}:\n{}", self.name, self.last_lines());
        }
        Ok(())
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let sent = kill(self.pid, signal);
        sent.with_context(|| format!("cannot send {signal} to {}", self.name))
    }

    /// Stops the process with SIGSTOP. It does nothing more when the call returns.
    pub async fn freeze(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        let stat = format!("/proc/{}/stat", self.pid);
        // The kernel stops the threads of a process one after the other.
        for _ in 0..200 {
            let text = fs::read_to_string(&stat).unwrap_or_default();
            let state = text.rsplit(')').next().unwrap_or_default().trim_start();
            if state.starts_with('T') {
                return Ok(());
            }
            sleep(Duration::from_millis(5)).await;
        }
        bail!("{} does not stop", self.name)
    }

    /// Kills the process, and waits until it is dead.
    pub async fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Waits until the process has ended, and returns its exit code, which is that of a shell if a
    /// signal ended it. Returns `None` if it goes on.
    pub async fn ended(&mut self, patience: Duration) -> Result<Option<i32>> {
        use std::os::unix::process::ExitStatusExt as _;
        let Ok(status) = timeout(patience, self.child.wait()).await else {
            return Ok(None);
        };
        let status = status?;
        Ok(status.code().or_else(|| Some(128 + status.signal()?)))
    }

    /// Asks the process to end, and kills it if it goes on.
    pub async fn leave(mut self) {
        // A process that has ended takes no signal.
        let _ = self.signal(Signal::SIGTERM);
        if let Ok(None) | Err(_) = self.ended(LEAVES).await {
            let _ = self.kill().await;
        }
    }
}

/// Returns the command lines of the processes of this machine, except this one, that have these words on
/// their command line.
pub fn processes_with(words: &str) -> Vec<String> {
    let own = std::process::id().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let others = entries.filter(|entry| entry.file_name() != *own);
    let lines = others.filter_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(words).then_some(line)
    });
    lines.collect()
}
