//! A command that runs under its reaper.

use std::{
    io::{self, PipeReader, PipeWriter},
    os::fd::{AsFd, OwnedFd},
    os::unix::process::ExitStatusExt,
    pin::{Pin, pin},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::signal::{Signal, kill},
    unistd::Pid,
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
    strangers,
};
use crate::tools::{
    cgroup::{Group, Groups},
    output::{Capture, capture},
};

/// A reaper that has not ended all by then was stopped, or waits for what cannot be killed; it is
/// killed, and what it leaves comes to this process.
const KILLING: Duration = Duration::from_millis(3500);

/// How often a running reaper is looked at. One that is found stopped twice was stopped by its
/// command, which nothing would bound from then on.
const LOOKING: Duration = Duration::from_millis(500);

/// A killed reaper is gone by then.
const DYING: Duration = Duration::from_millis(2300);

/// After the reaper's exit its output is read for so long.
const DRAINING: Duration = Duration::from_secs(1);

/// A running command. Dropping it ends all that it started, in the background.
#[derive(Debug)]
pub struct Reaped {
    reaper: Reaper,
    lifeline: Option<Lifeline>,
}

/// The node's end of the pipe to the reaper; closing it ends the command.
#[derive(Debug)]
enum Lifeline {
    Alone { _pipe: OwnedFd },
    Watched { _pipe: Registered },
}

/// The process of the reaper.
#[derive(Debug)]
struct Reaper {
    /// `None` once it was waited for, or was left to the background.
    child: Option<Child>,
    /// Where its command is, and all that came from it.
    group: Option<Group>,
}

impl Reaped {
    /// Starts a command and hands it its input.
    pub async fn spawn(launcher: &Launcher, launch: &Launch) -> io::Result<Self> {
        let (ours, theirs) = connection()?;
        let group = launcher.groups.as_ref().and_then(Groups::of_call);
        let child = strangers::spawn(command(launcher, launch, group.as_ref(), theirs));
        if let (Err(_), Some(group)) = (&child, &group) {
            group.remove();
        }
        let reaper = Reaper {
            child: Some(child?),
            group,
        };
        let pipe = hand_over(ours, &launch.input).await?;
        Ok(Self {
            reaper,
            lifeline: Some(Lifeline::new(launcher.heart.as_ref(), pipe)),
        })
    }

    /// The reaper's process id.
    pub fn id(&self) -> Option<u32> {
        self.reaper.child.as_ref()?.id()
    }

