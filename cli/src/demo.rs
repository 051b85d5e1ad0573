//! `planck demo`: starts NATS, a scripted model, three nodes and, if Python is ready, a sidecar on
//! this machine, and lets a small team work on them. In the middle of the work it kills the node
//! that hosts the session. At the end it prints the results.

mod child;
mod cluster;
mod front;
mod nats;
mod node;
mod node_failure;
mod report;
mod sidecar;

use std::{future::Future, time::Duration};

use anyhow::Context as _;
use clap::Args;
use planck_common::{
    InputId,
    command::{Start, Started},
    subject::Topic,
};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    exit::Exit,
    output::{Stream, draw, say},
    render::{Style, style::Paint},
    watch::{EventDisplay, OnWait, WatchedWork, interrupts, watch},
};
use cluster::DemoCluster;
use report::Report;

use planck_host::terminal::Drawing;

const PROMPT: &str = "Build me a command-line tool that counts words, and have it tested.";

/// How long the team may take. It normally needs a few seconds.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck demo
  planck demo --keep                         # then look at it with planck and the nats CLI")]
pub struct Demo {
    /// Keep everything running afterwards until an interrupt, and print how to look at it
    #[arg(long)]
    keep: bool,
}

impl Demo {
    pub async fn perform(self) -> anyhow::Result<Exit> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let interrupted = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        let cluster = DemoCluster::folder(self.keep)?;
        Box::pin(show(cluster, interrupted, self.keep)).await
    }
}

/// Runs the whole demo, and stops all processes that the demo started, whatever the result. If
/// `keep` is true and the demo ran to its end, waits for an interrupt before it stops them.
async fn show(
    mut cluster: DemoCluster,
    interrupted: impl Future<Output = ()>,
    keep: bool,
) -> anyhow::Result<Exit> {
    let mut interrupted = std::pin::pin!(interrupted);
    let done = tokio::select! {
        biased;
        () = &mut interrupted => Err(anyhow::anyhow!("interrupted")),
        done = Box::pin(play(&mut cluster)) => done,
    };
    if let Ok((_, started)) = &done {
        if keep {
            draw(&how_to_look(&cluster, started)?)?;
            interrupted.await;
        } else {
            let console = cluster.console()?;
            say(&format!(
                "\nThe console was at {console}; `planck demo --keep` keeps it up.\n"
            ))?;
        }
    }
    cluster.tear_down().await;
    done.map(|(exit, _)| exit)
}

async fn play(cluster: &mut DemoCluster) -> anyhow::Result<(Exit, Started)> {
    say(
        "A lead, a coder and a tester build a small program on three nodes. The model is scripted; all else is real.\n\n",
    )?;
    cluster.set().await?;
    say(&cluster.describe())?;
    let prompt = InputId::mint();
    let started = cluster
        .client()?
        .start(request(&prompt))
        .await
        .context("cannot start the session")?;
    let (mut interrupted, mut display) = (interrupts()?, EventDisplay::screen(Some(Stream::Out)));
    let work = WatchedWork {
        session: started.session_id.clone(),
        prompt: Some(prompt),
        from: 1,
    };
    let client = cluster.client()?.clone();
    let mut on_wait = OnWait::Stay;
    let watching = Box::pin(watch(
        &client,
        &work,
        &mut interrupted,
        &mut display,
        &mut on_wait,
    ));
    let both = futures_util::future::try_join(
        watching,
        Box::pin(node_failure::kill_host(&client, &started, cluster)),
    );
    let done = tokio::time::timeout(PATIENCE, both).await;
    let (watched, failure) =
        done.with_context(|| format!("the team was not done after {} s", PATIENCE.as_secs()))??;
    let report = Report::gather(cluster, &started.session_id, failure).await?;
    draw(&report.draw(Style::of_stdout()))?;
    let worked = watched.exit() == Exit::Done && report.holds();
    Ok((if worked { Exit::Done } else { Exit::Failed }, started))
}

fn request(prompt: &InputId) -> Start {
    Start {
        session_id: None,
        name: None,
        team: Some(cluster::TEAM.into()),
        members: None,
        workspace: Some(cluster::WORKSPACE.into()),
        dir: None,
        prompt: Some(PROMPT.into()),
        prompt_id: Some(prompt.clone()),
        by: None,
        limits: None,
        permissions: None,
        client_tools: Vec::new(),
        on_node_death: None,
        metadata: serde_json::Map::new(),
    }
}

fn how_to_look(cluster: &DemoCluster, started: &Started) -> anyhow::Result<Drawing> {
    let (url, name) = (cluster.nats_url()?, &started.name);
    let console = cluster.console()?;
    let ways = [
        (
            "see it in the browser",
            format!("{console}/sessions/{name}"),
        ),
        (
            "watch every event",
            format!("nats --server {url} sub '{}'", Topic::AllSessions),
        ),
        (
            "see the story again",
            format!("planck session attach {name} --from 1 --nats {url}"),
        ),
        (
            "see who was in it",
            format!("planck session show {name} --nats {url}"),
        ),
        ("see the nodes", format!("planck nodes ls --nats {url}")),
        ("its folder", cluster.path().display().to_string()),
    ];
    let style = Style::of_stdout();
    let lines = ways
        .map(|(what, how)| format!("  {what:<22} {how}\n"))
        .concat();
    Ok(Drawing::text("\n")
        + style.paint(Paint::Strong, "It stays up")
        + format!("\n{lines}\nInterrupt this to stop it all.\n"))
}
