//! Runs a command under `planck reap`: its output is read while it runs and kept within bounds, and
//! when its time is over or the call is aborted, everything it started is killed.

pub mod heart;
mod reaped;
mod strangers;

use std::{ffi::OsString, io, path::PathBuf, process::ExitStatus, time::Duration};

use nix::unistd::Pid;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub use heart::Heart;
pub use reaped::Reaped;

use super::{
    cgroup::Groups,
    output::Captured,
    reap::{Limits, THIS_BINARY},
    sandbox::Policy,
};

/// How processes are started on this node.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// The `planck` binary.
    planck: PathBuf,
    /// In a cluster: who tells the reapers that this node lives.
    heart: Option<Heart>,
    limits: Limits,
    /// Where each command has a control group of its own.
    groups: Option<Groups>,
}

impl Launcher {
    /// Only the node's end ends its processes.
    pub fn alone(planck: PathBuf) -> Self {
        Self::new(planck, None)
    }

    /// The node's silence ends its processes too, so the heart must beat.
    pub fn watched(planck: PathBuf, heart: Heart) -> Self {
        Self::new(planck, Some(heart))
    }

    /// With the binary that runs now, which must be `planck`.
    pub fn of_this_binary(heart: Option<Heart>) -> Self {
        Self::new(THIS_BINARY.into(), heart)
    }

    fn new(planck: PathBuf, heart: Option<Heart>) -> Self {
        strangers::adopt();
        Self {
            planck,
            heart,
            limits: Limits::default(),
            groups: None,
        }
    }

    /// What each command may use from now on.
    pub fn limited(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Puts each command into a control group of its own from now on.
    pub fn grouped(self, groups: Option<Groups>) -> Self {
        Self { groups, ..self }
    }

    /// Starts a command, runs it to its end, its time-out or its abort, and leaves no process of
    /// it.
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
            () = cancel.cancelled() => return Ok(Finished::before_it_began(End::Aborted)),
            () = sleep(limit) => return Ok(Finished::before_it_began(End::TimedOut)),
        };
        Ok(reaped
            .finish(launch.keep, limit.saturating_sub(started.elapsed()), cancel)
            .await)
    }
}

/// A command to run. The environment is exactly `env`.
#[derive(Debug, Clone)]
pub struct Launch {
    pub program: OsString,
    pub args: Vec<OsString>,
    pub dir: PathBuf,
    pub env: Vec<(OsString, OsString)>,
    /// The rules that the command is put under by its reaper; `None` where it needs none, or is
    /// bubblewrap.
    pub wall: Option<Policy>,
    /// Its stdin; empty for `/dev/null`.
    pub input: Vec<u8>,
    /// How many bytes of stdout, and of stderr, are kept.
    pub keep: usize,
}

/// What came of a command.
#[derive(Debug)]
pub struct Finished {
    pub end: End,
    /// Processes of the command that could not be ended.
    pub left: Vec<Pid>,
    pub stdout: Captured,
    pub stderr: Captured,
}

impl Finished {
    fn before_it_began(end: End) -> Self {
        Self {
            end,
            left: Vec::new(),
            stdout: Captured::default(),
            stderr: Captured::default(),
        }
    }
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Exited(ExitStatus),
    TimedOut,
    Aborted,
}
