//! `planck reap` runs one command and leaves none of its processes behind. It is the ancestor of
//! all processes of a tool call. It kills all of its descendants when the command exits or exceeds
//! a limit, when the pipe from the node is closed, when a signal asks it to end, or, in a cluster,
//! when no heartbeat arrives through the pipe.

pub(crate) mod descendants;
mod limits;

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, Read, Write},
    iter,
    os::{
        fd::AsFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Command, ExitCode, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        resource::{Resource, setrlimit},
        signal::{self, SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    time::{ClockId, clock_gettime},
    unistd::{self, Pid, close, read},
};

use self::{
    descendants::Descendants,
    limits::{Excess, LimitWatch},
};
use crate::{
    cgroup::CallGroup,
    sandbox::{self, SandboxPolicy},
};

pub use limits::{CommandLimits, THREADS};

/// The exit code if the command could not be started, as in shells.
const CANNOT_START: u8 = 127;

/// The path of the running binary, which stays valid after an upgrade has replaced the file.
pub const THIS_BINARY: &str = "/proc/self/exe";

/// Builds a command whose process is killed when the thread that starts it ends for any reason.
/// Signals of the terminal do not reach the process.
pub fn bound_to_this_process(program: &std::ffi::OsStr) -> Command {
    let mut command = Command::new(THIS_BINARY);
    command
        .arg0("planck")
        .args(["reap", "--under", &std::process::id().to_string(), "--"])
        .arg(program);
    command
}

/// Runs `planck reap`. `args` are the arguments after `reap`. Stdin is the pipe from the node;
/// stdout and stderr belong to the command.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let closed = close_inherited().map_err(|why| format!("cannot close what was inherited: {why}"));
    match closed.and_then(|()| ReapOptions::parse(args)).and_then(run) {
        Ok(end) => leave(end),
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "planck reap: {why}");
            ExitCode::from(CANNOT_START)
        }
    }
}

/// How a run of the reaper ended.
enum ReapEnd {
    /// The command exited.
    Command(ExitStatus),
    /// The node closed the pipe or sent no heartbeat, or a signal asked this process to end.
    Stopped,
    /// The command exceeded a limit.
    LimitExceeded(Excess),
}

fn run(options: ReapOptions) -> Result<ReapEnd, String> {
    match options.mode {
        ReapMode::Reap { watch, input } => reap(watch, input, &options),
        ReapMode::Under { parent } => {
            Err(prepare_command(parent, &options)
                .map_or_else(|why| why, |()| become_command(&options)))
        }
        ReapMode::Inside => Err(become_command(&options)),
        ReapMode::Check { file, port } => {
            sandbox::check(options.sandbox.as_ref(), file.as_ref(), port).map(ReapEnd::Command)
        }
    }
}

/// Prepares this process to become the command. The process enters the call's control group and
/// gets its limits, and the kernel kills it when its reaper ends. The process also gets a session
/// of its own, so that signals that the command sends to its own process group do not reach the
/// reaper, and so that the scheduler separates the command's load from the reaper's.
fn prepare_command(parent: Pid, options: &ReapOptions) -> Result<(), String> {
    let ready =
        prctl::set_pdeathsig(Signal::SIGKILL).and_then(|()| SigSet::empty().thread_set_mask());
    ready
        .and_then(|()| unistd::setsid())
        .map_err(|why| format!("cannot prepare the command: {why}"))?;
    if unistd::getppid() != parent {
        return Err("the reaper is gone".into());
    }
    if let Some(group) = &options.group {
        // If this fails, the command runs without a group, as on machines that have no control
        // groups.
        let _ = group.enter();
    }
    match options.limits.map(|limits| limits.bind()) {
        Some(Err(why)) => Err(format!("cannot limit the command: {why}")),
        Some(Ok(())) | None => Ok(()),
    }
}

