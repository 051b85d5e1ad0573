//! The pipe from the node, which is the reaper's stdin. Each byte shows that the node is alive. The
//! end of the pipe means that the node closed it or is dead.

use std::{
    io::{self, Read},
    os::fd::AsFd,
    process::Stdio,
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signalfd::SignalFd,
    time::{ClockId, clock_gettime},
    unistd::read,
};

/// What the command reads from its stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandInput {
    /// The first bytes in the pipe, as many as this says. The heartbeats follow them.
    Bytes(usize),
    /// The pipe itself. It has no heartbeats.
    Pipe,
}

/// The event that ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParentPipeEvent {
    Alive,
    Signals,
    Ended,
    Silent,
}

pub struct ParentPipe {
    stdin: io::Stdin,
    /// Whether the pipe is also the command's stdin. This process then reads nothing from it, and
    /// only notices when the node closes it.
    pub is_commands: bool,
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
    pub fn new(silence: Option<Duration>, input: CommandInput) -> Self {
        Self {
            stdin: io::stdin(),
            is_commands: input == CommandInput::Pipe,
            watch: silence.map(|silence| SilenceWatch {
                last_byte: monotonic_now(),
                silence,
            }),
        }
    }

    /// Returns the stdin of the command, and the bytes to write into it. These precede all
    /// heartbeats. Returns `None` if the pipe was closed early.
    pub fn read_input(&mut self, input: CommandInput) -> Option<(Stdio, Vec<u8>)> {
        let length = match input {
            CommandInput::Pipe => return Some((Stdio::inherit(), Vec::new())),
            CommandInput::Bytes(0) => return Some((Stdio::null(), Vec::new())),
            CommandInput::Bytes(length) => length,
        };
        let mut input = vec![0; length];
        let mut pipe = std::fs::File::from(self.stdin.as_fd().try_clone_to_owned().ok()?);
        pipe.read_exact(&mut input).ok()?;
        self.reset_silence();
        Some((Stdio::piped(), input))
    }

    /// Waits for an event. Returns `ParentPipeEvent::Alive` after a heartbeat, or if nothing happens
    /// within `at_most`.
    pub fn wait(
        &mut self,
        signals: &SignalFd,
        at_most: Option<Duration>,
    ) -> nix::Result<ParentPipeEvent> {
        // The end of a pipe is always reported, also without POLLIN.
        let wanted = match self.is_commands {
            true => PollFlags::empty(),
            false => PollFlags::POLLIN,
        };
        let mut fds = [
            PollFd::new(self.stdin.as_fd(), wanted),
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
            (false, false, true) if self.is_commands => ParentPipeEvent::Ended,
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
        left.map_or(PollTimeout::NONE, time_out)
    }
}

/// Returns the time-out of a poll that does not end before `left` has passed.
pub fn time_out(left: Duration) -> PollTimeout {
    PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
}

/// Returns the time since boot, including the time during which the machine was suspended.
pub fn monotonic_now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        .unwrap_or_default()
}
