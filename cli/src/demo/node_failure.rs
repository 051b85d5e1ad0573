//! Kills the node that hosts the demo's session in the middle of the work, and waits until another
//! node continues the session.

use std::time::Duration;

use anyhow::Context as _;
use planck_common::{command::Started, event::Event};
use tokio::time::Instant;

use super::cluster::DemoCluster;
use crate::{
    output::draw,
    render::{
        Style,
        style::{Paint, duration},
    },
};
use planck_client::{Client, Follow, FollowEvent};
use planck_host::terminal::Drawing;

/// The beginning of the tool result after which the node is killed. The orchestrator is then about
/// to decide on its next step.
const WHEN: &str = "The test fails";

/// The killed node, and how long it took until its session was resumed on another node.
#[derive(Debug)]
pub struct NodeFailure {
    name: &'static str,
    went_on: Duration,
}

impl NodeFailure {
    pub fn describe(&self) -> String {
        let millis = u64::try_from(self.went_on.as_millis()).unwrap_or(u64::MAX);
        format!(
            "{} was killed; its session went on elsewhere {} later",
            self.name,
            duration(millis)
        )
    }
}

/// Kills the session's host after the tool result that begins with [`WHEN`], and waits until the
/// session is resumed on another node.
pub async fn kill_host(
    client: &Client,
    started: &Started,
    cluster: &mut DemoCluster,
) -> anyhow::Result<NodeFailure> {
    let mut follow = client.follow(&started.session_id, 1).await?;
    until(
        &mut follow,
        |event| matches!(event, Event::ToolEnd(end) if end.result.starts_with(WHEN)),
    )
    .await?;
    let owner = client
        .session(&started.session_id)
        .await?
        .owner
        .context("no node hosts the session")?;
    let node = cluster
        .take(&owner)
        .context("the session's node is not ours")?;
    let name = node.name;
    let struck = Instant::now();
    node.kill().await?;
    let line = format!("✗ {name}, which hosts the session, was killed (SIGKILL)");
    draw(&(Drawing::text("\n") + Style::of_stdout().paint(Paint::Bad, &line) + "\n"))?;
    until(&mut follow, |event| {
        matches!(event, Event::SessionResumed(_))
    })
    .await?;
    Ok(NodeFailure {
        name,
        went_on: struck.elapsed(),
    })
}

async fn until(follow: &mut Follow, is_it: impl Fn(&Event) -> bool) -> anyhow::Result<()> {
    loop {
        let event = follow.next().await.context("cannot follow the session")?;
        if let FollowEvent::Durable(envelope) = event
            && let Some(Ok(event)) = envelope.event()
            && is_it(&event)
        {
            return Ok(());
        }
    }
}
