//! Runs `planck session attach -o jsonl` as a client whose only state is the last `seq` that it
//! printed.

use anyhow::{Context as _, Result};
use planck_common::envelope::Envelope;

use crate::{eventually::eventually, watch::Watch, world::World};

pub struct Attached(Watch);

impl Attached {
    pub fn start(world: &World, session: &str) -> Result<Self> {
        let file = world.folder().join(format!("attached-{session}.jsonl"));
        let mut command = world.planck()?;
        command.args(["session", "attach", session, "--from", "1", "-o", "jsonl"]);
        Watch::start(command, file).map(Self)
    }

    /// Returns the durable events that the client has printed, from complete lines only.
    pub fn durable(&self) -> Result<Vec<Envelope>> {
        let text = self.0.text();
        let lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let events = lines
            .map(|line| serde_json::from_str::<Envelope>(line).with_context(|| line.to_owned()));
        let events: Vec<Envelope> = events.collect::<Result<_>>()?;
        Ok(events
            .into_iter()
            .filter(|event| event.seq.is_some())
            .collect())
    }

    /// Waits until the client has printed a durable event. By then the client has subscribed,
    /// because it subscribes before it reads the log.
    pub async fn begun(&self) -> Result<()> {
        let told = async || {
            self.durable()
                .ok()
                .filter(|told| !told.is_empty())
                .map(drop)
        };
        eventually("the attached client prints the log", told).await
    }

    /// Waits until the client has printed the log up to the row `head`, and returns the events up
    /// to that row. The client may have printed later events since.
    pub async fn caught_up(&self, head: i64) -> Result<Vec<Envelope>> {
        eventually("the attached client has the whole log", async || {
            let mut durable = self.durable().ok()?;
            let is_there = durable.last()?.seq >= Some(head);
            durable.retain(|event| event.seq <= Some(head));
            is_there.then_some(durable)
        })
        .await
    }

    pub async fn leave(self) -> Result<()> {
        self.0.leave().await
    }
}
