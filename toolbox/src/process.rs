//! Runs a command under `planck reap`. The output is read while the command runs, within limits.
//! When the command exits, the time limit is over or the call is aborted, the reaper kills
//! everything that the command started.

mod piped;
mod strangers;

use std::{
    collections::HashMap,
    ffi::OsString,
    io::{self, PipeReader, PipeWriter, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    path::PathBuf,
    pin::{Pin, pin},
    process::{ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
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
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    cgroup::{CallGroup, Groups},
    output::{Capture, Captured, capture},
    reap::{CommandLimits, THIS_BINARY},
    sandbox::SandboxPolicy,
};

pub use piped::{PipedCommand, PipedProcess};

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

// A command that runs under a reaper.

/// The maximum time that a reaper may take to end all processes. A reaper that takes longer was
/// stopped, or waits for a process that cannot be killed. The node then kills the reaper, and the
/// remaining processes become children of this process.
const KILLING: Duration = Duration::from_millis(3500);

/// The interval at which a running reaper is checked. The node kills a reaper that is stopped in
/// two consecutive checks, because a stopped reaper enforces no limit.
const LOOKING: Duration = Duration::from_millis(500);

/// The maximum time to wait for a killed reaper to end.
const DYING: Duration = Duration::from_millis(2300);

/// The maximum time to read output after the reaper has exited and its leftover processes were
/// killed.
const DRAINING: Duration = Duration::from_secs(1);

/// A running command. Dropping it kills, in the background, everything that the command started.
#[derive(Debug)]
pub struct Reaped {
    reaper: Reaper,
    parent_pipe: Option<ReaperPipe>,
}

/// The node's end of the pipe to the reaper. Closing it makes the reaper kill the command.
#[derive(Debug)]
enum ReaperPipe {
    Alone { _pipe: OwnedFd },
    Watched { _pipe: Registered },
}

/// The process of the reaper.
#[derive(Debug)]
struct Reaper {
    /// The child process, or `None` after it was collected or passed to a background task.
    child: Option<Child>,
    /// The control group of the command and its descendants, if it has one.
    group: Option<CallGroup>,
}

impl Reaped {
    /// Starts a reaper for a command and passes it the command's input.
    pub async fn spawn(launcher: &Launcher, launch: &Launch) -> io::Result<Self> {
        let (ours, theirs) = connection()?;
        let reaper = Reaper::spawn(launcher, launch, theirs, false)?;
        let pipe = hand_over(ours, &launch.input).await?;
        Ok(Self {
            reaper,
            parent_pipe: Some(ReaperPipe::new(launcher.heartbeat.as_ref(), pipe)),
        })
    }

    /// Reads the output until the command ends, and keeps at most `keep` bytes of stdout and of
    /// stderr. Kills the command after `limit` or when `cancel` is cancelled, and then returns the
    /// output up to that time.
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
            () = cancel.cancelled() => Err(CommandEnd::Aborted),
            () = sleep(limit) => Err(CommandEnd::TimedOut),
        };
        drop(self.parent_pipe.take());
        let (end, left) = match first {
            Ok((status, left)) => (CommandEnd::Exited(status), left),
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

/// Waits for `ended`. Kills the reaper if a signal has stopped it, because a stopped reaper does
/// not end on its own.
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

/// Kills a reaper. The reaper must not have been collected yet, because its process id could belong
/// to another process afterwards. SIGKILL also ends a stopped process.
fn kill_unwaited(reaper: Option<Pid>) {
    let _ = reaper.map(|reaper| kill(reaper, Signal::SIGKILL));
}

/// Waits until all processes of a call are dead. Kills the reaper if that takes longer than
/// [`KILLING`]. Returns the processes that may still be alive.
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
    fn spawn(
        launcher: &Launcher,
        launch: &Launch,
        parent_pipe: PipeReader,
        reads_pipe: bool,
    ) -> io::Result<Self> {
        let group = launcher.groups.as_ref().and_then(Groups::of_call);
        let command = command(launcher, launch, group.as_ref(), parent_pipe, reads_pipe);
        let child = strangers::spawn(command);
        if let (Err(_), Some(group)) = (&child, &group) {
            group.remove();
        }
        Ok(Self {
            child: Some(child?),
            group,
        })
    }

    fn pid(&self) -> Option<Pid> {
        self.child.as_ref().and_then(strangers::pid_of)
    }
}

/// Starts a background task that ends the processes of a dropped call. The task waits until all of
/// them have ended, kills the reaper if that takes longer than [`KILLING`], and kills what a dead
/// reaper left behind.
impl Drop for Reaper {
    fn drop(&mut self) {
        let (pid, mut child, group) = (self.pid(), self.child.take(), self.group.take());
        if let (true, Ok(runtime)) = (child.is_some(), tokio::runtime::Handle::try_current()) {
            // If the runtime is shutting down, it drops the task immediately, and with it the
            // child.
            runtime
                .spawn(async move { all_ended(pin!(exit(&mut child, group.as_ref())), pid).await });
        }
    }
}

/// Waits until the reaper and all of its descendants are dead. Returns the reaper's exit status,
/// and the processes that could not be killed.
async fn exit(reaper: &mut Option<Child>, group: Option<&CallGroup>) -> (ExitStatus, Vec<Pid>) {
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

/// Kills the processes that a reaper left behind, and returns those that are still alive. The
/// processes in the call's group are killed first, because a frozen group cannot start others.
async fn end_leftovers(group: Option<&CallGroup>) -> Vec<Pid> {
    // Removing the group succeeds only if it has no process, so a successful removal shows that
    // nothing is left in it.
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

/// Waits until the reaper has exited, its leftover processes are dead, and all output has been read
/// or [`DRAINING`] has passed.
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

impl ReaperPipe {
    fn new(heartbeat: Option<&ReaperHeartbeat>, pipe: OwnedFd) -> Self {
        match heartbeat {
            Some(heartbeat) => Self::Watched {
                _pipe: heartbeat.register(PipeWriter::from(pipe)),
            },
            None => Self::Alone { _pipe: pipe },
        }
    }
}

/// Creates a pipe whose writing end is non-blocking.
fn connection() -> io::Result<(OwnedFd, PipeReader)> {
    let (theirs, ours) = io::pipe()?;
    fcntl(ours.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((ours.into(), theirs))
}

/// Builds the command of a reaper. `reads_pipe` says that the pipe to the reaper is also the
/// command's stdin. Then nothing else is written into the pipe, and it carries no heartbeats.
fn command(
    launcher: &Launcher,
    launch: &Launch,
    group: Option<&CallGroup>,
    parent_pipe: PipeReader,
    reads_pipe: bool,
) -> Command {
    let mut command = Command::new(&launcher.planck);
    command.arg0("planck").arg("reap");
    if reads_pipe {
        command.arg("--pipe");
    } else if let Some(heartbeat) = &launcher.heartbeat {
        command
            .arg("--watch")
            .arg(heartbeat.silence().as_millis().to_string());
    }
    if !launch.input.is_empty() && !reads_pipe {
        command.args(["--input", &launch.input.len().to_string()]);
    }
    command.args(["--limits", &launcher.limits.to_string()]);
    if let Some(policy) = &launch.sandbox {
        command.args(policy.to_option());
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
        .stdin(Stdio::from(parent_pipe))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Writes the command's input to the pipe, and returns the pipe. Errors of writing are ignored,
/// because the caller notices when the reaper exits.
async fn hand_over(pipe: OwnedFd, input: &[u8]) -> io::Result<OwnedFd> {
    if input.is_empty() {
        return Ok(pipe);
    }
    let mut pipe = pipe::Sender::from_owned_fd(pipe)?;
    let _ = pipe.write_all(input).await;
    pipe.into_nonblocking_fd()
}

// The heartbeats to the reapers. The membership thread writes one byte into the pipe of each
// reaper four times a second. A reaper that misses several bytes in a row assumes that its node is
// dead.

/// The pipes to the running reapers. Clones share them.
#[derive(Debug, Clone)]
pub struct ReaperHeartbeat(Arc<Pipes>);

#[derive(Debug)]
struct Pipes {
    silence: Duration,
    next: AtomicU64,
    open: Mutex<HashMap<u64, PipeWriter>>,
}

impl ReaperHeartbeat {
    /// Creates the heartbeat without any reaper. A reaper kills its processes when it has received
    /// no heartbeat for `silence`.
    pub fn new(silence: Duration) -> Self {
        Self(Arc::new(Pipes {
            silence,
            next: AtomicU64::new(0),
            open: Mutex::default(),
        }))
    }

    fn silence(&self) -> Duration {
        self.0.silence
    }

    /// Sends one byte to each reaper. Never blocks, because the pipes are non-blocking. If a pipe
    /// is full, the bytes in it already serve as heartbeats.
    pub fn beat(&self) {
        for pipe in self.lock().values_mut() {
            let _ = pipe.write(&[0]);
        }
    }

    /// Closes all pipes, so that every reaper immediately kills its processes.
    pub fn cut(&self) {
        self.lock().clear();
    }

    /// Returns the number of registered reapers.
    pub fn reapers(&self) -> usize {
        self.lock().len()
    }

    /// Registers the node's end of a pipe, which must be non-blocking, and sends the first
    /// heartbeat. The pipe is closed when the returned guard is dropped.
    fn register(&self, mut pipe: PipeWriter) -> Registered {
        let _ = pipe.write(&[0]);
        let key = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(key, pipe);
        Registered {
            heartbeat: self.clone(),
            key,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, PipeWriter>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The registration of a pipe. Dropping it closes the pipe.
#[derive(Debug)]
struct Registered {
    heartbeat: ReaperHeartbeat,
    key: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let pipe = self.heartbeat.lock().remove(&self.key);
        drop(pipe);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};

    use super::*;

    #[test]
    fn every_pipe_receives_each_beat_until_its_guard_is_dropped() {
        let heartbeat = ReaperHeartbeat::new(Duration::from_secs(3));
        let (mut reader, writer) = io::pipe().unwrap();
        let registered = heartbeat.register(writer);
        heartbeat.beat();
        drop(registered);
        heartbeat.beat();
        let mut received = Vec::new();
        reader.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), 2, "one at the start and one beat");
        assert_eq!(heartbeat.reapers(), 0);
    }

    #[test]
    fn a_cut_closes_every_pipe() {
        let heartbeat = ReaperHeartbeat::new(Duration::from_secs(3));
        let (mut reader, writer) = io::pipe().unwrap();
        let _registered = heartbeat.register(writer);
        heartbeat.cut();
        let mut received = Vec::new();
        reader.read_to_end(&mut received).unwrap();
        assert_eq!((received.len(), heartbeat.reapers()), (1, 0));
    }
}
