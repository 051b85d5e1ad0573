//! A pseudo-terminal for a command, which records the command's output.

use std::{
    fs::File,
    io::Read as _,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result};
use nix::{
    pty::{OpenptyResult, Winsize, openpty},
    sys::termios::{LocalFlags, tcgetattr},
};
use tokio::{process::Command, task::JoinHandle};

use crate::eventually::eventually;

const SIZE: Winsize = Winsize {
    ws_row: 40,
    ws_col: 100,
    ws_xpixel: 0,
    ws_ypixel: 0,
};

/// The end of a pseudo-terminal at which a test types and reads like a user.
pub struct Terminal {
    keyboard: File,
    drawn: Drawn,
    screen: JoinHandle<()>,
    /// The number of output bytes that the test has already examined.
    seen: usize,
}

/// All bytes that were written to a terminal.
#[derive(Clone, Default)]
struct Drawn(Arc<Mutex<Vec<u8>>>);

impl Drawn {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Terminal {
    /// Makes a new terminal the standard output and error of a command, and its input if `typed` is
    /// set. Drop the command once it is started, because it keeps the terminal open.
    pub fn attach(command: &mut Command, typed: bool) -> Result<Self> {
        let OpenptyResult { master, slave } = openpty(Some(&SIZE), None)?;
        if typed {
            command.stdin(slave.try_clone()?);
        }
        command.stdout(slave.try_clone()?).stderr(slave);
        let (keyboard, drawn) = (File::from(master.try_clone()?), Drawn::default());
        let to = drawn.clone();
        Ok(Self {
            keyboard,
            drawn,
            screen: tokio::task::spawn_blocking(move || read(master, &to)),
            seen: 0,
        })
    }

    /// Returns whether the terminal shows what is typed, line by line, as a shell leaves it.
    pub fn is_as_a_shell_leaves_it(&self) -> Result<bool> {
        let settings = tcgetattr(&self.keyboard)?;
        let usual = LocalFlags::ECHO | LocalFlags::ICANON;
        Ok(settings.local_flags.contains(usual))
    }

    pub fn type_in(&mut self, text: &str) -> Result<()> {
        Ok(std::io::Write::write_all(
            &mut self.keyboard,
            text.as_bytes(),
        )?)
    }

    /// Waits until `text` is drawn after the previous match, and returns everything drawn up to the
    /// end of `text`.
    pub async fn until(&mut self, text: &str) -> Result<String> {
        let (drawn, seen) = (self.drawn.clone(), self.seen);
        let end = eventually("it is drawn", async || {
            let bytes = drawn.bytes();
            let at = bytes
                .get(seen..)?
                .windows(text.len())
                .position(|window| window == text.as_bytes())?;
            Some(seen + at + text.len())
        });
        let end = end.await.with_context(|| {
            format!(
                "{text:?} in {:?}",
                String::from_utf8_lossy(&self.drawn.bytes())
            )
        })?;
        let before =
            String::from_utf8_lossy(self.drawn.bytes().get(self.seen..end).unwrap_or_default())
                .into_owned();
        self.seen = end;
        Ok(before)
    }

    /// Returns everything that was drawn, once the command has ended.
    pub async fn screen(self) -> Result<String> {
        self.screen.await?;
        let bytes = self.drawn.bytes().clone();
        Ok(String::from_utf8(bytes)?)
    }
}

/// Reads the output of a terminal until its other end is closed.
fn read(master: OwnedFd, to: &Drawn) {
    let (mut master, mut buffer) = (File::from(master), [0; 4096]);
    // Reading fails with EIO when the last writer is gone.
    while let Ok(read @ 1..) = master.read(&mut buffer) {
        to.bytes().extend(buffer.get(..read).unwrap_or_default());
    }
}
