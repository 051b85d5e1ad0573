//! A command whose output a test reads while the command runs. SIGINT ends it, as Ctrl-C does.

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

/// How long the command may take to leave.
const LEAVE: Duration = Duration::from_secs(10);

/// A running command. Dropping it kills it.
pub struct Watch {
    child: Child,
    file: PathBuf,
}

impl Watch {
    /// Runs the command, and writes its standard output to the file.
    pub fn start(mut command: Command, file: PathBuf) -> Result<Self> {
        let child = command
            .stdout(File::create(&file)?)
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self { child, file })
    }

    /// Returns everything that the command has written to its standard output.
    pub fn text(&self) -> String {
        fs::read_to_string(&self.file).unwrap_or_default()
    }

    /// Waits until the output has all of these words, and returns it.
    pub async fn says(&self, words: &[&str]) -> Result<String> {
        self.until(words, |text| text).await
    }

    /// Like [`Self::says`], but looks only at complete lines, and returns those.
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

    /// Interrupts the command, and waits until it has left with exit code 0.
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
