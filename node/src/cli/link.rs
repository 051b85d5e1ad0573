//! The connection to a cluster, or to a node in this process if NATS is not configured.

use std::{sync::Arc, time::Duration};

use super::{earlier, output::warn};
use crate::{
    bus::{Bus, MemoryBus, MemoryHub, NatsBus, NatsOptions, Serving},
    client::Client,
    config::Config,
    node::{self, Inventory, RunningNode},
};

/// A client, with everything that must live as long as it.
pub struct ConnectedClient {
    pub client: Client,
    to: ConnectionEnd,
}

/// The other end of the connection.
enum ConnectionEnd {
    Cluster,
    /// A node in this process without connections to other nodes.
    Node(RunningNode),
    /// The store alone, which this process only reads.
    Store(Box<dyn Serving>),
}

impl ConnectedClient {
    /// Opens a link for a command that acts. Without NATS this starts a node, which continues
    /// interrupted work of its store.
    pub async fn open(config: &Config) -> anyhow::Result<Self> {
        if let Some(link) = Self::to_cluster(config).await? {
            return Ok(link);
        }
        Inventory::of(config)
            .problems
            .iter()
            .for_each(|problem| warn(&format!("planck: warning: {problem}")));
        earlier::say_what_is_there(config);
        let running = Box::pin(node::open(config)).await?;
        let bus = Arc::clone(&running.node().services().bus);
        Ok(Self {
            client: client(&bus, config),
            to: ConnectionEnd::Node(running),
        })
    }

    /// Opens a link for a command that only reads. Without NATS it reads the store and changes
    /// nothing.
    pub async fn look(config: &Config) -> anyhow::Result<Self> {
        if let Some(link) = Self::to_cluster(config).await? {
            return Ok(link);
        }
        earlier::say_what_is_there(config);
        let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new(Arc::new(MemoryHub::default())));
        let service = node::look(config, &bus).await?;
        Ok(Self {
            client: client(&bus, config),
            to: ConnectionEnd::Store(service),
        })
    }

    async fn to_cluster(config: &Config) -> anyhow::Result<Option<Self>> {
        let bus = to_nats(config, "planck client").await?;
        Ok(bus.map(|bus| Self {
            client: client(&bus, config),
            to: ConnectionEnd::Cluster,
        }))
    }

    /// Returns whether the link leads to the store alone, where no events occur.
    pub fn is_of_store(&self) -> bool {
        matches!(self.to, ConnectionEnd::Store(_))
    }

    /// Returns whether the link leads to a node in this process without connections to others.
    pub fn is_alone(&self) -> bool {
        matches!(self.to, ConnectionEnd::Node(_))
    }

    /// Stops the node in this process, if there is one.
    pub async fn close(self) {
        match self.to {
            ConnectionEnd::Cluster => {}
            ConnectionEnd::Node(running) => running.shut_down(Duration::ZERO).await,
            ConnectionEnd::Store(service) => service.stop().await,
        }
    }
}

fn client(bus: &Arc<dyn Bus>, config: &Config) -> Client {
    Client::over(bus.clone()).with_request_timeout(config.nats.request_timeout.0)
}

/// Connects to the configured servers. Returns `None` if there are none.
pub async fn to_nats(config: &Config, name: &str) -> anyhow::Result<Option<Arc<dyn Bus>>> {
    let Some(options) = node::nats(config)? else {
        return Ok(None);
    };
    let options = NatsOptions {
        name: name.into(),
        ..options
    };
    Ok(Some(Arc::new(NatsBus::connect(options).await?)))
}
