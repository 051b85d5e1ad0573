//! `planck reap`: runs one command and leaves no process of it behind. It is the parent of every
//! tool's processes; when the pipe from the node ends, or falls silent in a cluster, or the command
//! exits, whatever descends from it is killed.

pub(in crate::tools) mod descendants;
mod descriptors;
mod lifeline;
mod limits;
mod options;
mod watch;

use std::{
    ffi::OsString,
    io::Write,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Command, ExitCode, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        prctl,
        resource::{Resource, setrlimit},
        signal::{self, SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{self, Pid},
};

use descendants::Descendants;
use lifeline::{Lifeline, News};
pub use limits::{Limits, THREADS};
use options::{Mode, Options};
use watch::{Excess, Watch};

use super::sandbox::{self, Policy};

/// The exit code where the command could not be started, as shells have it.
const CANNOT_START: u8 = 127;

/// Names the running binary even when its file was replaced by a newer one meanwhile.
pub const THIS_BINARY: &str = "/proc/self/exe";

/// A command that is killed when the thread that starts it ends, however that ends, and that no
/// terminal's signal reaches.
pub fn bound_to_this_process(program: &std::ffi::OsStr) -> Command {
    let mut command = Command::new(THIS_BINARY);
    command
        .arg0("planck")
        .args(["reap", "--under", &std::process::id().to_string(), "--"])
        .arg(program);
    command
}

/// Runs with the arguments after `reap`. The pipe from the node is stdin; stdout and stderr are the
/// command's own.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let closed = descriptors::close_inherited()
        .map_err(|why| format!("cannot close what was inherited: {why}"));
    match closed.and_then(|()| Options::parse(args)).and_then(run) {
        Ok(end) => leave(end),
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "planck reap: {why}");
            ExitCode::from(CANNOT_START)
        }
    }
}

/// How it came to an end.
enum End {
    /// The command exited.
    Command(ExitStatus),
    /// The node hung up, fell silent, or somebody asked this process to end.
    Told,
    /// The command used more than it may.
    Over(Excess),
}

fn run(options: Options) -> Result<End, String> {
    match options.mode {
        Mode::Reap { watch, input } => reap(watch, input, &options),
        Mode::Under { parent } => {
            Err(prepare_command(parent, &options)
                .map_or_else(|why| why, |()| become_command(&options)))
        }
        Mode::Inside => Err(become_command(&options)),
        Mode::Check { file, port } => {
            sandbox::check(options.wall.as_ref(), file.as_ref(), port).map(End::Command)
        }
    }
}

/// The command dies with its reaper, and has a session of its own, so that a signal it sends to its
/// own group stays there and its load is scheduled apart from the reaper's.
fn prepare_command(parent: Pid, options: &Options) -> Result<(), String> {
    let ready =
        prctl::set_pdeathsig(Signal::SIGKILL).and_then(|()| SigSet::empty().thread_set_mask());
    ready
        .and_then(|()| unistd::setsid())
        .map_err(|why| format!("cannot prepare the command: {why}"))?;
    if unistd::getppid() != parent {
        return Err("the reaper is gone".into());
    }
    if let Some(group) = &options.group {
        // A call without its group runs as calls do on machines that have none.
        let _ = group.enter();
    }
    match options.limits.map(|limits| limits.bind()) {
        Some(Err(why)) => Err(format!("cannot limit the command: {why}")),
        Some(Ok(())) | None => Ok(()),
    }
}

/// The last step: from here on this process is under the wall's rules, and then it is the command.
fn become_command(options: &Options) -> String {
    if let Some(why) = options
        .wall
        .as_ref()
        .and_then(|wall| sandbox::enter(wall).err())
    {
        return format!("cannot confine the command: {why}");
    }
    let [program, args @ ..] = options.command.as_slice() else {
        return "no command".into();
    };
    let why = Command::new(program).args(args).exec();
    format!("cannot start {}: {why}", program.display())
}

fn reap(silence: Option<Duration>, input: usize, options: &Options) -> Result<End, String> {
    let signals = prepare().map_err(|why| format!("cannot prepare: {why}"))?;
    let mut lifeline = Lifeline::new(silence);
    let Some(input) = lifeline.read_input(input) else {
        return Ok(End::Told);
    };
    let child = start(options, input)?;
    let end = wait(
        &mut lifeline,
        &signals,
        options.limits.and_then(Watch::new),
        child,
    );
    if let Some(group) = &options.group {
        group.kill();
    }
    Descendants::of_this_process().end();
    if let Ok(End::Over(excess)) = &end {
        let _ = writeln!(std::io::stderr(), "planck: {excess}");
    }
    // A node that lives does it itself.
    if let Ok(End::Told) = &end {
        options.wall.iter().for_each(Policy::clean);
        if let Some(group) = &options.group {
            group.remove();
        }
    }
    end
}

/// Its own session, no core dumps, orphans come to it, and signals are read rather than suffered.
/// The short name keeps it out of the way of a command that kills processes named `planck`. The
/// command may not trace it or read its memory, and a reaper that was stopped goes on when its node
/// dies.
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

fn start(options: &Options, input: Vec<u8>) -> Result<Pid, String> {
    let mut child = Command::new(THIS_BINARY)
        .arg0("planck")
        .args(["reap", "--under", &unistd::getpid().to_string()])
        .args(
            options
                .limits
                .iter()
                .flat_map(|limits| ["--limits".into(), limits.to_string()]),
        )
        .args(options.wall.iter().flat_map(Policy::to_option))
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
        // A command need not read its input; a thread that waits for it ends with this process.
        thread::spawn(move || stdin.write_all(&input));
    }
    Ok(Pid::from_raw(pid))
}

/// Waits for the first thing that ends it all.
fn wait(
    lifeline: &mut Lifeline,
    signals: &SignalFd,
    mut watch: Option<Watch>,
    child: Pid,
) -> Result<End, String> {
    loop {
        if let Some(status) = exited(child)? {
            return Ok(End::Command(status));
        }
        if let Some(excess) = watch.as_mut().and_then(Watch::look) {
            return Ok(End::Over(excess));
        }
        match lifeline
            .wait(signals, watch.as_ref().map(Watch::pause))
            .map_err(|why| format!("cannot wait: {why}"))?
        {
            News::Alive => {}
            News::Signals => {
                if told_to_end(signals) {
                    return Ok(End::Told);
                }
            }
            News::Ended | News::Silent => return Ok(End::Told),
        }
    }
}

fn told_to_end(signals: &SignalFd) -> bool {
    let mut told = false;
    while let Ok(Some(signal)) = signals.read_signal() {
        told |= i32::try_from(signal.ssi_signo) != Ok(Signal::SIGCHLD as i32);
    }
    told
}

/// Collects the dead; the command's own status if it is among them.
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
            // The command died of a signal that has no name; which one is lost.
            Err(Errno::EINVAL | Errno::ECHILD) if signal::kill(child, None).is_err() => {
                return Ok(Some(ExitStatus::from_raw(Signal::SIGKILL as i32)));
            }
            Ok(_) | Err(Errno::EINTR | Errno::EINVAL) => {}
            Err(why) => return Err(format!("cannot wait for the command: {why}")),
        }
    }
}

/// Ends as the command did, by the same signal too.
fn leave(end: End) -> ExitCode {
    let End::Command(status) = end else {
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