/// Applies the sandbox rules to this process and then replaces it with the command. Returns only if
/// that fails, with the reason.
fn become_command(options: &ReapOptions) -> String {
    if let Some(why) = options
        .sandbox
        .as_ref()
        .and_then(|policy| sandbox::enter(policy).err())
    {
        return format!("cannot confine the command: {why}");
    }
    let [program, args @ ..] = options.command.as_slice() else {
        return "no command".into();
    };
    let why = Command::new(program).args(args).exec();
    format!("cannot start {}: {why}", program.display())
}

fn reap(silence: Option<Duration>, input: usize, options: &ReapOptions) -> Result<ReapEnd, String> {
    let signals = prepare().map_err(|why| format!("cannot prepare: {why}"))?;
    let mut parent_pipe = ParentPipe::new(silence);
    let Some(input) = parent_pipe.read_input(input) else {
        return Ok(ReapEnd::Stopped);
    };
    let child = start(options, input)?;
    let scratch = options.sandbox.iter().filter_map(SandboxPolicy::scratch);
    let folders: Vec<&Path> = iter::once(Path::new(".")).chain(scratch).collect();
    let watch = options
        .limits
        .and_then(|limits| LimitWatch::new(limits, &folders));
    let end = wait(&mut parent_pipe, &signals, watch, child);
    if let Some(group) = &options.group {
        group.kill();
    }
    Descendants::of_this_process().end();
    if let Ok(ReapEnd::LimitExceeded(excess)) = &end {
        let _ = writeln!(std::io::stderr(), "planck: {excess}");
    }
    // The node may be dead, so the reaper removes the call's files and group itself. After a normal
    // end, the live node removes them.
    if let Ok(ReapEnd::Stopped) = &end {
        options.sandbox.iter().for_each(SandboxPolicy::clean);
        if let Some(group) = &options.group {
            group.remove();
        }
    }
    end
}

/// Prepares this process to be the reaper. The process gets a session of its own, and orphans
/// become its children. Its signals are read from the descriptor that this function returns. The
/// process is not dumpable, so it writes no core file, and the command may not trace it or read its
/// memory. Its name is changed, which protects it from a command that kills processes named
/// `planck`. If a signal has stopped the reaper, the kernel continues it when its node dies.
fn prepare() -> nix::Result<SignalFd> {
    let _ = unistd::setsid();
    prctl::set_dumpable(false)?;
    prctl::set_pdeathsig(Signal::SIGCONT)?;
    prctl::set_child_subreaper(true)?;
    prctl::set_name(c"reap")?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    let mut mask = SigSet::empty();
    for signal in [
        Signal::SIGCHLD,
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ] {
        mask.add(signal);
    }
    mask.thread_block()?;
    SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

fn start(options: &ReapOptions, input: Vec<u8>) -> Result<Pid, String> {
    let mut child = Command::new(THIS_BINARY)
        .arg0("planck")
        .args(["reap", "--under", &unistd::getpid().to_string()])
        .args(
            options
                .limits
                .iter()
                .flat_map(|limits| ["--limits".into(), limits.to_string()]),
        )
        .args(options.sandbox.iter().flat_map(SandboxPolicy::to_option))
        .args(
            options
                .group
                .iter()
                .flat_map(|group| ["--group".as_ref(), group.folder().as_os_str()]),
        )
        .arg("--")
        .args(&options.command)
        .stdin(if input.is_empty() {
            Stdio::null()
        } else {
            Stdio::piped()
        })
        .spawn()
        .map_err(|why| format!("cannot start: {why}"))?;
    let pid = i32::try_from(child.id()).map_err(|why| why.to_string())?;
    if let Some(mut stdin) = child.stdin.take() {
        // The command need not read its input, so the write may block. The write therefore runs on
        // a thread of its own, which ends with this process.
        thread::spawn(move || stdin.write_all(&input));
    }
    Ok(Pid::from_raw(pid))
}

/// Waits for the first event that ends the run, and returns how the run ended.
fn wait(
    parent_pipe: &mut ParentPipe,
    signals: &SignalFd,
    mut watch: Option<LimitWatch>,
    child: Pid,
) -> Result<ReapEnd, String> {
    loop {
        if let Some(status) = exited(child)? {
            return Ok(ReapEnd::Command(status));
        }
        if let Some(excess) = watch.as_mut().and_then(LimitWatch::look) {
            return Ok(ReapEnd::LimitExceeded(excess));
        }
        match parent_pipe
            .wait(signals, watch.as_ref().map(LimitWatch::pause))
            .map_err(|why| format!("cannot wait: {why}"))?
        {
            ParentPipeEvent::Alive => {}
            ParentPipeEvent::Signals => {
                if told_to_end(signals) {
                    return Ok(ReapEnd::Stopped);
                }
            }
            ParentPipeEvent::Ended | ParentPipeEvent::Silent => return Ok(ReapEnd::Stopped),
        }
    }
}

fn told_to_end(signals: &SignalFd) -> bool {
    let mut stopped = false;
    while let Ok(Some(signal)) = signals.read_signal() {
        stopped |= i32::try_from(signal.ssi_signo) != Ok(Signal::SIGCHLD as i32);
    }
    stopped
}

/// Collects dead children. Returns the exit status of the command if it is among them.
fn exited(child: Pid) -> Result<Option<ExitStatus>, String> {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => {
                return Ok(Some(ExitStatus::from_raw((code & 0xff) << 8)));
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                return Ok(Some(ExitStatus::from_raw(signal as i32)));
            }
            Ok(WaitStatus::StillAlive) => return Ok(None),
            // `nix` has no name for the signal that killed the command. The number of the signal is
            // lost, so SIGKILL is reported.
            Err(Errno::EINVAL | Errno::ECHILD) if signal::kill(child, None).is_err() => {
                return Ok(Some(ExitStatus::from_raw(Signal::SIGKILL as i32)));
            }
            Ok(_) | Err(Errno::EINTR | Errno::EINVAL) => {}
            Err(why) => return Err(format!("cannot wait for the command: {why}")),
        }
    }
}

