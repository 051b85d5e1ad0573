//! Measures `planck acp` on a cluster of one node: how much later an editor has a piece of text than a
//! plain subscriber, how long it takes to load a long session, and the memory of the command.

#![allow(
    clippy::indexing_slicing,
    reason = "a field that a message lacks is null"
)]

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use futures_util::StreamExt as _;
use planck_client::Client;
use planck_common::Seq;
use planck_scripted_model::{Pace, Reply, Script, When};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::{sleep, timeout},
};

use super::{
    measure::{memory_kib_of, quantile},
    model::ModelServer,
    nats::NatsServer,
    part::BenchProcess,
};
use crate::{say, warn};

/// How long a part may take to start or to answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Plays an editor with `planck acp` beside a plain subscriber of the session
#[derive(Debug, Args)]
pub struct AcpBench {
    /// The number of words in a reply
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    words: usize,
    /// The number of events in the session that is loaded
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    events: Seq,
    /// The number of repetitions
    #[arg(long, value_name = "N", default_value_t = 5)]
    repeat: u32,
    /// The program that is measured; by default the one beside this program
    #[arg(long, value_name = "PROGRAM")]
    planck: Option<PathBuf>,
}

impl AcpBench {
    pub async fn perform(self) -> Result<()> {
        let this = std::env::current_exe().context("cannot find this program")?;
        let planck = self.planck.clone();
        let planck = planck.unwrap_or_else(|| this.with_file_name("planck"));
        let folder = TempDir::new()?;
        let words: Vec<String> = (0..self.words).map(|n| format!("w{n}.")).collect();
        let story = Reply::text(words.join(" ")).pace(Pace::per_second(200.0).chunk(6));
        let script = Script::new()
            .without_auth()
            .rule(When::any().last("Tell a story."), story)
            .always("Quick.");
        let model = ModelServer::start(&script).await?;
        let nats = NatsServer::start().await?;
        let place = Place {
            planck,
            folder,
            model,
            nats,
        };
        let _node = BenchProcess::guarded(&place.command("node"))?;
        let client = Client::connect(place.nats.url()).await?;
        let began = Instant::now();
        while client
            .nodes()
            .await
            .map_or(true, |nodes| nodes.nodes.is_empty())
        {
            ensure!(began.elapsed() < PATIENCE, "the node does not start");
            sleep(Duration::from_millis(50)).await;
        }
        let mut editor = Editor::start(place.command("acp"))?;
        let session = editor.open(place.folder.path()).await?;
        editor.prompt(&session, "Begin.", &mut |_| ()).await?;
        let subscriber = async_nats::connect(place.nats.url()).await?;
        for _ in 0..self.repeat {
            delays(&mut editor, &subscriber, &session).await?;
        }
        memory(&editor, "after its prompts")?;
        let mut head = 0;
        while head < self.events {
            editor.prompt(&session, "Go on.", &mut |_| ()).await?;
            head = client.session(&session).await?.head;
        }
        for _ in 0..self.repeat {
            let mut editor = Editor::start(place.command("acp"))?;
            let (time, updates) = editor.load(&session, place.folder.path()).await?;
            let line =
                json!({ "load_ms": time.as_secs_f64() * 1e3, "events": head, "updates": updates });
            say(&format!("{line}\n"))?;
            memory(&editor, "after loading")?;
        }
        Ok(())
    }
}

/// Where the parts of the cluster find each other.
struct Place {
    planck: PathBuf,
    folder: TempDir,
    model: ModelServer,
    nats: NatsServer,
}

impl Place {
    fn command(&self, role: &str) -> Command {
        let mut command = Command::new(&self.planck);
        let folder = self.folder.path();
        command
            .arg(role)
            .current_dir(folder)
            .env("HOME", folder)
            .env("NATS_URL", self.nats.url())
            .env("PLANCK_STORE_URL", format!("sqlite:{}", folder.display()))
            .env("PLANCK_MODELS_DEFAULT", "scripted:bench")
            .env("PLANCK_PROVIDERS_SCRIPTED_BASE_URL", self.model.url());
        command
    }
}

