//! Measures the cost of calling a sidecar's tool through the runtime, compared with a plain NATS
//! request to the same sidecar.

mod bare;
mod runtime;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use planck_common::{SidecarId, id::is_id};
use serde_json::value::RawValue;
use tokio::process::Command;

use self::runtime::RuntimeCalls;
use super::{
    calls::{Way, compare},
    nats::NatsServer,
    part::BenchProcess,
};
use crate::{say, warn};

pub use self::bare::Bare;

/// Starts a sidecar at a nats-server of its own, and calls one of its tools: bare and through the
/// runtime, in turns
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck-bench sidecar text-rust repeat '{\"text\":\"a\",\"times\":3}' -- target/release/examples/text-rust")]
pub struct SidecarBench {
    /// The sidecar's name
    name: String,
    /// The tool to call
    tool: String,
    /// Arguments that fit the tool's schema
    #[arg(value_name = "JSON")]
    args: String,
    /// The number of calls in one measurement
    #[arg(long, value_name = "N", default_value_t = 4_000)]
    calls: usize,
    /// The number of repetitions
    #[arg(long, value_name = "N", default_value_t = 5)]
    repeat: u32,
    /// The number of instances that share the calls
    #[arg(long, value_name = "N", default_value_t = 1)]
    instances: usize,
    /// The command that starts an instance
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The tool to call, with the arguments of each call.
#[derive(Debug, Clone)]
pub struct CalledTool {
    pub sidecar: SidecarId,
    pub tool: String,
    pub args: Box<RawValue>,
}

impl SidecarBench {
    pub async fn perform(self) -> Result<()> {
        ensure!(is_id(&self.tool), "`{}` names no tool", self.tool);
        let args =
            RawValue::from_string(self.args.clone()).context("the arguments are not JSON")?;
        let called = CalledTool {
            sidecar: SidecarId::parse(&self.name)?,
            tool: self.tool.clone(),
            args,
        };
        let server = NatsServer::start().await?;
        let _instances = (0..self.instances)
            .map(|_| self.instance(&server))
            .collect::<Result<Vec<_>>>()?;
        let runtime = RuntimeCalls::start(server.url(), &called, self.instances).await?;
        let bare = Bare::start(server.url(), &called).await?;
        let ways = [
            Way::new("bare", || bare.caller()),
            Way::new("runtime", || runtime.caller()),
        ];
        compare(&ways, self.calls, self.repeat).await?;
        let shares = bare.shares(self.instances).await?;
        say(&format!("{}\n", serde_json::json!({ "shares": shares })))?;
        report(&shares);
        Ok(())
    }

    fn instance(&self, server: &NatsServer) -> Result<BenchProcess> {
        let (program, arguments) = self.command.split_first().context("the command is empty")?;
        let mut command = Command::new(program);
        command.args(arguments).env("NATS_URL", server.url());
        BenchProcess::guarded(&command)
    }
}

/// Prints how many calls each instance answered.
fn report(shares: &[u64]) {
    let mean = shares.iter().sum::<u64>() as f64 / shares.len().max(1) as f64;
    let off: Vec<String> = shares
        .iter()
        .map(|share| format!("{:+.1} %", (*share as f64 / mean - 1.0) * 100.0))
        .collect();
    warn(&format!(
        "calls of each instance: {shares:?}, off the mean by {}",
        off.join(", ")
    ));
}
