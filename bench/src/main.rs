//! `planck-bench` measures the cost of turns on this machine and, with `--bare`, the cost of a
//! loop that only sends the same HTTP requests.

mod acp;
#[cfg(feature = "jemalloc")]
#[path = "../../cli/src/allocator.rs"]
mod allocator;
mod bare;
mod calls;
mod contend;
mod mcp;
mod measure;
mod model;
mod nats;
mod once;
mod part;
mod report;
mod sidecar;
mod watched;
mod workload;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

use self::{
    acp::AcpBench,
    contend::Contend,
    mcp::{EchoServer, McpBench, NatsEcho},
    measure::{Contender, load},
    model::ModelServer,
    nats::NatsServer,
    once::Once,
    report::BenchReport,
    sidecar::SidecarBench,
    workload::Workload,
};

/// Measures the cost of turns on this machine.
#[derive(Debug, Parser)]
#[command(name = "planck-bench", version, max_term_width = 100)]
#[command(after_help = "\
Examples:
  planck-bench --bare                        # beside a loop that saves nothing
  planck-bench --workload crowd --agents 200 --sessions 20
  planck-bench --with-nats --repeat 5")]
struct BenchArgs {
    #[command(subcommand)]
    role: Option<BenchRole>,
    /// The workloads to run; by default all but `fresh`
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    workload: Vec<Workload>,
    /// The number of repetitions
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeat: u32,
    /// The number of agents, if the workload leaves it open
    #[arg(long, value_name = "N")]
    agents: Option<usize>,
    /// The number of sessions that the agents are spread over
    #[arg(long, value_name = "N")]
    sessions: Option<usize>,
    /// Publish to a private nats-server too
    #[arg(long)]
    with_nats: bool,
    /// Also measure a plain HTTP client that makes the same requests without a node, before and after each repetition
    #[arg(long)]
    bare: bool,
}

/// Other measurements, and the processes of a benchmark, which people never start.
#[derive(Debug, Subcommand)]
enum BenchRole {
    Sidecar(SidecarBench),
    Mcp(McpBench),
    Acp(AcpBench),
    /// A server that speaks MCP
    #[command(hide = true)]
    McpServer(EchoServer),
    /// A program that answers requests over NATS
    #[command(hide = true)]
    NatsEcho(NatsEcho),
    /// The model server
    #[command(hide = true)]
    Model(model::Serve),
    /// One repetition
    #[command(hide = true)]
    Once(Once),
    /// A contender of `tools/compare`
    #[command(hide = true)]
    Contend(Contend),
}

fn main() -> anyhow::Result<ExitCode> {
    let mut args = std::env::args_os();
    if args.nth(1).is_some_and(|mode| mode == "reap") {
        return Ok(planck_toolbox::reap::main(args)); // as the node in this program starts it
    }
    let bench = BenchArgs::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(bench.perform())?;
    Ok(ExitCode::SUCCESS)
}

/// Writes to standard output.
fn say(text: &str) -> io::Result<()> {
    let mut to = io::stdout().lock();
    to.write_all(text.as_bytes())?;
    to.flush()
}

/// Writes a line to standard error.
fn warn(text: &str) {
    let _nothing_reads_it = writeln!(io::stderr(), "{text}");
}

impl BenchArgs {
    async fn perform(self) -> anyhow::Result<()> {
        match self.role {
            Some(BenchRole::Sidecar(sidecar)) => Box::pin(sidecar.perform()).await,
            Some(BenchRole::Mcp(mcp)) => Box::pin(mcp.perform()).await,
            Some(BenchRole::Acp(acp)) => Box::pin(acp.perform()).await,
            Some(BenchRole::McpServer(server)) => Box::pin(server.perform()).await,
            Some(BenchRole::NatsEcho(echo)) => Box::pin(echo.perform()).await,
            Some(BenchRole::Model(serve)) => serve.perform().await,
            Some(BenchRole::Once(once)) => Box::pin(once.perform()).await,
            Some(BenchRole::Contend(contend)) => Box::pin(contend.perform()).await,
            None => self.measure().await,
        }
    }

    async fn measure(&self) -> anyhow::Result<()> {
        let nats = if self.with_nats {
            Some(NatsServer::start().await?)
        } else {
            None
        };
        let mut report = BenchReport::default();
        for workload in self.workloads() {
            let model = ModelServer::start(&workload.script()).await?;
            let once = Once {
                workload,
                size: workload.size(self.agents, self.sessions),
                model: model.url().into(),
                server: nats.as_ref().map(|nats| nats.url().into()),
                nats_pid: nats.as_ref().map(NatsServer::pid),
                contender: Contender::Node,
            };
            self.repetitions(&once, &mut report).await?;
        }
        report.print();
        Ok(())
    }

    /// Runs the repetitions of a workload. With `--bare`, the bare loop runs before the first one
    /// and after each, unless only a node can do the work.
    async fn repetitions(&self, once: &Once, report: &mut BenchReport) -> anyhow::Result<()> {
        let bare = (self.bare && once.workload.has_bare()).then_some(Contender::Bare);
        let mut contenders: Vec<Contender> = bare.into_iter().collect();
        for _ in 0..self.repeat {
            contenders.push(Contender::Node);
            contenders.extend(bare);
        }
        for contender in contenders {
            let load = load();
            let once = Once {
                contender,
                ..once.clone()
            };
            let line = once.run_apart().await?;
            say(&(serde_json::to_string(&line)? + "\n"))?;
            report.add(line, load);
        }
        Ok(())
    }

    fn workloads(&self) -> Vec<Workload> {
        if self.workload.is_empty() {
            Workload::USUAL.to_vec()
        } else {
            self.workload.clone()
        }
    }
}