/// Returns the command's exit code, or ends this process with the signal that ended the command. If
/// the reaper ended the command, ends this process with SIGKILL.
fn leave(end: ReapEnd) -> ExitCode {
    let ReapEnd::Command(status) = end else {
        return kill_itself(Signal::SIGKILL);
    };
    match (
        status.code(),
        status
            .signal()
            .and_then(|signal| Signal::try_from(signal).ok()),
    ) {
        (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(signal)) => kill_itself(signal),
        (None, None) => ExitCode::FAILURE,
    }
}

fn kill_itself(fatal: Signal) -> ExitCode {
    let _ = SigSet::empty().thread_set_mask();
    let _ = signal::raise(fatal);
    ExitCode::from(u8::try_from(128 + fatal as i32).unwrap_or(u8::MAX))
}

// Closes the file descriptors that this process inherited, except its standard streams. A shell, a
// service manager or a test that starts the node may leave files, sockets or folders open, and
// with them a tool could bypass its sandbox.

/// The first descriptor after the standard streams.
const FIRST: i32 = 3;

/// Closes every descriptor except the standard streams. It must be called before this process opens
/// anything.
fn close_inherited() -> io::Result<()> {
    // Reading the folder opens a descriptor too. It is closed before the loop runs.
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")?
        .flatten()
        .filter_map(|entry| descriptor_number(&entry.file_name()))
        .collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor >= FIRST) {
        let _ = close(descriptor);
    }
    Ok(())
}

fn descriptor_number(name: &OsStr) -> Option<i32> {
    name.to_str()?.parse().ok()
}

// The pipe from the node, which is the reaper's stdin. Each byte shows that the node is alive. The
// end of the pipe means that the node closed it or is dead.

/// The event that ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParentPipeEvent {
    Alive,
    Signals,
    Ended,
    Silent,
}

struct ParentPipe {
    stdin: io::Stdin,
    /// The watch for missing heartbeats, or `None` if only the end of the pipe counts.
    watch: Option<SilenceWatch>,
}

/// The time of the last heartbeat, and the silence after which the node counts as dead. Another
/// node may have taken over the sessions of a node that was silent for that long.
struct SilenceWatch {
    last_byte: Duration,
    silence: Duration,
}

