//! The demo's node: a `planck node` process with a configuration of its own, and the way to it.

use std::{fs, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use tokio::time::{Instant, sleep};

use super::child::Child;
use crate::{
    bus::{Bus, NatsBus, NatsOptions},
    client::Client,
    tools::reap,
};

const PATIENCE: Duration = Duration::from_secs(20);

pub struct Node {
    pub id: String,
    pub client: Client,
    pub child: Child,
}

impl Node {
    /// Starts the process and waits until it answers.
    pub async fn start(folder: &Path, nats: &str, settings: &str) -> anyhow::Result<Self> {
        let config = folder.join("planck.toml");
        fs::write(&config, settings).with_context(|| format!("cannot write {}", config.display()))?;
        let args = ["node".as_ref(), "--config".as_ref(), config.as_os_str()];
        let mut child = Child::start("node", reap::THIS_BINARY.as_ref(), &args, folder)?;
        let options = NatsOptions { name: "planck demo".into(), ..NatsOptions::new(nats) };
        let bus: Arc<dyn Bus> = Arc::new(NatsBus::connect(options).await?);
        let client = Client::new(bus).with_deadline(Duration::from_secs(5));
        let id = answering(&client, &mut child).await?;
        Ok(Self { id, client, child })
    }
}

/// Its id, once it is in service.
async fn answering(client: &Client, child: &mut Child) -> anyhow::Result<String> {
    let until = Instant::now() + PATIENCE;
    loop {
        child.check()?;
        let listed = tokio::time::timeout(Duration::from_millis(500), client.nodes()).await;
        if let Ok(Ok(nodes)) = listed
            && let Some(node) = nodes.nodes.first()
        {
            return Ok(node.id.to_string());
        }
        if Instant::now() > until {
            bail!("the node does not answer after {} s; the end of its log:\n{}", PATIENCE.as_secs(), child.last_lines());
        }
        sleep(Duration::from_millis(50)).await;
    }
}
