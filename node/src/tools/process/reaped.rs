//! A command that runs under its reaper.

use std::{
    io::{self, PipeReader, PipeWriter},
    os::fd::{AsFd, OwnedFd},
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::signal::Signal,
};
use tokio::{
    io::AsyncWriteExt,
    net::unix::pipe,
    process::{Child, Command},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    End, Finished, Launch, Launcher,
    heart::{Heart, Registered},
};
use crate::tools::output::{Capture, capture};

/// A reaper that has not ended all by then goes on alone; the call does not wait longer for it.
const KILLING: Duration = Duration::from_secs(5);

/// After the reaper's exit its output is read for so long.
const DRAINING: Duration = Duration::from_secs(1);

/// A running command. Dropping it kills all that it started.
#[derive(Debug)]
pub struct Reaped {
    child: Child,
    lifeline: Lifeline,
}

/// The node's end of the pipe to the reaper; closing it ends the command.
#[derive(Debug)]
enum Lifeline {
    Alone { _pipe: OwnedFd },
    Watched { _pipe: Registered },
}

impl Reaped {
    /// Starts a command and hands it its input.
    pub async fn spawn(launcher: &Launcher, launch: &Launch) -> io::Result<Self> {
        let (ours, theirs) = connection()?;
        let child = command(launcher, launch, theirs).spawn()?;
        let pipe = hand_over(ours, &launch.input).await?;
        Ok(Self { child, lifeline: Lifeline::new(launcher.heart.as_ref(), pipe) })
    }

    /// The reaper's process id.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Reads all output to the command's end; after `limit`, or when cancelled, kills it and keeps what there is.
    pub async fn finish(self, keep: usize, limit: Duration, cancel: &CancellationToken) -> Finished {
        let (mut out, mut err) = (Capture::new(keep), Capture::new(keep));
        let Self { child, lifeline } = self;
        let mut ended = Box::pin(run_out(child, &mut out, &mut err));
        let end = tokio::select! {
            biased;
            status = &mut ended => End::Exited(status),
            () = cancel.cancelled() => End::Aborted,
            () = sleep(limit) => End::TimedOut,
        };
        drop(lifeline);
        if !matches!(end, End::Exited(_)) && timeout(KILLING, &mut ended).await.is_err() {
            tracing::warn!("processes of a tool call are not dead after {KILLING:?}");
        }
        drop(ended);
        Finished { end, stdout: out.finish(), stderr: err.finish() }
    }
}

/// To the reaper's exit and the end of all output. Whoever holds the output open after that got away by killing the reaper.
async fn run_out(mut child: Child, out: &mut Capture, err: &mut Capture) -> ExitStatus {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let gone = CancellationToken::new();
    let exit = async {
        let status = child.wait().await;
        gone.cancel();
        status.unwrap_or_else(|_| ExitStatus::from_raw(Signal::SIGKILL as i32))
    };
    let read = async { tokio::join!(capture(stdout, out), capture(stderr, err)) };
    let read_for_a_while = async {
        tokio::select! {
            _ = read => {}
            () = async { gone.cancelled().await; sleep(DRAINING).await } => {}
        }
    };
    tokio::join!(exit, read_for_a_while).0
}

impl Lifeline {
    fn new(heart: Option<&Heart>, pipe: OwnedFd) -> Self {
        match heart {
            Some(heart) => Self::Watched { _pipe: heart.register(PipeWriter::from(pipe)) },
            None => Self::Alone { _pipe: pipe },
        }
    }
}

/// A pipe whose writing end never blocks.
fn connection() -> io::Result<(OwnedFd, PipeReader)> {
    let (theirs, ours) = io::pipe()?;
    fcntl(ours.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((ours.into(), theirs))
}

fn command(launcher: &Launcher, launch: &Launch, lifeline: PipeReader) -> Command {
    let mut command = Command::new(&launcher.planck);
    command.arg0("planck").arg("reap");
    if let Some(heart) = &launcher.heart {
        command.arg("--watch").arg(heart.silence().as_millis().to_string());
    }
    if !launch.input.is_empty() {
        command.args(["--input", &launch.input.len().to_string()]);
    }
    command.arg("--").arg(&launch.program).args(&launch.args);
    command.current_dir(&launch.dir).env_clear().envs(launch.env.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::from(lifeline)).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Writes the input; a reaper that is gone by then is noticed by its exit.
async fn hand_over(pipe: OwnedFd, input: &[u8]) -> io::Result<OwnedFd> {
    if input.is_empty() {
        return Ok(pipe);
    }
    let mut pipe = pipe::Sender::from_owned_fd(pipe)?;
    let _ = pipe.write_all(input).await;
    pipe.into_nonblocking_fd()
}
