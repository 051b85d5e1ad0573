//! A bridge: one MCP server, and the sidecar that offers its tools.

use std::{sync::Arc, time::Duration};

use planck_sidecar::{Connection, Sidecar, Tool};
use planck_toolbox::Launcher;
use tokio::{
    sync::watch,
    task::{JoinError, JoinSet},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{
    call::{CalledTool, call},
    connection::ServerCommand,
    offer::{Offer, OfferedTool},
    supervisor::{Link, News, Supervisor},
};

/// How long the former tools are still served when the server's tools change, so that at every moment
/// one instance takes calls.
const OVERLAP: Duration = Duration::from_secs(1);

/// The receiver of lines that tell a person what the server and the bridge do.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// How the bridge starts a server and judges its tools.
#[derive(Debug, Clone)]
pub struct BridgeOptions {
    /// The name of the sidecar.
    pub name: String,
    pub command: ServerCommand,
    /// How long the server may take to answer after it was started.
    pub start_within: Duration,
    /// Whether the server's hints about its tools count.
    pub trusts_hints: bool,
}

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
    options: BridgeOptions,
    launcher: Launcher,
    report: Report,
}

impl Bridge {
    /// Creates a bridge. `launcher` starts the server, so the server ends with this process.
    pub fn new(options: BridgeOptions, launcher: Launcher, report: Report) -> Self {
        Self {
            options,
            launcher,
            report,
        }
    }

    /// Serves the server's tools until `stop` is cancelled, and then ends the server. While the
    /// server is away, its tools stay and answer calls with an error.
    ///
    /// # Errors
    /// Returns an error if the server could not be started once, or if the sidecar cannot be served,
    /// for example because NATS does not answer.
    pub async fn run(
        self,
        connection: Connection,
        stop: CancellationToken,
    ) -> Result<(), BridgeError> {
        let away = Link::Away("it has not been started yet".into());
        let (link, links) = watch::channel(away);
        let (offer, offers) = watch::channel(None);
        let supervisor = Supervisor {
            launcher: self.launcher.clone(),
            command: self.options.command.clone(),
            start_within: self.options.start_within,
            trusts_hints: self.options.trusts_hints,
            report: self.report.clone(),
        };
        let served = CancellationToken::new();
        let _served_or_failed = served.clone().drop_guard();
        let mut supervising = tokio::spawn(supervisor.run(News { link, offer }, served.clone()));
        let serving = self.serve(connection, links, offers, stop);
        tokio::select! {
            ended = &mut supervising => ended?.map_err(BridgeError::Server),
            done = serving => {
                served.cancel();
                supervising.await?.map_err(BridgeError::Server)?;
                done
            }
        }
    }

    /// Serves each offer as an instance of the sidecar until the next offer.
    async fn serve(
        &self,
        connection: Connection,
        links: watch::Receiver<Link>,
        mut offers: watch::Receiver<Option<Offer>>,
        stop: CancellationToken,
    ) -> Result<(), BridgeError> {
        let (mut instances, mut last): (JoinSet<_>, Option<(Offer, CancellationToken)>) =
            (JoinSet::new(), None);
        loop {
            let offer = offers.borrow_and_update().clone();
            let is_new = |offer: &Offer| last.as_ref().is_none_or(|(last, _)| last != offer);
            if let Some(offer) = offer.filter(is_new) {
                let until = stop.child_token();
                let sidecar = self.sidecar(&offer, &links)?;
                let served = until.clone().cancelled_owned();
                instances.spawn(sidecar.run_until(connection.clone(), served));
                self.tell(&offer);
                if let Some((_, former)) = last.replace((offer, until)) {
                    tokio::spawn(async move {
                        sleep(OVERLAP).await;
                        former.cancel();
                    });
                }
            }
            tokio::select! {
                changed = offers.changed() => if changed.is_err() {
                    // The supervisor has ended, and its result says why.
                    std::future::pending::<()>().await;
                },
                Some(ended) = instances.join_next() => ended??,
                () = stop.cancelled() => break,
            }
        }
        while let Some(ended) = instances.join_next().await {
            ended??;
        }
        Ok(())
    }

    fn sidecar(
        &self,
        offer: &Offer,
        links: &watch::Receiver<Link>,
    ) -> Result<Sidecar, BridgeError> {
        let sidecar = Sidecar::new(&self.options.name, &offer.version)?;
        let command = self.options.command.program.to_string_lossy();
        let tools = offer.tools.iter().map(|offered| tool(offered, links));
        Ok(tools.fold(
            sidecar.description(format!("The MCP server {command}")),
            Sidecar::tool,
        ))
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

pub(crate) fn tool(offered: &OfferedTool, links: &watch::Receiver<Link>) -> Tool {
    let called = CalledTool {
        server_name: offered.server_name.clone(),
        effect: offered.effect,
    };
    let links = links.clone();
    Tool::with_parameters(
        &offered.name,
        &offered.description,
        &offered.parameters,
        move |context, args| call(links.clone(), called.clone(), context, args),
    )
    .effect(offered.effect)
}