/// Measures how much later an editor has the words of a reply than a plain subscriber.
async fn delays(editor: &mut Editor, nats: &async_nats::Client, session: &str) -> Result<()> {
    let mut events = nats.subscribe(format!("session.{session}")).await?;
    nats.flush().await?;
    let subscriber = tokio::spawn(async move {
        let mut words = WordTimes::default();
        while let Some(message) = events.next().await {
            let event: Value = serde_json::from_slice(&message.payload).unwrap_or_default();
            if event["type"] == "text_delta" {
                words.add(event["data"]["text"].as_str().unwrap_or_default());
            }
            if event["type"] == "turn_end" {
                break;
            }
        }
        words.seen
    });
    let mut words = WordTimes::default();
    let told = &mut |update: &Value| {
        if update["sessionUpdate"] == "agent_message_chunk" {
            words.add(update["content"]["text"].as_str().unwrap_or_default());
        }
    };
    editor.prompt(session, "Tell a story.", told).await?;
    let plain = timeout(PATIENCE, subscriber).await??;
    let delays = words.seen.iter().filter_map(|(word, at)| {
        // The command may even be first.
        Some(at.saturating_duration_since(*plain.get(word)?))
    });
    let mut delays: Vec<_> = delays.collect();
    delays.sort_unstable();
    ensure!(!delays.is_empty(), "no word came both ways");
    let [median, most, all] = [0.5, 0.99, 1.0].map(|share| quantile(&delays, share));
    let line = json!({ "words": delays.len(), "p50_ms": median, "p99_ms": most, "max_ms": all });
    Ok(say(&format!("{line}\n"))?)
}

fn memory(editor: &Editor, when: &str) -> Result<()> {
    let pid = editor.process.id().context("the command has ended")?;
    let mib = |field| memory_kib_of(pid, field) as f64 / 1024.0;
    let line = json!({ "acp": when, "rss_mib": mib("VmRSS"), "anon_mib": mib("RssAnon") });
    Ok(say(&format!("{line}\n"))?)
}

/// When each word of a text was complete.
#[derive(Default)]
struct WordTimes {
    seen: HashMap<String, Instant>,
    open: String,
}

impl WordTimes {
    fn add(&mut self, text: &str) {
        self.open += text;
        while let Some((word, rest)) = self.open.split_once('.') {
            self.seen
                .entry(word.trim().to_owned())
                .or_insert_with(Instant::now);
            self.open = rest.to_owned();
        }
    }
}

/// An editor at `planck acp`.
struct Editor {
    process: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Editor {
    fn start(mut command: Command) -> Result<Self> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut process = command.spawn()?;
        Ok(Self {
            input: process.stdin.take().context("no input")?,
            lines: BufReader::new(process.stdout.take().context("no output")?).lines(),
            process,
        })
    }

    /// Sends a request, and returns its result. `told` gets the updates before it.
    async fn call(
        &mut self,
        method: &str,
        params: Value,
        told: &mut impl FnMut(&Value),
    ) -> Result<Value> {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.input
            .write_all(format!("{request}\n").as_bytes())
            .await?;
        loop {
            let line = timeout(PATIENCE, self.lines.next_line()).await??;
            let message: Value = serde_json::from_str(&line.context("the command ended")?)?;
            if message["id"] == 1 {
                ensure!(message["error"].is_null(), "{message}");
                return Ok(message["result"].clone());
            }
            told(&message["params"]["update"]);
        }
    }

    async fn greet(&mut self) -> Result<()> {
        let hello = json!({"protocolVersion": 1, "clientCapabilities": {}});
        self.call("initialize", hello, &mut |_| ()).await?;
        Ok(())
    }

    async fn open(&mut self, folder: &Path) -> Result<String> {
        self.greet().await?;
        let new = json!({"cwd": folder, "mcpServers": []});
        let opened = self.call("session/new", new, &mut |_| ()).await?;
        let session = opened["sessionId"].as_str().context("no session")?;
        warn(&format!("the session is {session}"));
        Ok(session.to_owned())
    }

    async fn prompt(
        &mut self,
        session: &str,
        text: &str,
        told: &mut impl FnMut(&Value),
    ) -> Result<()> {
        let prompt = json!([{"type": "text", "text": text}]);
        let params = json!({"sessionId": session, "prompt": prompt});
        let done = self.call("session/prompt", params, told).await?;
        ensure!(done["stopReason"] == "end_turn", "{done}");
        Ok(())
    }

    /// Loads a session, and returns how long that took and how many updates came.
    async fn load(&mut self, session: &str, folder: &Path) -> Result<(Duration, usize)> {
        self.greet().await?;
        let (began, mut updates) = (Instant::now(), 0);
        let load = json!({"sessionId": session, "cwd": folder, "mcpServers": []});
        self.call("session/load", load, &mut |_| updates += 1)
            .await?;
        Ok((began.elapsed(), updates))
    }
}
