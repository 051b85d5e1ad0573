//! `planck demo`: starts NATS, a scripted model, three nodes and, if Python is ready, a sidecar on
//! this machine, and lets a small team work on them. In the middle of the work it kills the node
//! that hosts the session. At the end it prints the results.

mod cluster;
mod processes;
mod report;
mod sidecar;

use std::{future::Future, time::Duration};

use anyhow::Context as _;
use clap::Args;
use cluster::DemoCluster;
use planck_client::{Client, Follow, FollowEvent};
use planck_common::{
    InputId,
    command::{Start, Started},
    event::Event,
    subject::Topic,
};
use planck_host::terminal::Drawing;
use report::Report;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

use crate::{
    exit::Exit,
    output::{Stream, draw, say},
    render::{
        Style,
        style::{Paint, duration},
    },
    watch::{EventDisplay, OnWait, WatchedWork, interrupts, watch},
};

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
                "\nThe console was at {console}; `planck demo --keep` keeps it up.\n\
                 Next, `planck prove` kills, freezes and cuts off nodes for a minute, and judges what is left.\n"
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
    let both =
        futures_util::future::try_join(watching, Box::pin(kill_host(&client, &started, cluster)));
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
        output: None,
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

/// The beginning of the tool result after which the node is killed. The orchestrator is then about
/// to decide on its next step.
const WHEN: &str = "The test fails";

/// The killed node, and how long it took until its session was resumed on another node.
#[derive(Debug)]
struct NodeFailure {
    name: &'static str,
    went_on: Duration,
}

impl NodeFailure {
    fn describe(&self) -> String {
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
async fn kill_host(
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