impl SilenceWatch {
    fn ends(&self) -> Duration {
        self.last_byte.saturating_add(self.silence)
    }
}

impl ParentPipe {
    /// Creates the parent_pipe. If `silence` is given, the node counts as dead when no heartbeat
    /// arrives for that long.
    fn new(silence: Option<Duration>) -> Self {
        Self {
            stdin: io::stdin(),
            watch: silence.map(|silence| SilenceWatch {
                last_byte: monotonic_now(),
                silence,
            }),
        }
    }

    /// Reads the command's input, which precedes all heartbeats. Returns `None` if the pipe was
    /// closed early.
    fn read_input(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut input = vec![0; length];
        let mut pipe = std::fs::File::from(self.stdin.as_fd().try_clone_to_owned().ok()?);
        pipe.read_exact(&mut input).ok()?;
        self.reset_silence();
        Some(input)
    }

    /// Waits for an event. Returns `ParentPipeEvent::Alive` after a heartbeat, or if nothing happens
    /// within `at_most`.
    fn wait(
        &mut self,
        signals: &SignalFd,
        at_most: Option<Duration>,
    ) -> nix::Result<ParentPipeEvent> {
        let mut fds = [
            PollFd::new(self.stdin.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, self.patience(at_most)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(why) => return Err(why),
        }
        let [pipe, signal] = fds.map(|fd| fd.any().unwrap_or(false));
        // Silence is checked before the pipe is read: after this machine was paused, bytes that
        // were buffered before the pause do not show that the node is alive.
        Ok(match (self.is_silent(), signal, pipe) {
            (true, ..) => ParentPipeEvent::Silent,
            (false, true, _) => ParentPipeEvent::Signals,
            (false, false, true) => self.read_pipe(),
            (false, false, false) => ParentPipeEvent::Alive,
        })
    }

    fn read_pipe(&mut self) -> ParentPipeEvent {
        match read(&self.stdin, &mut [0; 4096]) {
            Ok(0) => ParentPipeEvent::Ended,
            Ok(_) => {
                self.reset_silence();
                ParentPipeEvent::Alive
            }
            Err(Errno::EINTR | Errno::EAGAIN) => ParentPipeEvent::Alive,
            Err(_) => ParentPipeEvent::Ended,
        }
    }

    fn reset_silence(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.last_byte = monotonic_now();
        }
    }

    fn is_silent(&self) -> bool {
        self.watch
            .as_ref()
            .is_some_and(|watch| monotonic_now() > watch.ends())
    }

    fn patience(&self, at_most: Option<Duration>) -> PollTimeout {
        let silence = self
            .watch
            .as_ref()
            .map(|watch| watch.ends().saturating_sub(monotonic_now()));
        let left = silence.into_iter().chain(at_most).min();
        left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        })
    }
}

/// Returns the time since boot, including the time during which the machine was suspended.
fn monotonic_now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        .unwrap_or_default()
}

// The arguments of `planck reap`, which only `planck` itself writes.

/// The task of this process.
#[derive(Debug, PartialEq, Eq)]
enum ReapMode {
    /// Runs the command and kills its descendants. If no heartbeat arrives for `watch`, the node
    /// counts as dead. The first `input` bytes in the pipe are the command's stdin.
    Reap {
        watch: Option<Duration>,
        input: usize,
    },
    /// Becomes the command, which the kernel kills when the reaper `parent` ends.
    Under { parent: Pid },
    /// Becomes the command inside bubblewrap, which ends the command when the reaper ends.
    Inside,
    /// Runs no command, but tries what the sandbox must refuse: reading this file, writing next to
    /// it, and connecting to this local port.
    Check { file: OsString, port: u16 },
}

#[derive(Debug, PartialEq, Eq)]
struct ReapOptions {
    mode: ReapMode,
    /// The limits that the process gets, or `None` if it gets none.
    limits: Option<CommandLimits>,
    /// The sandbox rules of the command, or `None` if there are none to apply.
    sandbox: Option<SandboxPolicy>,
    /// The control group that the command enters, if it has one.
    group: Option<CallGroup>,
    command: Vec<OsString>,
}

