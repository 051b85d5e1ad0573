//! The terminal while a question is open: keys arrive one by one and are not echoed.

use std::{
    io::{self, IsTerminal as _, stdin},
    os::fd::{AsFd as _, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr},
    unistd::{getpgrp, read, tcgetpgrp},
};
use tokio::io::unix::AsyncFd;

use crate::output::Stream;
use planck_host::terminal::Drawing;

/// The control sequences that turn bracketed paste on and off, by which a pasted text is told from
/// typed keys.
pub const MARK_PASTES: &str = "\x1b[?2004h";
pub const MARK_NO_PASTES: &str = "\x1b[?2004l";

/// The number of bytes of one read.
const MOST: usize = 4096;

/// The guard of the terminal's settings. Dropping it restores the settings from before.
pub struct Tty {
    input: AsyncFd<OwnedFd>,
    before: Termios,
    /// The stream on which pasted texts were marked, if this guard had that done.
    marked: Option<Stream>,
}

/// Returns whether a person at the terminal can be asked: standard input is a terminal, and this
/// process may read from it.
pub fn can_ask() -> bool {
    // Without a controlling terminal there is no foreground, and every process may read.
    let is_behind = tcgetpgrp(stdin()).is_ok_and(|foreground| foreground != getpgrp());
    stdin().is_terminal() && !is_behind
}

impl Tty {
    /// Changes the terminal's settings. Interrupts still work. If `marks` names a stream, pasted
    /// texts are marked meanwhile.
    pub fn open(marks: Option<Stream>) -> io::Result<Self> {
        #[allow(
            deprecated,
            reason = "the deprecation is about descriptors that may be closed early, and this one is owned"
        )]
        let input = AsyncFd::new(stdin().as_fd().try_clone_to_owned()?)?;
        let before = tcgetattr(stdin())?;
        let mut keys = before.clone();
        keys.local_flags
            .remove(LocalFlags::ECHO | LocalFlags::ICANON);
        keys.local_flags.insert(LocalFlags::NOFLSH);
        // A read returns what is there, also if that is nothing, so it never blocks.
        for at in [
            SpecialCharacterIndices::VMIN,
            SpecialCharacterIndices::VTIME,
        ] {
            if let Some(setting) = keys.control_chars.get_mut(at as usize) {
                *setting = 0;
            }
        }
        tcsetattr(stdin(), SetArg::TCSADRAIN, &keys)?;
        let tty = Self {
            input,
            before,
            marked: marks,
        };
        if let Some(stream) = marks {
            stream.draw(&Drawing::control(MARK_PASTES))?;
        }
        Ok(tty)
    }

    /// Returns the next bytes, or none at the end of the input. The method is cancel safe.
    pub async fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; MOST];
        loop {
            let mut ready = self.input.readable().await?;
            let is_over = ready.ready().is_read_closed();
            match read(self.input.get_ref(), &mut bytes) {
                Ok(0) if is_over => return Ok(Vec::new()),
                Ok(0) | Err(Errno::EAGAIN | Errno::EINTR) => ready.clear_ready(),
                Ok(length) => {
                    bytes.truncate(length);
                    return Ok(bytes);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        let _ended = tcsetattr(stdin(), SetArg::TCSADRAIN, &self.before);
        if let Some(stream) = self.marked {
            let _closed = stream.draw(&Drawing::control(MARK_NO_PASTES));
        }
    }
}
