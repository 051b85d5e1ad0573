//! Runs a command under `planck reap`. The output is read while the command runs, within limits.
//! When the command exits, the time limit is over or the call is aborted, the reaper kills
//! everything that the command started.

mod heartbeat;
mod reaped;
mod strangers;

use std::{ffi::OsString, io, path::PathBuf, process::ExitStatus, time::Duration};

use nix::unistd::Pid;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub use heartbeat::ReaperHeartbeat;
pub use reaped::Reaped;

use super::{
    cgroup::Groups,
    output::Captured,
    reap::{CommandLimits, THIS_BINARY},
    sandbox::SandboxPolicy,
};

/// The launcher of a node's tool processes.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// The path of the `planck` binary.
    planck: PathBuf,
    /// The heartbeats to the reapers, or `None` outside of a cluster.
    heartbeat: Option<ReaperHeartbeat>,
    limits: CommandLimits,
    /// The control groups, or `None` if commands do not get groups of their own.
    groups: Option<Groups>,
}

impl Launcher {
    /// Creates a launcher that sends no heartbeats. Its reapers notice when the node's process
    /// ends, but not when that process is stopped.
    pub fn alone(planck: PathBuf) -> Self {
        Self::new(planck, None)
    }

    /// Creates a launcher whose reapers also kill their processes when they receive no heartbeat
    /// for the time that `heartbeat` sets. The caller must call [`ReaperHeartbeat::beat`]
    /// regularly.
    pub fn watched(planck: PathBuf, heartbeat: ReaperHeartbeat) -> Self {
        Self::new(planck, Some(heartbeat))
    }

    /// Creates a launcher that uses the running binary, which must be `planck`.
    pub fn of_this_binary(heartbeat: Option<ReaperHeartbeat>) -> Self {
        Self::new(THIS_BINARY.into(), heartbeat)
    }

    fn new(planck: PathBuf, heartbeat: Option<ReaperHeartbeat>) -> Self {
        strangers::adopt();
        Self {
            planck,
            heartbeat,
            limits: CommandLimits::default(),
            groups: None,
        }
    }

    /// Sets the limits that apply to every command.
    pub fn limited(self, limits: CommandLimits) -> Self {
        Self { limits, ..self }
    }

    /// Sets the control groups. With `Some`, every command runs in a group of its own if that group
    /// can be created.
    pub fn grouped(self, groups: Option<Groups>) -> Self {
        Self { groups, ..self }
    }

    /// Runs a command until it ends, the time limit is over, or the call is aborted. Kills the
    /// command's processes before it returns, and reports those that it could not kill.
    pub async fn run(
        &self,
        launch: &Launch,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> io::Result<Finished> {
        let started = Instant::now();
        let reaped = tokio::select! {
            biased;
            reaped = Reaped::spawn(self, launch) => reaped?,
            () = cancel.cancelled() => return Ok(Finished::before_it_began(CommandEnd::Aborted)),
            () = sleep(limit) => return Ok(Finished::before_it_began(CommandEnd::TimedOut)),
        };
        Ok(reaped
            .finish(launch.keep, limit.saturating_sub(started.elapsed()), cancel)
            .await)
    }
}

/// A command to run. Its environment consists of `env` alone.
#[derive(Debug, Clone)]
pub struct Launch {
    pub program: OsString,
    pub args: Vec<OsString>,
    pub dir: PathBuf,
    pub env: Vec<(OsString, OsString)>,
    /// The sandbox rules that the reaper applies to the command. `None` means that the command runs
    /// without rules, or that `program` is bubblewrap, which applies them.
    pub sandbox: Option<SandboxPolicy>,
    /// The standard input of the command. If it is empty, stdin is `/dev/null`.
    pub input: Vec<u8>,
    /// The maximum number of bytes that are kept of stdout, and of stderr.
    pub keep: usize,
}

/// The result of a command.
#[derive(Debug)]
pub struct Finished {
    pub end: CommandEnd,
    /// The processes that could not be killed. Processes of other calls may be among them.
    pub left: Vec<Pid>,
    pub stdout: Captured,
    pub stderr: Captured,
}

impl Finished {
    fn before_it_began(end: CommandEnd) -> Self {
        Self {
            end,
            left: Vec::new(),
            stdout: Captured::default(),
            stderr: Captured::default(),
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandEnd {
    Exited(ExitStatus),
    TimedOut,
    Aborted,
}
