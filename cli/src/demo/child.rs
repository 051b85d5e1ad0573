//! A server process of the demo. Its output goes to a file. It is killed when this process ends in
//! any way, and it does not receive interrupts from the terminal.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::process::Command;

use crate::output::warn;
use planck_toolbox::reap;

/// How long a server may take to stop after it is asked to.
const PATIENCE: Duration = Duration::from_secs(10);

/// The number of lines at the end of the log that are shown if a server fails.
const LAST_LINES: usize = 12;

#[derive(Debug)]
pub struct Child {
    name: &'static str,
    process: tokio::process::Child,
    log: PathBuf,
}

impl Child {
    /// Starts a program in `folder`, with only `PATH`, `LANG`, `TMPDIR` and, as `HOME`, the folder
    /// in its environment. The calling thread must run as long as the demo, because the child is
    /// killed when that thread ends.
    pub fn start<A: AsRef<OsStr>>(
        name: &'static str,
        program: &OsStr,
        args: &[A],
        folder: &Path,
    ) -> anyhow::Result<Self> {
        Self::start_in(name, program, args, folder, &[])
    }

    /// Starts a program with additional environment variables. As for [`Self::start`], the calling
    /// thread must run as long as the demo.
    pub fn start_in<A: AsRef<OsStr>>(
        name: &'static str,
        program: &OsStr,
        args: &[A],
        folder: &Path,
        environment: &[(&str, OsString)],
    ) -> anyhow::Result<Self> {
        let log = folder.join(name).with_extension("log");
        let output =
            File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::from(reap::bound_to_this_process(program));
        command
            .args(args)
            .current_dir(folder)
            .env_clear()
            .env("HOME", folder);
        command.envs(
            ["PATH", "LANG", "TMPDIR"]
                .into_iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        );
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true);
        let process = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { name, process, log })
    }

    /// Returns an error with the last lines of the log if the process has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!(
                "{} ended with {status}; the end of its log:\n{}",
                self.name,
                self.last_lines()
            );
        }
        Ok(())
    }

    /// Returns the last lines of the log.
    pub fn last_lines(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines
            .iter()
            .skip(lines.len().saturating_sub(LAST_LINES))
            .map(|line| format!("  {line}\n"))
            .collect()
    }

    /// Kills the process.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.process.kill().await?)
    }

    /// Asks the process to end, and kills it if it still runs after [`PATIENCE`].
    pub async fn stop(mut self) {
        let pid = self.process.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = pid {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        if tokio::time::timeout(PATIENCE, self.process.wait())
            .await
            .is_err()
        {
            warn(&format!(
                "planck: {} does not end when asked and is killed",
                self.name
            ));
            let _ = self.process.kill().await;
        }
    }
}
