//! Runs a workload of `planck-bench` with agents of the `rig` library. `planck-bench --peer
//! target/release/planck-bench-rig` runs this program in turn with a node and the bare loop. All
//! agents run on one thread, which suits rig best here. Nothing is saved or published.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use futures_util::{StreamExt as _, future::try_join_all};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use rig::{
    Agent, AgentBuilder,
    agent::MultiTurnStreamItem,
    providers::openai::OpenAIConfig,
    tool::{Tool, ToolContext},
};
use serde::Deserialize;
use serde_json::{Value, json};

/// How long a short workload is repeated at least while it is measured.
const LEAST: Duration = Duration::from_millis(500);
/// The maximum number of model requests of one turn.
const MOST_REQUESTS: usize = 64;

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long)]
    workload: String,
    #[arg(long)]
    agents: usize,
    /// The address of the scripted model
    #[arg(long)]
    model: String,
    /// How many turns each agent has
    #[arg(long)]
    turns: usize,
    /// Repeat the workload, first once to warm up, and then for at least half a second
    #[arg(long)]
    repeat: bool,
    /// The file that the tool `read` reads
    #[arg(long)]
    file: PathBuf,
}

/// Reads lines of the file, as the tool `read` of Planck does.
struct Read(PathBuf);

#[derive(Deserialize)]
struct Lines {
    offset: usize,
    limit: usize,
}

impl Tool for Read {
    const NAME: &'static str = "read";
    type Args = Lines;
    type Output = String;
    type Error = std::io::Error;

    fn description(&self) -> String {
        "Read a file.".into()
    }

    fn parameters(&self) -> Value {
        let whole = json!({ "type": "integer" });
        json!({
            "type": "object",
            "properties": { "path": { "type": "string" }, "offset": whole, "limit": whole },
            "required": ["path", "offset", "limit"],
        })
    }

    async fn call(&self, _: &mut ToolContext, lines: Lines) -> std::io::Result<String> {
        let text = fs::read_to_string(&self.0)?;
        let lines: Vec<&str> = text.lines().skip(lines.offset).take(lines.limit).collect();
        Ok(lines.join("\n"))
    }
}

/// The durations of the agents' turns and the number of their tool calls. `planck-bench` refuses a
/// number that is not the workload's.
#[derive(Debug, Default)]
struct Done {
    times: Vec<Duration>,
    calls: usize,
}

async fn turns(agent: &Agent, count: usize) -> Result<Done> {
    let mut done = Done::default();
    for _ in 0..count {
        let began = Instant::now();
        let runner = agent.prompt("Read the lines.").max_turns(MOST_REQUESTS);
        let mut stream = runner.tool_concurrency(8).stream();
        let mut has_ended = false;
        while let Some(item) = stream.next().await {
            match item? {
                MultiTurnStreamItem::ToolResult { .. } => done.calls += 1,
                MultiTurnStreamItem::FinalResponse(_) => has_ended = true,
                _ => {}
            }
        }
        if !has_ended {
            bail!("a turn ended without an answer");
        }
        done.times.push(began.elapsed());
    }
    Ok(done)
}

async fn wave(arguments: &Arguments) -> Result<Done> {
    let agents = (0..arguments.agents).map(|_| {
        let client = OpenAIConfig::new("none")
            .with_base_url(&arguments.model)
            .client();
        AgentBuilder::new(client.chat("bench"))
            .preamble("Be brief.")
            .tool(Read(arguments.file.clone()))
            .build()
    });
    let agents: Vec<Agent> = agents.collect();
    let done = try_join_all(agents.iter().map(|agent| turns(agent, arguments.turns))).await?;
    Ok(done.into_iter().fold(Done::default(), |mut all, one| {
        all.times.extend(one.times);
        all.calls += one.calls;
        all
    }))
}

fn cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(u64::try_from(micros)?))
}

fn peak_kib() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.context("no peak")?.parse()?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let is_start = arguments.workload == "start";
    if arguments.repeat {
        wave(&arguments).await?;
    }
    let began = Instant::now();
    let before = if is_start { Duration::ZERO } else { cpu()? };
    let (mut done, mut waves) = (Done::default(), 0);
    while waves == 0 || arguments.repeat && began.elapsed() < LEAST {
        let one = wave(&arguments).await?;
        done.times.extend(one.times);
        done.calls += one.calls;
        waves += 1;
    }
    let (wall, cpu) = (began.elapsed(), cpu()?.saturating_sub(before));
    done.times.sort();
    let quantile = |share: f64| {
        let at = (done.times.len() as f64 * share).ceil() as usize;
        let time = done.times.get(at.saturating_sub(1));
        time.map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    let line = json!({
        "waves": waves,
        "calls": done.calls,
        "wall_s": wall.as_secs_f64(),
        "cpu_s": cpu.as_secs_f64(),
        "p50_ms": quantile(0.5),
        "p99_ms": quantile(0.99),
        "peak_kib": peak_kib()?,
    });
    println!("{line}");
    Ok(())
}
