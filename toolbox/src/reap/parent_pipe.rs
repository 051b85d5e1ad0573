//! The pipe from the node, which is the reaper's stdin. Each byte shows that the node is alive. The
//! end of the pipe means that the node closed it or is dead.

use std::{
    io::{self, Read},
    os::fd::AsFd,
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signalfd::SignalFd,
    time::{ClockId, clock_gettime},
    unistd::read,
};

/// The event that ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ParentPipeEvent {
    Alive,
    Signals,
    Ended,
    Silent,
}

pub(super) struct ParentPipe {
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
    pub fn new(silence: Option<Duration>) -> Self {
        Self {
            stdin: io::stdin(),
            watch: silence.map(|silence| SilenceWatch {
                last_byte: now(),
                silence,
            }),
        }
    }

    /// Reads the command's input, which precedes all heartbeats. Returns `None` if the pipe was
    /// closed early.
    pub fn read_input(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut input = vec![0; length];
        let mut pipe = std::fs::File::from(self.stdin.as_fd().try_clone_to_owned().ok()?);
        pipe.read_exact(&mut input).ok()?;
        self.reset_silence();
        Some(input)
    }

    /// Waits for an event. Returns `ParentPipeEvent::Alive` after a heartbeat, or if nothing happens
    /// within `at_most`.
    pub fn wait(
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
            watch.last_byte = now();
        }
    }

    fn is_silent(&self) -> bool {
        self.watch
            .as_ref()
            .is_some_and(|watch| now() > watch.ends())
    }

    fn patience(&self, at_most: Option<Duration>) -> PollTimeout {
        let silence = self
            .watch
            .as_ref()
            .map(|watch| watch.ends().saturating_sub(now()));
        let left = silence.into_iter().chain(at_most).min();
        left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        })
    }
}

/// Returns the time since boot, including the time during which the machine was suspended.
fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        .unwrap_or_default()
}
