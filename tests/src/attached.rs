//! `planck session attach --json`: a client that keeps nothing but the last seq it has told.

use std::{fs::File, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_common::envelope::Envelope;
use tokio::{process::Child, time::timeout};

use crate::{eventually::eventually, world::World};

pub struct Attached {
    child: Child,
    file: PathBuf,
}

impl Attached {
    pub fn start(world: &World, session: &str) -> Result<Self> {
        let file = world.folder().join(format!("attached-{session}.jsonl"));
        let mut command = world.planck()?;
        command.args(["session", "attach", session, "--from", "1", "--json"]);
        let child = command.stdout(File::create(&file)?).stderr(Stdio::inherit()).spawn()?;
        Ok(Self { child, file })
    }

    /// The durable events it has told, whole lines only.
    pub fn durable(&self) -> Result<Vec<Envelope>> {
        let text = std::fs::read_to_string(&self.file)?;
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let events = lines.map(|line| serde_json::from_str::<Envelope>(line).with_context(|| line.to_owned()));
        let events: Vec<Envelope> = events.collect::<Result<_>>()?;
        Ok(events.into_iter().filter(|event| event.seq.is_some()).collect())
    }

    /// Waits until it has told of the log's whole length, and gives what it told.
    pub async fn caught_up(&self, head: i64) -> Result<Vec<Envelope>> {
        eventually("the attached client has the whole log", async || {
            let durable = self.durable().ok()?;
            (durable.last()?.seq == Some(head)).then_some(durable)
        })
        .await
    }

    pub async fn leave(mut self) -> Result<()> {
        let pid = self.child.id().context("the attached client has ended")?;
        kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGINT)?;
        let status = timeout(Duration::from_secs(10), self.child.wait()).await??;
        ensure!(status.success(), "the attached client left with {status}");
        Ok(())
    }
}
