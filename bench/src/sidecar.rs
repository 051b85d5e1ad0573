//! Measures the cost of calling a sidecar's tool through the runtime, compared with a plain NATS
//! request to the same sidecar.

mod bare;
mod runtime;

use std::{
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use planck_common::{SidecarId, id::is_id};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::{process::Command, task::JoinSet};

use self::{bare::Bare, runtime::RuntimeCalls};
use super::{measure::quantile, nats::NatsServer, part::BenchProcess};
use crate::{say, warn};

/// The numbers of concurrent callers that are measured. Each caller starts its next call as soon as
/// it has an answer.
const CALLERS: [usize; 2] = [1, 64];

/// The number of calls of each way that precede the measurements with the same number of callers.
const WARM_UP: usize = 200;

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
    sidecar: SidecarId,
    tool: String,
    args: Box<RawValue>,
}

/// One measurement, as it is printed.
#[derive(Debug, Clone, Serialize)]
struct Timed {
    way: &'static str,
    callers: usize,
    calls: usize,
    us_per_call: f64,
    p50_us: f64,
    p99_us: f64,
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
        let mut timed = Vec::new();
        for callers in CALLERS {
            timed.extend(self.compare(&bare, &runtime, callers).await?);
        }
        let shares = bare.shares(self.instances).await?;
        say(&format!("{}\n", serde_json::json!({ "shares": shares })))?;
        report(&timed, &shares);
        Ok(())
    }

    fn instance(&self, server: &NatsServer) -> Result<BenchProcess> {
        let (program, arguments) = self.command.split_first().context("the command is empty")?;
        let mut command = Command::new(program);
        command.args(arguments).env("NATS_URL", server.url());
        BenchProcess::guarded(&command)
    }

    async fn compare(
        &self,
        bare: &Bare,
        runtime: &RuntimeCalls,
        callers: usize,
    ) -> Result<Vec<Timed>> {
        time("bare", callers, WARM_UP, || bare.caller()).await?;
        time("runtime", callers, WARM_UP, || runtime.caller()).await?;
        let mut timed = Vec::new();
        for _ in 0..self.repeat {
            timed.push(time("bare", callers, self.calls, || bare.caller()).await?);
            timed.push(time("runtime", callers, self.calls, || runtime.caller()).await?);
        }
        for line in &timed {
            say(&(serde_json::to_string(line)? + "\n"))?;
        }
        Ok(timed)
    }
}

/// A way to call the tool, of which each concurrent caller has its own copy.
trait ToolCaller: Send + 'static {
    fn call(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// Distributes the calls among concurrent callers. Returns the total time divided by the number of
/// calls, and the median and the 99th percentile of the time of one call.
async fn time<C: ToolCaller>(
    way: &'static str,
    callers: usize,
    calls: usize,
    caller: impl Fn() -> C,
) -> Result<Timed> {
    let (mut working, began) = (JoinSet::new(), Instant::now());
    for _ in 0..callers {
        working.spawn(calls_of(caller(), calls / callers));
    }
    let mut times: Vec<Duration> = Vec::with_capacity(calls);
    while let Some(done) = working.join_next().await {
        times.extend(done??);
    }
    let elapsed = began.elapsed();
    times.sort();
    let calls = times.len().max(1);
    let us = |share| quantile(&times, share) * 1e3;
    Ok(Timed {
        way,
        callers,
        calls,
        us_per_call: elapsed.as_secs_f64() * 1e6 / calls as f64,
        p50_us: us(0.5),
        p99_us: us(0.99),
    })
}

async fn calls_of(mut caller: impl ToolCaller, calls: usize) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let began = Instant::now();
        caller.call().await?;
        times.push(began.elapsed());
    }
    Ok(times)
}

/// Prints the medians as a table, and how many calls each instance answered. The ratio is the
/// runtime's median time per call divided by that of the bare calls.
fn report(timed: &[Timed], shares: &[u64]) {
    warn(&format!(
        "{:>8} {:>14} {:>14} {:>7} {:>14} {:>14}",
        "callers", "bare µs/call", "runtime", "ratio", "bare p99", "runtime p99"
    ));
    for callers in CALLERS {
        let median = |way: &str, of: fn(&Timed) -> f64| {
            let chosen = timed
                .iter()
                .filter(|timed| timed.way == way && timed.callers == callers);
            let mut values: Vec<f64> = chosen.map(of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        let [bare, runtime] = ["bare", "runtime"].map(|way| median(way, |timed| timed.us_per_call));
        let [bare99, runtime99] = ["bare", "runtime"].map(|way| median(way, |timed| timed.p99_us));
        warn(&format!(
            "{callers:>8} {bare:>14.1} {runtime:>14.1} {:>7.2} {bare99:>14.0} {runtime99:>14.0}",
            runtime / bare
        ));
    }
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
