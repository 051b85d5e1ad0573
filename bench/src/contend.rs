//! Takes part in `tools/compare` as two of its contenders: a node as `planck run` starts it, and the
//! bare loop. `bench/compare/README.md` describes the lines that are exchanged.

use std::{io::BufRead as _, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use clap::Args;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{
    bare::BareLoop,
    once::{BenchNode, config},
    say,
    workload::{Workload, WorkloadSize},
};

/// A contender of `tools/compare`.
#[derive(Debug, Args)]
pub struct Contend {
    #[command(flatten)]
    size: WorkloadSize,
    /// How many turns each agent has in a wave
    #[arg(long)]
    turns: usize,
    /// The base URL of the scripted model
    #[arg(long)]
    model: String,
    /// The folder of the agents, with the file that their tool reads
    #[arg(long)]
    dir: PathBuf,
    /// The folder in which the node keeps its sessions
    #[arg(long)]
    store: PathBuf,
    /// Be the bare loop, with the known answers of this workload
    #[arg(long)]
    bare: Option<Workload>,
}

impl Contend {
    pub async fn perform(self) -> Result<()> {
        match self.bare {
            Some(workload) => tokio::task::spawn_blocking(move || self.bare(workload)).await?,
            None => self.node().await,
        }
    }

    /// Runs a wave of the bare loop for each line of input.
    fn bare(&self, workload: Workload) -> Result<()> {
        let bare = BareLoop::new(workload, &self.model)?;
        let mut lines = std::io::stdin().lock().lines();
        loop {
            say("ready\n")?;
            if lines.next().transpose()?.is_none() {
                return Ok(());
            }
            bare.wave(self.size.agents)?;
            say("done\n")?;
        }
    }

    /// Runs the turns of new agents for each line of input.
    async fn node(&self) -> Result<()> {
        let config = config(&self.model, None, &self.store);
        let mut world = BenchNode::open(&config).await?;
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        loop {
            say("ready\n")?;
            if lines.next_line().await?.is_none() {
                break;
            }
            world.start_agents(self.size, &self.dir).await?;
            for _ in 0..self.turns {
                world.turn().await.context("the turns did not end")?;
            }
            say("done\n")?;
            world.close_sessions().await?;
        }
        world.node.shut_down(Duration::ZERO).await;
        Ok(())
    }
}
