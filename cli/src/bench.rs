//! `planck bench`: measures the cost of turns on this machine and, with `--bare`, the cost of a
//! loop that only sends the same HTTP requests.

mod bare;
mod measure;
mod model;
mod nats;
mod once;
mod part;
mod peer;
mod report;
mod sidecar;
mod watched;
mod workload;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use self::{
    measure::{Contender, load},
    model::ModelServer,
    nats::NatsServer,
    once::Once,
    report::BenchReport,
    sidecar::SidecarBench,
    workload::Workload,
};
use super::{exit::Exit, output::say};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck bench --bare                        # beside a loop that saves nothing
  planck bench --workload crowd --agents 200 --sessions 20
  planck bench --with-nats --repeat 5")]
pub struct BenchArgs {
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
    /// Run the bare loop before and after each repetition for comparison
    #[arg(long)]
    bare: bool,
    /// Run this program too, for comparison; `bench/rig` builds one
    #[arg(long, value_name = "PROGRAM")]
    peer: Option<PathBuf>,
}

/// Other measurements, and the processes of a benchmark, which people never start.
#[derive(Debug, Subcommand)]
enum BenchRole {
    Sidecar(SidecarBench),
    /// The model server
    #[command(hide = true)]
    Model(model::Serve),
    /// One repetition
    #[command(hide = true)]
    Once(Once),
}

impl BenchArgs {
    pub async fn perform(self) -> anyhow::Result<Exit> {
        match self.role {
            Some(BenchRole::Sidecar(sidecar)) => Box::pin(sidecar.perform()).await,
            Some(BenchRole::Model(serve)) => serve.perform().await,
            Some(BenchRole::Once(once)) => Box::pin(once.perform()).await,
            None => self.measure().await,
        }
        .map(|()| Exit::Done)
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
    /// and after each, and with `--peer` the peer runs after each, unless only a node can do the
    /// work.
    async fn repetitions(&self, once: &Once, report: &mut BenchReport) -> anyhow::Result<()> {
        let has_others = once.workload.has_bare();
        let bare = (self.bare && has_others).then_some(Contender::Bare);
        let peer = self.peer.as_ref().filter(|_| has_others);
        let mut contenders: Vec<Contender> = bare.into_iter().collect();
        for _ in 0..self.repeat {
            contenders.push(Contender::Node);
            contenders.extend(peer.map(|_| Contender::Peer));
            contenders.extend(bare);
        }
        for contender in contenders {
            let load = load();
            let once = Once {
                contender,
                ..once.clone()
            };
            let line = match peer {
                Some(program) if contender == Contender::Peer => peer::run(program, &once).await?,
                Some(_) | None => once.run_apart().await?,
            };
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
