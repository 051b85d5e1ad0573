//! The way to a cluster, or to a node in this process where no NATS is configured.

use std::{sync::Arc, time::Duration};

use super::output::warn;
use crate::{
    bus::{Bus, NatsBus, NatsOptions},
    client::Client,
    config::Config,
    node::{self, Inventory, Running},
};

/// A client, and what it needs as long as it lives.
pub struct Link {
    pub client: Client,
    pub bus: Arc<dyn Bus>,
    embedded: Option<Running>,
}

impl Link {
    pub async fn open(config: &Config) -> anyhow::Result<Self> {
        match to_nats(config, "planck client").await? {
            Some(bus) => Ok(Self { client: client(&bus, config), bus, embedded: None }),
            None => {
                Inventory::of(config).problems.iter().for_each(|problem| warn(&format!("planck: warning: {problem}")));
                let embedded = Box::pin(node::open(config)).await?;
                let bus = embedded.node().bus().clone();
                Ok(Self { client: client(&bus, config), bus, embedded: Some(embedded) })
            }
        }
    }

    /// Whether the node is in this process, and reaches no other.
    pub fn is_alone(&self) -> bool {
        self.embedded.is_some()
    }

    /// Stops the node in this process, if there is one.
    pub async fn close(self) {
        if let Some(embedded) = self.embedded {
            embedded.shut_down(Duration::ZERO).await;
        }
    }
}

fn client(bus: &Arc<dyn Bus>, config: &Config) -> Client {
    Client::new(bus.clone()).with_deadline(config.nats.request_timeout.0)
}

/// A connection to the configured servers; `None` where none are.
pub async fn to_nats(config: &Config, name: &str) -> anyhow::Result<Option<Arc<dyn Bus>>> {
    let Some(options) = node::nats(config)? else { return Ok(None) };
    let options = NatsOptions { name: name.into(), ..options };
    Ok(Some(Arc::new(NatsBus::connect(options).await?)))
}
