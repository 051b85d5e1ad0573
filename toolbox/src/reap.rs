//! `planck reap` runs one command and leaves none of its processes behind. It is the ancestor of
//! all processes of a tool call. It kills all of its descendants when the command exits or exceeds
//! a limit, when the pipe from the node is closed, when a signal asks it to end, or, in a cluster,
//! when no heartbeat arrives through the pipe. The pipe may also be the command's stdin.

pub(crate) mod descendants;
mod limits;
mod parent_pipe;

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, Write},
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
    poll::{PollFd, PollFlags, poll},
    sys::{
        prctl,
        resource::{Resource, setrlimit},
        signal::{self, SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{self, Pid, close},
};

use self::{
    descendants::Descendants,
    limits::{Excess, LimitWatch},
    parent_pipe::{CommandInput, ParentPipe, ParentPipeEvent, monotonic_now, time_out},
};
use crate::{
    cgroup::CallGroup,
    sandbox::{self, SandboxPolicy},
};

pub use limits::{CommandLimits, THREADS};

/// The exit code if the command could not be started, as in shells.
const CANNOT_START: u8 = 127;

/// How long a command may take to exit after the node has closed the pipe that is its stdin.
const LEAVING: Duration = Duration::from_secs(2);

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

fn reap(
    silence: Option<Duration>,
    input: CommandInput,
    options: &ReapOptions,
) -> Result<ReapEnd, String> {
    let signals = prepare().map_err(|why| format!("cannot prepare: {why}"))?;
    let mut parent_pipe = ParentPipe::new(silence, input);
    let Some((stdin, input)) = parent_pipe.read_input(input) else {
        return Ok(ReapEnd::Stopped);
    };
    let child = start(options, stdin, input)?;
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

fn start(options: &ReapOptions, stdin: Stdio, input: Vec<u8>) -> Result<Pid, String> {
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
        .stdin(stdin)
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
            ParentPipeEvent::Ended if parent_pipe.is_commands => {
                return let_leave(signals, child);
            }
            ParentPipeEvent::Ended | ParentPipeEvent::Silent => return Ok(ReapEnd::Stopped),
        }
    }
}

/// Waits for up to [`LEAVING`] until the command exits, because the end of its stdin tells it to.
fn let_leave(signals: &SignalFd, child: Pid) -> Result<ReapEnd, String> {
    let until = monotonic_now() + LEAVING;
    loop {
        if let Some(status) = exited(child)? {
            return Ok(ReapEnd::Command(status));
        }
        let left = until.saturating_sub(monotonic_now());
        if left.is_zero() {
            return Ok(ReapEnd::Stopped);
        }
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, time_out(left)) {
            Ok(_) | Err(Errno::EINTR) if told_to_end(signals) => return Ok(ReapEnd::Stopped),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(why) => return Err(format!("cannot wait: {why}")),
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

// The arguments of `planck reap`, which only `planck` itself writes.

/// The task of this process.
#[derive(Debug, PartialEq, Eq)]
enum ReapMode {
    /// Runs the command and kills its descendants. If no heartbeat arrives for `watch`, the node
    /// counts as dead.
    Reap {
        watch: Option<Duration>,
        input: CommandInput,
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
            (None, CommandInput::Bytes(0), None, None, None);
        let mut last = None;
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("--watch") => watch = Some(Duration::from_millis(number_of(args.next())?)),
                Some("--input") => input = CommandInput::Bytes(number_of(args.next())?),
                Some("--pipe") => input = CommandInput::Pipe,
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
            let usage = "[--watch MILLISECONDS] [--input BYTES | --pipe] [--limits P,M,F,O,D] [--wall COUNT RULE…] [--group FOLDER] \
                         -- COMMAND [ARG…]";
            return Err(format!("usage: planck reap {usage}"));
        }
        if watch.is_some() && input == CommandInput::Pipe {
            return Err("--watch needs a pipe of its own, without --pipe".into());
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
            reap(None, CommandInput::Bytes(0), &["ls", "--watch"])
        );
        assert_eq!(
            parse(&["--watch", "900", "--input", "12", "--", "cat"]),
            reap(Some(900), CommandInput::Bytes(12), &["cat"])
        );
        assert_eq!(
            parse(&["--pipe", "--", "cat"]),
            reap(None, CommandInput::Pipe, &["cat"])
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
            &["--watch", "900", "--pipe", "--", "ls"],
            &["--wall", "1", "--", "ls"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
