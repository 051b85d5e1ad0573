//! A terminal for a command, and what is drawn on it.

use std::{fs::File, io::Read as _, os::fd::OwnedFd};

use anyhow::Result;
use nix::pty::{OpenptyResult, openpty};
use tokio::{process::Command, task::JoinHandle};

/// The end of a terminal at which a person sits.
pub struct Terminal {
    keyboard: File,
    screen: JoinHandle<Result<String>>,
}

impl Terminal {
    /// Makes a terminal the standard output and error of a command, and its input where `typed` says so. Drop the command
    /// once it is started: it keeps the terminal open.
    pub fn attach(command: &mut Command, typed: bool) -> Result<Self> {
        let OpenptyResult { master, slave } = openpty(None, None)?;
        if typed {
            command.stdin(slave.try_clone()?);
        }
        command.stdout(slave.try_clone()?).stderr(slave);
        let keyboard = File::from(master.try_clone()?);
        Ok(Self { keyboard, screen: tokio::task::spawn_blocking(move || screen(master)) })
    }

    pub fn type_in(&mut self, text: &str) -> Result<()> {
        Ok(std::io::Write::write_all(&mut self.keyboard, text.as_bytes())?)
    }

    /// All that was drawn, once the command has ended.
    pub async fn screen(self) -> Result<String> {
        self.screen.await?
    }
}

/// All that is written to a terminal until its other end is closed.
fn screen(master: OwnedFd) -> Result<String> {
    let (mut master, mut drawn, mut buffer) = (File::from(master), Vec::new(), [0; 4096]);
    // Reading fails with EIO when the last writer is gone.
    while let Ok(read @ 1..) = master.read(&mut buffer) {
        drawn.extend(buffer.get(..read).unwrap_or_default());
    }
    Ok(String::from_utf8(drawn)?)
}