impl ReapOptions {
    fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let (mut watch, mut input, mut limits, mut sandbox, mut group) =
            (None, 0, None, None, None);
        let mut last = None;
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("--watch") => watch = Some(Duration::from_millis(number_of(args.next())?)),
                Some("--input") => input = number_of(args.next())?,
                Some("--limits") => limits = Some(number_of(args.next())?),
                Some("--group") => {
                    group = Some(CallGroup::at(args.next().unwrap_or_default().into()))
                }
                Some("--under") => {
                    last = Some(ReapMode::Under {
                        parent: Pid::from_raw(number_of(args.next())?),
                    })
                }
                Some("--inside") => last = Some(ReapMode::Inside),
                Some("--check") => {
                    last = Some(ReapMode::Check {
                        file: args.next().unwrap_or_default(),
                        port: number_of(args.next())?,
                    });
                }
                Some("--wall") => {
                    let length = number_of(args.next())?;
                    sandbox = Some(SandboxPolicy::from_words(args.by_ref().take(length))?);
                }
                Some("--") => break,
                Some(_) | None => return Err(format!("unknown option {}", arg.display())),
            }
        }
        let command: Vec<OsString> = args.collect();
        let mode = last.unwrap_or(ReapMode::Reap { watch, input });
        if command.is_empty() && !matches!(mode, ReapMode::Check { .. }) {
            let usage = "[--watch MILLISECONDS] [--input BYTES] [--limits P,M,F,O,D] [--wall COUNT RULE…] [--group FOLDER] \
                         -- COMMAND [ARG…]";
            return Err(format!("usage: planck reap {usage}"));
        }
        Ok(Self {
            mode,
            limits,
            sandbox,
            group,
            command,
        })
    }
}

fn number_of<T: std::str::FromStr>(arg: Option<OsString>) -> Result<T, String> {
    let text = arg.unwrap_or_default();
    text.to_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("{} is not a number_of", text.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<ReapOptions, String> {
        ReapOptions::parse(words.iter().map(OsString::from))
    }

    #[test]
    fn options_precede_the_command() {
        let reap = |watch: Option<u64>, input, command: &[&str]| {
            let watch = watch.map(Duration::from_millis);
            let command = command.iter().map(OsString::from).collect();
            Ok(ReapOptions {
                mode: ReapMode::Reap { watch, input },
                limits: None,
                sandbox: None,
                group: None,
                command,
            })
        };
        assert_eq!(
            parse(&["--", "ls", "--watch"]),
            reap(None, 0, &["ls", "--watch"])
        );
        assert_eq!(
            parse(&["--watch", "900", "--input", "12", "--", "cat"]),
            reap(Some(900), 12, &["cat"])
        );
        assert_eq!(
            parse(&["--under", "7", "--", "cat"]).unwrap().mode,
            ReapMode::Under {
                parent: Pid::from_raw(7)
            }
        );
        assert_eq!(
            parse(&["--limits", "1,2,3,4,5", "--", "cat"])
                .unwrap()
                .limits
                .unwrap()
                .to_string(),
            "1,2,3,4,5"
        );
        let grouped = parse(&["--group", "/sys/fs/cgroup/a b", "--", "cat"]).unwrap();
        assert_eq!(
            grouped.group,
            Some(CallGroup::at("/sys/fs/cgroup/a b".into()))
        );
        let sandboxed = parse(&[
            "--wall", "3", "level", "0", "network", "--inside", "--", "cat",
        ])
        .unwrap();
        assert_eq!(
            (sandboxed.mode, sandboxed.sandbox.unwrap().network),
            (ReapMode::Inside, true)
        );
        for wrong in [
            &[][..],
            &["--limits", "1,2", "--", "ls"],
            &["--"],
            &["ls"],
            &["--input", "many", "--", "ls"],
            &["--input"],
            &["--watch", "--", "ls"],
            &["--wall", "1", "--", "ls"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
