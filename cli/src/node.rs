//! The command `planck node`.

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{
    args::GlobalArgs,
    exit::{Exit, UsageError},
    log::Logs,
};
use planck_node::config::Config;
use planck_node::node::{self, RunningNode};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck node --nats nats://127.0.0.1:4222
  PLANCK_NODE_NAME=worker-2 planck node --nats nats://db1:4222 --store postgres://db1/planck
  planck node --alone                        # without NATS

`planck nodes ls` lists the nodes of a cluster; `planck config show` lists the settings of a node.")]
pub struct NodeArgs {
    /// Serve without NATS, for this process alone
    #[arg(long)]
    alone: bool,
}

/// The signals that ask a node to drain and leave. A second signal stops the node at once.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Waits for `work`. The first signal cancels `stop`, which asks the work to end. Returns `None` at
    /// a second one.
    pub async fn until_done<T>(
        &mut self,
        work: impl Future<Output = T>,
        stop: &CancellationToken,
    ) -> Option<T> {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            done = &mut work => return Some(done),
            () = self.next() => stop.cancel(),
        }
        tokio::select! {
            done = work => Some(done),
            () = self.next() => None,
        }
    }
}

impl NodeArgs {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let config = global.config_of_node()?;
        if config.nats.url.is_none() && !self.alone {
            return Err(UsageError(
                "a node without NATS serves only its own process; set NATS_URL, or pass --alone"
                    .into(),
            )
            .into());
        }
        let logs = Logs::start(&config)?;
        let done = serve(&config).await;
        logs.end().await;
        done
    }
}

async fn serve(config: &Config) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let running = Box::pin(node::open(config)).await?;
    until_left(running, &mut signals, config).await
}

/// Runs a node until a signal or the cluster ends it, and has it leave. A second signal ends the
/// wait at once.
pub(super) async fn until_left(
    running: RunningNode,
    signals: &mut Signals,
    config: &Config,
) -> anyhow::Result<Exit> {
    let patience = tokio::select! {
        () = signals.next() => config.node.drain_timeout.0,
        patience = running.must_drain() => patience,
        why = running.must_end() => anyhow::bail!("node {} is out of its cluster and stopped everything: {why}", running.node().id()),
    };
    let rest = match config.nats.url {
        Some(_) => "running work continues on other nodes",
        None => "running work ends here, and continues when a node of this store starts again",
    };
    tracing::info!("leaving: {rest}; a second signal stops this node at once");
    tokio::select! {
        () = running.shut_down(patience) => Ok(Exit::Done),
        () = signals.next() => Ok(Exit::Failed),
    }
}
