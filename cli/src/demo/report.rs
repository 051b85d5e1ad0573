//! The results of the demo: the files that the team wrote, whether the test passes, and what the
//! work cost.

use std::{path::Path, time::Duration};

use futures_util::TryStreamExt as _;
use planck_common::{
    Seq, SessionId, Timestamp, command::ReadEvents, envelope::Envelope, event::Event, usage::Usage,
};
use tokio::process::Command;

use super::{NodeFailure, cluster::DemoCluster, sidecar};
use crate::render::{
    Style, consumed,
    style::{Paint, duration, one_line},
};
use planck_client::Client;
use planck_host::terminal::Drawing;

const TEST: &str = "count_test.sh";
/// The maximum duration of the test.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Report {
    /// The name and the size in bytes of each file in the workspace.
    files: Vec<(String, u64)>,
    /// The output of the test if it passes, or why it failed.
    test: Result<String, String>,
    /// The answers of the sidecar's tool, or `None` if the demo runs without the sidecar.
    sidecar: Option<Vec<String>>,
    usage: Usage,
    events: i64,
    millis: u64,
    requests: u64,
    /// The requests that the scripted model refused. There should be none.
    refused: Vec<String>,
    failure: NodeFailure,
}

impl Report {
    pub async fn gather(
        cluster: &DemoCluster,
        session: &SessionId,
        failure: NodeFailure,
    ) -> anyhow::Result<Self> {
        let info = cluster.client()?.session(session).await?;
        let model = cluster.model()?;
        Ok(Self {
            files: files(&cluster.workspace())?,
            test: test(&cluster.workspace()).await,
            sidecar: match cluster.has_sidecar() {
                true => Some(answers(cluster.client()?, session, info.head, sidecar::TOOL).await?),
                false => None,
            },
            usage: info.usage,
            events: info.head,
            millis: took(cluster.client()?, session, info.head).await?,
            requests: model.request_count(),
            refused: model
                .violations()
                .into_iter()
                .map(|violation| violation.message)
                .collect(),
            failure,
        })
    }

    pub fn holds(&self) -> bool {
        let sidecar_answered = self
            .sidecar
            .as_ref()
            .is_none_or(|answers| !answers.is_empty());
        self.test.is_ok() && self.refused.is_empty() && !self.files.is_empty() && sidecar_answered
    }

    pub fn draw(&self, style: Style) -> Drawing {
        let (paint, verdict) = match &self.test {
            Ok(text) => (
                Paint::Good,
                format!("✓ sh {TEST}: {}", one_line(text, style.width)),
            ),
            Err(why) => (
                Paint::Bad,
                format!("✗ sh {TEST}: {}", one_line(why, style.width)),
            ),
        };
        let files: String = self
            .files
            .iter()
            .map(|(name, bytes)| format!("  {name:<16} {bytes} bytes\n"))
            .collect();
        let refused = self
            .refused
            .iter()
            .map(|why| style.paint(Paint::Bad, &format!("  ✗ the model refused: {why}")) + "\n");
        let sidecar = self
            .sidecar
            .as_ref()
            .map(|answers| sidecar_line(answers, style))
            .unwrap_or_default();
        let (took, consumed) = (duration(self.millis), consumed(&self.usage));
        let sums = format!(
            "{took} · {consumed} · {} requests to the model · {} events",
            self.requests, self.events
        );
        let head = Drawing::text("\n")
            + style.paint(Paint::Strong, "What came of it")
            + format!("\n{files}  ");
        let verdicts = style.paint(paint, &verdict) + "\n" + sidecar + refused.collect::<Drawing>();
        head + verdicts + format!("  {}\n  {sums}\n", self.failure.describe())
    }
}

fn sidecar_line(answers: &[String], style: Style) -> Drawing {
    let (paint, text) = match answers.last() {
        Some(answer) => (
            Paint::Good,
            format!("✓ {} of the Python sidecar: {answer}", sidecar::TOOL),
        ),
        None => (
            Paint::Bad,
            format!("✗ {} of the Python sidecar was not answered", sidecar::TOOL),
        ),
    };
    Drawing::text("  ") + style.paint(paint, &one_line(&text, style.width)) + "\n"
}

fn files(workspace: &Path) -> std::io::Result<Vec<(String, u64)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(workspace)? {
        let entry = entry?;
        files.push((
            entry.file_name().to_string_lossy().into_owned(),
            entry.metadata()?.len(),
        ));
    }
    files.sort();
    Ok(files)
}

/// Runs the test once more, outside of any agent.
async fn test(workspace: &Path) -> Result<String, String> {
    let mut command = Command::new("sh");
    command
        .arg(TEST)
        .current_dir(workspace)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await;
    let output = output
        .map_err(|_| format!("no end after {} s", PATIENCE.as_secs()))?
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(if output.stdout.is_empty() {
        &output.stderr
    } else {
        &output.stdout
    })
    .into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(format!("{}: {text}", output.status))
    }
}

/// Returns the results of a tool's successful calls from the session's log.
async fn answers(
    client: &Client,
    session: &SessionId,
    head: Seq,
    tool: &str,
) -> anyhow::Result<Vec<String>> {
    let mut answers = Vec::new();
    let mut pages = client.pages(session, 1, head);
    while let Some(page) = pages.try_next().await? {
        for event in &page {
            let envelope: Envelope = serde_json::from_str(event.get())?;
            if let Some(Ok(Event::ToolEnd(end))) = envelope.event()
                && end.name == tool
                && !end.error
            {
                answers.push(end.result);
            }
        }
    }
    Ok(answers)
}

/// Returns the time from the first to the last event of the session, in milliseconds.
async fn took(client: &Client, session: &SessionId, head: i64) -> anyhow::Result<u64> {
    let at = async |seq: i64| -> anyhow::Result<Option<Timestamp>> {
        let read = ReadEvents {
            from: Some(seq),
            limit: Some(1),
            agent: None,
        };
        let page = client.events(session, &read).await?;
        Ok(page
            .events
            .first()
            .and_then(|event| serde_json::from_str::<Envelope>(event.get()).ok())
            .map(|event| event.at))
    };
    let (first, last) = (at(1).await?, at(head).await?);
    Ok(first
        .zip(last)
        .map_or(0, |(first, last)| last.millis_since(first)))
}
