//! A command that is read while it runs, and ended as a person ends it: by an interrupt.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use crate::eventually::eventually;

/// How long it may take to leave.
const LEAVE: Duration = Duration::from_secs(10);

/// Dropping it kills it.
pub struct Watch {
    child: Child,
    file: PathBuf,
}

impl Watch {
    /// Runs it; what it says goes to the file.
    pub fn start(mut command: Command, file: PathBuf) -> Result<Self> {
        let child = command
            .stdout(File::create(&file)?)
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self { child, file })
    }

    /// All it has said.
    pub fn text(&self) -> String {
        fs::read_to_string(&self.file).unwrap_or_default()
    }

    /// Waits until all of these are among what it says, and gives everything.
    pub async fn says(&self, words: &[&str]) -> Result<String> {
        self.until(words, |text| text).await
    }

    /// [`Self::says`] in lines that are written to their end, and gives those.
    pub async fn says_in_lines(&self, words: &[&str]) -> Result<String> {
        self.until(words, |text| {
            text.rsplit_once('\n')
                .map(|(lines, _)| lines.to_owned())
                .unwrap_or_default()
        })
        .await
    }

    async fn until(&self, words: &[&str], part: impl Fn(String) -> String) -> Result<String> {
        let said = eventually("the command says it", async || {
            let text = part(self.text());
            words.iter().all(|word| text.contains(word)).then_some(text)
        });
        said.await
            .with_context(|| format!("{words:?} in:\n{}", self.text()))
    }

    /// Interrupts it, and waits until it has left in order.
    pub async fn leave(mut self) -> Result<()> {
        let pid = self.child.id().context("it has ended")?;
        kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGINT)?;
        let status = timeout(LEAVE, self.child.wait())
            .await
            .context("it does not leave")??;
        ensure!(status.success(), "it left with {status}:\n{}", self.text());
        Ok(())
    }
}
