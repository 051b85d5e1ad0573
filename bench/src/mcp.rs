//! Measures the cost of calling a tool of an MCP server as agents do, compared with a bare client of
//! `rmcp`. Each way has a process of the server of its own.

mod bare;
mod echo;
mod local;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use planck_common::{SidecarId, subject};
use serde_json::{json, value::to_raw_value};
use tokio::{process::Command, time::sleep};

use self::{bare::BareClient, local::LocalServer};
use super::{
    calls::{ToolCaller as _, Way, compare},
    measure::memory_kib_of,
    nats::NatsServer,
    part::BenchProcess,
    sidecar::{Bare, CalledTool},
};
use crate::say;

pub use self::echo::{EchoServer, NatsEcho};

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// The tool that is called, and its argument.
const TOOL: &str = "echo";
const ARGUMENT: (&str, &str) = ("message", "hi");

/// Calls the tool `echo` of an MCP server in turns: with a bare client, as a node calls it, and over
/// NATS through `planck mcp bridge`. Also measures a request over NATS that a program answers at once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck-bench mcp
  planck-bench mcp -- node .tools/mcp/node_modules/@modelcontextprotocol/server-everything/dist/index.js stdio")]
pub struct McpBench {
    /// The number of calls in one measurement
    #[arg(long, value_name = "N", default_value_t = 4_000)]
    calls: usize,
    /// The number of repetitions
    #[arg(long, value_name = "N", default_value_t = 5)]
    repeat: u32,
    /// The program whose `mcp bridge` is measured; by default the one beside this program
    #[arg(long, value_name = "PROGRAM")]
    planck: Option<PathBuf>,
    /// The command that starts a server with a tool `echo`; by default a small one of this program
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl McpBench {
    pub async fn perform(self) -> Result<()> {
        let this = std::env::current_exe().context("cannot find this program")?;
        let planck = self.planck.unwrap_or_else(|| this.with_file_name("planck"));
        let program = this.display().to_string();
        let server = match self.command.is_empty() {
            true => vec![program, "mcp-server".into()],
            false => self.command,
        };
        let client = BareClient::start(&server).await?;
        let local = LocalServer::start(&server).await?;
        let nats = NatsServer::start().await?;
        let bridged = CalledTool {
            sidecar: SidecarId::parse("bridged")?,
            tool: TOOL.into(),
            args: to_raw_value(&json!({ARGUMENT.0: ARGUMENT.1}))?,
        };
        let mut bridge = Command::new(planck);
        let args = ["mcp", "bridge", &bridged.sidecar, "--"];
        bridge.args(args).args(&server).env("NATS_URL", nats.url());
        let mut bridge = BenchProcess::guarded(&bridge)?;
        let pid = bridge.line(PATIENCE).await?.trim().parse()?;
        let hop = CalledTool {
            sidecar: SidecarId::parse("hop")?,
            ..bridged.clone()
        };
        let answered = subject::tool(&hop.sidecar, &hop.tool);
        let _echo = BenchProcess::of_this_program(["nats-echo", nats.url(), &answered])?;
        let (bridged, hop) = (
            Bare::start(nats.url(), &bridged).await?,
            Bare::start(nats.url(), &hop).await?,
        );
        answers(&bridged).await.context("no bridge")?;
        answers(&hop).await.context("no answer over NATS")?;
        let ways = [
            Way::new("rmcp", || client.caller()),
            Way::new("node", || local.caller()),
            Way::new("bridge", || bridged.caller()),
            Way::new("hop", || hop.caller()),
        ];
        let memory = |when| {
            let mib = |field| memory_kib_of(pid, field) as f64 / 1024.0;
            let (all, own) = (mib("VmRSS"), mib("RssAnon"));
            say(&format!(
                "{}\n",
                json!({ "bridge": when, "rss_mib": all, "anon_mib": own })
            ))
        };
        memory("idle")?;
        compare(&ways, self.calls, self.repeat).await?;
        Ok(memory("after its calls")?)
    }
}

/// Waits until a call over NATS is answered.
async fn answers(sidecar: &Bare) -> Result<()> {
    let began = Instant::now();
    while let Err(why) = sidecar.caller().call().await {
        ensure!(began.elapsed() < PATIENCE, "{why:#}");
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
