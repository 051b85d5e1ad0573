//! The connection of a command to a cluster. If NATS is not configured, it is to the `planck serve`
//! that uses the same store, or else to a node in this process.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{ask::can_ask, output::warn};
use anyhow::Context as _;
use planck_bus::{Bus, MemoryBus, MemoryHub, NatsBus, NatsOptions, ServiceGuard, SocketBus};
use planck_client::Client;
use planck_common::Timestamp;
use planck_node::config::Config;
use planck_node::node::{self, Inventory, RunningNode};

/// A client, and the nodes or the store to which it is connected.
pub struct ConnectedClient {
    pub client: Client,
    to: ConnectionEnd,
}

/// The processes or the store to which the client is connected.
enum ConnectionEnd {
    /// The nodes of a cluster, or the `planck serve` of the store.
    Others,
    /// A node in this process without connections to other nodes, and when it began to start.
    Node(RunningNode, Timestamp),
    /// The store itself. No agent runs in this process.
    Store(Box<dyn ServiceGuard>),
}

impl ConnectedClient {
    /// Connects a command that changes something. Without NATS and without a `planck serve`, prints
    /// warnings about invalid files, and starts a node in this process. The node also continues
    /// interrupted work of its store.
    pub async fn open(config: &Config) -> anyhow::Result<Self> {
        if let Some(link) = Self::to_others(config).await? {
            return Ok(link);
        }
        Inventory::of(config)
            .problems
            .iter()
            .for_each(|problem| warn(&format!("planck: warning: {problem}")));
        let since = Timestamp::now();
        let running = match can_ask() {
            true => Box::pin(node::open_attended(config)).await?,
            false => Box::pin(node::open(config)).await?,
        };
        let bus = Arc::clone(&running.node().services().handles.bus);
        Ok(Self {
            client: client(&bus, config),
            to: ConnectionEnd::Node(running, since),
        })
    }

    /// Connects a command that only reads. Without NATS, opens the store read-only.
    pub async fn look(config: &Config) -> anyhow::Result<Self> {
        if let Some(link) = Self::to_others(config).await? {
            return Ok(link);
        }
        let bus = memory();
        let service = node::look(config, &bus).await?;
        Ok(Self::to_store(bus, service, config))
    }

    /// Connects a command that answers waits. Without NATS, opens the store and runs no agent.
    pub async fn answer(config: &Config) -> anyhow::Result<Self> {
        if let Some(link) = Self::to_others(config).await? {
            return Ok(link);
        }
        let bus = memory();
        let service = node::take_answers(config, &bus).await?;
        Ok(Self::to_store(bus, service, config))
    }

    fn to_store(bus: Arc<dyn Bus>, service: Box<dyn ServiceGuard>, config: &Config) -> Self {
        Self {
            client: client(&bus, config),
            to: ConnectionEnd::Store(service),
        }
    }

    async fn to_others(config: &Config) -> anyhow::Result<Option<Self>> {
        let bus = to_others(config, "planck client").await?;
        Ok(bus.map(|bus| Self {
            client: client(&bus, config),
            to: ConnectionEnd::Others,
        }))
    }

    /// Returns whether the client uses the store without a node. Such a client receives no events.
    pub fn is_of_store(&self) -> bool {
        matches!(self.to, ConnectionEnd::Store(_))
    }

    /// Returns whether the client is connected to a node in this process that has no connection to
    /// other nodes.
    pub fn is_alone(&self) -> bool {
        self.alone_since().is_some()
    }

    /// Returns when the node in this process began to start, if there is one. All later events of
    /// its sessions are of its own work, which may be work that another process left unfinished.
    pub fn alone_since(&self) -> Option<Timestamp> {
        match self.to {
            ConnectionEnd::Node(_, since) => Some(since),
            ConnectionEnd::Others | ConnectionEnd::Store(_) => None,
        }
    }

    /// Returns whether commands of agents are known to have no network. What the nodes of a cluster
    /// admit is not known here.
    pub fn lacks_network(&self) -> bool {
        matches!(&self.to, ConnectionEnd::Node(running, _) if !running.node().tools_have_network())
    }

    /// Stops the node or the reader of the store in this process, if there is one.
    pub async fn close(self) {
        match self.to {
            ConnectionEnd::Others => {}
            ConnectionEnd::Node(running, _) => running.shut_down(Duration::ZERO).await,
            ConnectionEnd::Store(service) => service.stop().await,
        }
    }
}

fn memory() -> Arc<dyn Bus> {
    Arc::new(MemoryBus::new(Arc::new(MemoryHub::default())))
}

fn client(bus: &Arc<dyn Bus>, config: &Config) -> Client {
    let has_told = AtomicBool::new(false);
    Client::over(bus.clone())
        .with_request_timeout(config.nats.request_timeout.0)
        .with_retry_notice(move |error| {
            if !has_told.swap(true, Ordering::Relaxed) {
                warn(&format!("planck: trying again for some seconds: {error}"));
            }
        })
}

/// Connects to the configured NATS servers. If none are configured, connects to the `planck serve`
/// that uses the same store. Returns `None` if there is none.
pub async fn to_others(config: &Config, name: &str) -> anyhow::Result<Option<Arc<dyn Bus>>> {
    if let Some(nats) = to_nats(config, name).await? {
        return Ok(Some(nats));
    }
    let Some(folder) = config.store.folder() else {
        return Ok(None);
    };
    let serve = SocketBus::connect(&folder).await.with_context(|| {
        format!(
            "cannot connect to the `planck serve` of the store in {}",
            folder.display()
        )
    })?;
    Ok(serve.map(|bus| Arc::new(bus) as Arc<dyn Bus>))
}

/// Connects to the configured NATS servers. Returns `None` if none are configured.
pub async fn to_nats(config: &Config, name: &str) -> anyhow::Result<Option<Arc<dyn Bus>>> {
    let Some(options) = node::nats_options(config)? else {
        return Ok(None);
    };
    let options = NatsOptions {
        name: name.into(),
        ..options
    };
    Ok(Some(Arc::new(NatsBus::connect(options).await?)))
}
