//! A node of the demo: a `planck node` process with its own configuration.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, bail};
use planck_common::NodeId;
use tokio::time::{Instant, sleep};

use super::child::Child;
use planck_client::Client;
use planck_toolbox::reap;

const PATIENCE: Duration = Duration::from_secs(20);

pub struct DemoNode {
    pub id: NodeId,
    pub name: &'static str,
    child: Child,
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
        let args = [
            "node".as_ref(),
            "--no-project".as_ref(),
            "--config".as_ref(),
            config.as_os_str(),
        ];
        let mut child = Child::start(name, reap::THIS_BINARY.as_ref(), &args, folder)?;
        let id = answering(name, client, &mut child).await?;
        Ok(Self { id, name, child })
    }

    pub async fn kill(self) -> anyhow::Result<()> {
        self.child.kill().await
    }

    pub async fn stop(self) {
        self.child.stop().await;
    }
}

/// Waits until the cluster's list of nodes contains the node, and returns its id.
async fn answering(name: &str, client: &Client, child: &mut Child) -> anyhow::Result<NodeId> {
    let until = Instant::now() + PATIENCE;
    loop {
        child.check()?;
        let listed = tokio::time::timeout(Duration::from_millis(500), client.nodes()).await;
        if let Ok(Ok(nodes)) = listed
            && let Some(node) = nodes.nodes.into_iter().find(|node| node.name == name)
        {
            return Ok(node.id);
        }
        if Instant::now() > until {
            bail!(
                "{name} does not answer after {} s; the end of its log:\n{}",
                PATIENCE.as_secs(),
                child.last_lines()
            );
        }
        sleep(Duration::from_millis(50)).await;
    }
}
