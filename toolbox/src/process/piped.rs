//! A command that runs for long, such as a server, and whose standard streams are pipes of this
//! process. It runs under `planck reap` as a tool's process does.

use std::{io, pin::pin, process::ExitStatus};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    net::unix::pipe,
    process::{ChildStderr, ChildStdout},
};

use super::{Launch, Launcher, Reaper, all_ended, connection, ended_or_stopped, exit};

/// A running command with its standard streams.
#[derive(Debug)]
pub struct PipedCommand {
    /// The stdin of the command. If it is closed, the command has two seconds to exit. The reaper
    /// then kills it.
    pub stdin: pipe::Sender,
    pub stdout: ChildStdout,
    pub stderr: ChildStderr,
    pub process: PipedProcess,
}

/// The process of a [`PipedCommand`]. Dropping it kills, in the background, everything that the
/// command started.
#[derive(Debug)]
pub struct PipedProcess {
    reaper: Reaper,
}

impl Launcher {
    /// Starts a command that reads from a pipe. Its reaper gets no heartbeats, so the command ends
    /// with this process, but not while this process is stopped.
    pub fn start_piped(&self, launch: &Launch) -> io::Result<PipedCommand> {
        let (ours, theirs) = connection()?;
        let mut reaper = Reaper::spawn(self, launch, theirs, true)?;
        let streams = reaper
            .child
            .as_mut()
            .and_then(|child| child.stdout.take().zip(child.stderr.take()));
        let process = PipedProcess { reaper };
        let (stdout, stderr) =
            streams.ok_or_else(|| io::Error::other("the command has no pipes"))?;
        Ok(PipedCommand {
            stdin: pipe::Sender::from_owned_fd(ours)?,
            stdout,
            stderr,
            process,
        })
    }
}

impl PipedProcess {
    /// Waits until the command and everything that it started have ended. Returns how the command
    /// ended, and the processes that could not be killed.
    pub async fn ended(&mut self) -> (ExitStatus, Vec<Pid>) {
        let pid = self.reaper.pid();
        let Reaper { child, group } = &mut self.reaper;
        ended_or_stopped(pin!(exit(child, group.as_ref())), pid).await
    }

    /// Kills the command and everything that it started. Returns the processes that could not be
    /// killed.
    pub async fn end(mut self) -> Vec<Pid> {
        self.ask_reaper();
        let pid = self.reaper.pid();
        let Reaper { child, group } = &mut self.reaper;
        all_ended(pin!(exit(child, group.as_ref())), pid).await
    }

    /// Asks the reaper to kill everything, also while the pipe is still open.
    fn ask_reaper(&self) {
        let _ = self
            .reaper
            .pid()
            .map(|reaper| kill(reaper, Signal::SIGTERM));
    }
}

impl Drop for PipedProcess {
    fn drop(&mut self) {
        self.ask_reaper();
    }
}