    /// Reads all output to the command's end; after `limit`, or when cancelled, kills it and keeps
    /// what there is.
    pub async fn finish(
        mut self,
        keep: usize,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Finished {
        let (mut out, mut err) = (Capture::new(keep), Capture::new(keep));
        let reaper = self.reaper.pid();
        let mut ended = Box::pin(run_out(&mut self.reaper, &mut out, &mut err));
        let first = tokio::select! {
            biased;
            done = ended_or_stopped(ended.as_mut(), reaper) => Ok(done),
            () = cancel.cancelled() => Err(End::Aborted),
            () = sleep(limit) => Err(End::TimedOut),
        };
        drop(self.lifeline.take());
        let (end, left) = match first {
            Ok((status, left)) => (End::Exited(status), left),
            Err(end) => (end, all_ended(ended.as_mut(), reaper).await),
        };
        drop(ended);
        Finished {
            end,
            left,
            stdout: out.finish(),
            stderr: err.finish(),
        }
    }
}

/// Waits for the reaper's end, and brings it about if the reaper was stopped.
async fn ended_or_stopped<T>(
    mut ended: Pin<&mut impl Future<Output = T>>,
    reaper: Option<Pid>,
) -> T {
    let mut was_stopped = false;
    loop {
        if let Ok(done) = timeout(LOOKING, &mut ended).await {
            return done;
        }
        let is_stopped = reaper.is_some_and(strangers::is_stopped);
        if is_stopped && was_stopped {
            tracing::warn!(?reaper, "killing a reaper that was stopped");
            kill_unwaited(reaper);
        }
        was_stopped = is_stopped;
    }
}

/// Only for a reaper that was not waited for, so that the id is still its own. A stopped process
/// dies of this signal too.
fn kill_unwaited(reaper: Option<Pid>) {
    let _ = reaper.map(|reaper| kill(reaper, Signal::SIGKILL));
}

/// Waits until all processes of a call are dead, and gives those of which that is not known.
async fn all_ended(
    mut ended: Pin<&mut impl Future<Output = (ExitStatus, Vec<Pid>)>>,
    reaper: Option<Pid>,
) -> Vec<Pid> {
    if let Ok((_, left)) = timeout(KILLING, &mut ended).await {
        return left;
    }
    tracing::warn!(
        ?reaper,
        "killing a reaper that did not end its processes within {KILLING:?}"
    );
    kill_unwaited(reaper);
    match timeout(DYING, ended).await {
        Ok((_, left)) => left,
        Err(_) => reaper.into_iter().collect(),
    }
}

impl Reaper {
    fn pid(&self) -> Option<Pid> {
        self.child.as_ref().and_then(strangers::pid_of)
    }
}

/// Without its lifeline the reaper ends everything; one that was stopped or killed by its command
/// is followed up.
impl Drop for Reaper {
    fn drop(&mut self) {
        let (pid, mut child, group) = (self.pid(), self.child.take(), self.group.take());
        if let (true, Ok(runtime)) = (child.is_some(), tokio::runtime::Handle::try_current()) {
            // A runtime that shuts down drops the task at once; the task holds the child itself, so
            // that ends there.
            runtime
                .spawn(async move { all_ended(pin!(exit(&mut child, group.as_ref())), pid).await });
        }
    }
}

/// The status of a reaper, once it and all that came from it are dead; and what could not be ended.
async fn exit(reaper: &mut Option<Child>, group: Option<&Group>) -> (ExitStatus, Vec<Pid>) {
    let killed = ExitStatus::from_raw(Signal::SIGKILL as i32);
    let Some(child) = reaper else {
        return (killed, end_leftovers(group).await);
    };
    let pid = strangers::pid_of(child);
    let status = child.wait().await.unwrap_or(killed);
    *reaper = None;
    pid.into_iter().for_each(strangers::forget);
    (status, end_leftovers(group).await)
}

/// Ends what a reaper left when it ended, and gives what does not die. Those that are in the call's
/// group are killed first: they cannot start others meanwhile.
async fn end_leftovers(group: Option<&Group>) -> Vec<Pid> {
    // A group that the kernel lets go of was empty.
    let Some(group) = group.filter(|group| !group.remove()) else {
        return strangers::end().await;
    };
    let outlived = group.kill();
    if !outlived.is_empty() {
        tracing::warn!(processes = ?outlived, "ending processes that outlived the reaper of their call");
    }
    let mut left = strangers::end().await;
    left.extend(group.end().await);
    left.sort_unstable();
    left.dedup();
    left
}

/// To the reaper's exit, the end of what outlived it, and the end of all output.
async fn run_out(
    reaper: &mut Reaper,
    out: &mut Capture,
    err: &mut Capture,
) -> (ExitStatus, Vec<Pid>) {
    let (stdout, stderr) = reaper
        .child
        .as_mut()
        .map(|child| (child.stdout.take(), child.stderr.take()))
        .unwrap_or_default();
    let gone = CancellationToken::new();
    let ended = async {
        let ended = exit(&mut reaper.child, reaper.group.as_ref()).await;
        gone.cancel();
        ended
    };
    let read = async { tokio::join!(capture(stdout, out), capture(stderr, err)) };
    let read_for_a_while = async {
        tokio::select! {
            _ = read => {}
            () = async { gone.cancelled().await; sleep(DRAINING).await } => {}
        }
    };
    tokio::join!(ended, read_for_a_while).0
}

impl Lifeline {
    fn new(heart: Option<&Heart>, pipe: OwnedFd) -> Self {
        match heart {
            Some(heart) => Self::Watched {
                _pipe: heart.register(PipeWriter::from(pipe)),
            },
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

fn command(
    launcher: &Launcher,
    launch: &Launch,
    group: Option<&Group>,
    lifeline: PipeReader,
) -> Command {
    let mut command = Command::new(&launcher.planck);
    command.arg0("planck").arg("reap");
    if let Some(heart) = &launcher.heart {
        command
            .arg("--watch")
            .arg(heart.silence().as_millis().to_string());
    }
    if !launch.input.is_empty() {
        command.args(["--input", &launch.input.len().to_string()]);
    }
    command.args(["--limits", &launcher.limits.to_string()]);
    if let Some(wall) = &launch.wall {
        command.args(wall.to_option());
    }
    if let Some(group) = group {
        command.arg("--group").arg(group.folder());
    }
    command.arg("--").arg(&launch.program).args(&launch.args);
    command
        .current_dir(&launch.dir)
        .env_clear()
        .envs(launch.env.iter().map(|(name, value)| (name, value)));
    command
        .stdin(Stdio::from(lifeline))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
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
