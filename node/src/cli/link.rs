//! The way to a cluster, or to a node in this process where no NATS is configured.

use std::{sync::Arc, time::Duration};

use super::{earlier, output::warn};
use crate::{
    bus::{Bus, MemoryBus, MemoryHub, NatsBus, NatsOptions, Serving},
    client::Client,
    config::Config,
    node::{self, Inventory, Running},
};

/// A client, and what it needs as long as it lives.
pub struct Link {
    pub client: Client,
    pub bus: Arc<dyn Bus>,
    to: To,
}

/// Who answers.
enum To {
    Cluster,
    /// A node in this process, which reaches no other.
    Node(Running),
    /// The store alone: nothing in this process can change it.
    Store(Box<dyn Serving>),
}

impl Link {
    /// For a command that acts. Without NATS this starts a node, which takes interrupted work of
    /// its store up.
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
            bus,
            to: To::Node(running),
        })
    }

    /// For a command that looks. Without NATS it reads the store and changes nothing.
    pub async fn look(config: &Config) -> anyhow::Result<Self> {
        if let Some(link) = Self::to_cluster(config).await? {
            return Ok(link);
        }
        earlier::say_what_is_there(config);
        let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new(Arc::new(MemoryHub::default())));
        let service = node::look(config, &bus).await?;
        Ok(Self {
            client: client(&bus, config),
            bus,
            to: To::Store(service),
        })
    }

    async fn to_cluster(config: &Config) -> anyhow::Result<Option<Self>> {
        let bus = to_nats(config, "planck client").await?;
        Ok(bus.map(|bus| Self {
            client: client(&bus, config),
            bus,
            to: To::Cluster,
        }))
    }

    /// Whether only the store answers, in which nothing happens that this process could hear.
    pub fn is_of_store(&self) -> bool {
        matches!(self.to, To::Store(_))
    }

    /// Whether the node is in this process, and reaches no other.
    pub fn is_alone(&self) -> bool {
        matches!(self.to, To::Node(_))
    }

    /// Stops the node in this process, if there is one.
    pub async fn close(self) {
        match self.to {
            To::Cluster => {}
            To::Node(running) => running.shut_down(Duration::ZERO).await,
            To::Store(service) => service.stop().await,
        }
    }
}

fn client(bus: &Arc<dyn Bus>, config: &Config) -> Client {
    Client::over(bus.clone()).with_request_timeout(config.nats.request_timeout.0)
}

/// A connection to the configured servers; `None` where none are.
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
