//! An instance of the sidecar that the checker starts itself, in a process group of its own.

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::{CheckPlan, Error};

/// A running instance. Dropping this value kills the process group of the instance.
pub struct ChildProcess {
    child: Child,
    group: Option<Pid>,
}

impl ChildProcess {
    /// Starts an instance. Passes the URL, credentials, nkey and subject prefix of the connection
    /// in environment variables. Its standard output is discarded, and its standard error is that
    /// of the checker.
    pub fn start(plan: &CheckPlan) -> Result<Self, Error> {
        let (program, arguments) = plan
            .command
            .split_first()
            .ok_or_else(|| Error::Command("the command is empty".into()))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        let connection = &plan.connection;
        if let Some(url) = &connection.url {
            command.env("NATS_URL", url);
        }
        if let Some(creds) = &connection.creds {
            command.env("NATS_CREDS", creds);
        }
        if let Some(nkey) = &connection.nkey {
            command.env("NATS_NKEY", nkey);
        }
        command.env("PLANCK_NATS_SUBJECT_PREFIX", connection.prefix.as_str());
        let child = command
            .spawn()
            .map_err(|error| Error::Command(format!("cannot run `{program}`: {error}")))?;
        let group = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .map(Pid::from_raw);
        Ok(Self { child, group })
    }

    /// Returns the exit status of the instance, or `None` if it still runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    pub async fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        let _reaped = self.child.wait().await;
    }

    /// Waits until the instance has ended by itself. Returns `None` if it still runs after
    /// `within`.
    pub async fn end(&mut self, within: Duration) -> Option<ExitStatus> {
        timeout(within, self.child.wait()).await.ok()?.ok()
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _already_gone = killpg(group, signal);
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}
