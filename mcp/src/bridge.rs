//! A bridge: one MCP server, and the sidecar that offers its tools over NATS.

use std::{sync::Arc, time::Duration};

use planck_sidecar::{Connection, Sidecar, Tool};
use planck_toolbox::Launcher;
use tokio::{
    task::{JoinError, JoinSet},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{
    offer::Offer,
    server::{McpServer, Report, ServerOptions},
};

/// How long the former tools are still served when the server's tools change, so that at every moment
/// one instance takes calls.
const OVERLAP: Duration = Duration::from_secs(1);

/// The reason why a bridge ended, or could not begin.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    #[error(transparent)]
    Sidecar(#[from] planck_sidecar::Error),
    #[error("the MCP server cannot be used: {0}")]
    Server(String),
    #[error("a task of the bridge failed: {0}")]
    Task(#[from] JoinError),
}

/// An MCP server whose tools are those of a sidecar.
pub struct Bridge {
    name: String,
    options: ServerOptions,
    launcher: Launcher,
    report: Report,
}

/// An instance of the sidecar, which serves one offer until `until` is cancelled.
struct Instance {
    offer: Arc<Offer>,
    until: CancellationToken,
}

impl Bridge {
    /// Creates a bridge for the sidecar `name`. `launcher` starts the server, so the server ends with
    /// this process.
    pub fn new(name: String, options: ServerOptions, launcher: Launcher, report: Report) -> Self {
        Self {
            name,
            options,
            launcher,
            report,
        }
    }

    /// Serves the server's tools until `stop` is cancelled, and then ends the server. While the
    /// server is away, its tools stay and answer calls with an error.
    ///
    /// # Errors
    /// Returns an error if the server could not be used once, or if the sidecar cannot be served,
    /// for example because NATS does not answer.
    pub async fn run(
        self,
        connection: Connection,
        stop: CancellationToken,
    ) -> Result<(), BridgeError> {
        let Self {
            name,
            options,
            launcher,
            report,
        } = self;
        let description = format!("The MCP server {}", options.transport);
        let ended = CancellationToken::new();
        let _ended_or_dropped = ended.clone().drop_guard();
        let (server, supervising) =
            McpServer::start(options, launcher, report.clone(), ended.clone());
        let serving = Serving {
            name,
            description,
            report,
            connection,
        };
        let served = serving.serve(server, stop).await;
        ended.cancel();
        supervising.await?;
        served
    }
}

/// The parts that all instances of the sidecar share.
struct Serving {
    name: String,
    description: String,
    report: Report,
    connection: Connection,
}

impl Serving {
    /// Serves each offer as an instance of the sidecar until the next offer.
    async fn serve(
        &self,
        mut server: McpServer,
        stop: CancellationToken,
    ) -> Result<(), BridgeError> {
        let (mut instances, mut last): (JoinSet<_>, Option<Instance>) = (JoinSet::new(), None);
        loop {
            let is_new = |offer: &Arc<Offer>| last.as_ref().is_none_or(|last| last.offer != *offer);
            if let Some(offer) = server.offer().filter(is_new) {
                let until = stop.child_token();
                let sidecar = self.sidecar(&offer, server.tools(&offer))?;
                let served = until.clone().cancelled_owned();
                instances.spawn(sidecar.run_until(self.connection.clone(), served));
                self.tell(&offer);
                if let Some(former) = last.replace(Instance { offer, until }) {
                    tokio::spawn(async move {
                        sleep(OVERLAP).await;
                        former.until.cancel();
                    });
                }
            }
            if let Some(why) = server.unusable() {
                return Err(BridgeError::Server(why));
            }
            tokio::select! {
                _is_kept_in_use = server.changed() => (),
                Some(ended) = instances.join_next() => ended??,
                () = stop.cancelled() => break,
            }
        }
        while let Some(ended) = instances.join_next().await {
            ended??;
        }
        Ok(())
    }

    fn sidecar(&self, offer: &Offer, tools: Vec<Tool>) -> Result<Sidecar, BridgeError> {
        let sidecar = Sidecar::new(&self.name, &offer.version)?;
        let sidecar = sidecar.description(&self.description);
        Ok(tools.into_iter().fold(sidecar, Sidecar::tool))
    }

    fn tell(&self, offer: &Offer) {
        let names: Vec<&str> = offer.tools.iter().map(|tool| tool.name.as_str()).collect();
        (self.report)(&format!(
            "serves {} tools of version {}: {}",
            names.len(),
            offer.version,
            names.join(" ")
        ));
    }
}
