//! The nodes and the front of the demo.

use std::{fs, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use planck_client::Client;
use planck_common::NodeId;
use planck_http::{Front, FrontOptions, KeyHash, Keys, StartDefaults};
use planck_prove::{Launch, Process};
use planck_toolbox::reap;
use tokio::{
    net::TcpListener,
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::cluster::WORKSPACE;
use crate::serve;

/// Starts a process that is killed when this process ends in any way, and that does not receive interrupts
/// from the terminal.
pub const LAUNCH: Launch = reap::bound_to_this_process;

const NODE_PATIENCE: Duration = Duration::from_secs(20);

pub struct DemoNode {
    pub id: NodeId,
    pub name: &'static str,
    process: Process,
}

impl DemoNode {
    /// Starts the process, and waits until the cluster lists the node.
    pub async fn start(
        name: &'static str,
        folder: &Path,
        client: &Client,
        settings: &str,
    ) -> anyhow::Result<Self> {
        let config = folder.join(name).with_extension("toml");
        fs::write(&config, settings)
            .with_context(|| format!("cannot write {}", config.display()))?;
        let program = reap::THIS_BINARY.as_ref();
        let arguments = ["node", "--no-project", "--config"].map(Into::into);
        let arguments = [&arguments[..], &[config.into()]].concat();
        let mut process = Process::start(name, LAUNCH, program, &arguments, &[], folder)?;
        let id = answering(name, client, &mut process).await?;
        Ok(Self { id, name, process })
    }

    pub async fn kill(mut self) -> anyhow::Result<()> {
        self.process.kill().await
    }

    pub async fn stop(self) {
        self.process.leave().await;
    }
}

/// Waits until the cluster's list of nodes contains the node, and returns its id.
async fn answering(name: &str, client: &Client, process: &mut Process) -> anyhow::Result<NodeId> {
    let until = Instant::now() + NODE_PATIENCE;
    loop {
        process.check()?;
        let listed = tokio::time::timeout(Duration::from_millis(500), client.nodes()).await;
        if let Ok(Ok(nodes)) = listed
            && let Some(node) = nodes.nodes.into_iter().find(|node| node.name == name)
        {
            return Ok(node.id);
        }
        if Instant::now() > until {
            bail!(
                "{name} does not answer after {} s; the end of its log:\n{}",
                NODE_PATIENCE.as_secs(),
                process.last_lines()
            );
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// The port that is tried first, which is the default of `planck serve`.
const PORT: u16 = 8400;

pub struct DemoFront {
    address: SocketAddr,
    key: String,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl DemoFront {
    /// Starts the front on its usual port, or on another one if a program uses that port.
    pub async fn start(client: &Client) -> anyhow::Result<Self> {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let listener = match TcpListener::bind(at(PORT)).await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind(at(0)).await.context("cannot listen")?,
        };
        let address = listener.local_addr().context("cannot listen")?;
        let stop = CancellationToken::new();
        let start = StartDefaults {
            workspace: Some(WORKSPACE.into()),
            dir: None,
        };
        let key = serve::mint_key();
        let options = FrontOptions {
            keys: Keys::Own(KeyHash::of(&key)),
            start,
            ..FrontOptions::default()
        };
        let front: Arc<Front> = Front::new(client.clone(), options);
        let serving = tokio::spawn(front.serve(listener, stop.clone()));
        Ok(Self {
            address,
            key,
            stop,
            serving,
        })
    }

    /// Returns the address of the console with the key. A page of the console may follow.
    pub fn url(&self) -> String {
        format!("http://{}/#key={}", self.address, self.key)
    }

    pub async fn stop(self) {
        self.stop.cancel();
        let _ended = self.serving.await;
    }
}
