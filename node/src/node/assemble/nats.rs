//! The connection of a node to NATS, and its membership in the cluster.

use std::sync::Arc;

use planck_common::{inbox::InboxPrefix, subject::Prefix};

use super::{AssemblyError, Joining, name};
use crate::{
    bus::{self, Bus, MemoryBus, MemoryHub, NatsBus, NatsOptions},
    config::Config,
};
use planck_cluster::{registry::ClusterRegistry, thread::MemberLink};
use planck_toolbox::ReaperHeartbeat;

/// The bus of a node, and the registry if the node joins a cluster.
pub(super) struct NodeConnection {
    pub(super) bus: Arc<dyn Bus>,
    pub(super) registry: Option<ClusterRegistry>,
}

/// Connects to NATS. If NATS is not configured, returns a bus in memory.
pub(super) async fn connect(config: &Config) -> Result<NodeConnection, AssemblyError> {
    let Some(options) = options(config)? else {
        return Ok(NodeConnection {
            bus: Arc::new(MemoryBus::new(MemoryHub::new())),
            registry: None,
        });
    };
    let bus = NatsBus::connect(options).await?;
    bus.check_jetstream().await?;
    if let Some(exposure) = bus.exposure() {
        tracing::warn!("{exposure}");
    }
    let registry = ClusterRegistry::new(Arc::new(bus.records(config.nats.replicas as usize)));
    Ok(NodeConnection {
        bus: Arc::new(bus),
        registry: Some(registry),
    })
}

/// Returns the parts for joining the cluster, or `None` if NATS is not configured or `registry` is
/// `None`.
pub(super) fn joining(
    config: &Config,
    heartbeat: Option<ReaperHeartbeat>,
    registry: Option<ClusterRegistry>,
) -> Result<Option<Joining>, AssemblyError> {
    let replicas = config.nats.replicas as usize;
    let (cluster, store_address) = (config.cluster.clone(), config.store.address());
    let joining = |((nats, heartbeat), registry)| Joining {
        link: MemberLink::Nats(Box::new(nats), replicas),
        cluster,
        registry,
        store_address,
        heartbeat,
    };
    Ok(options(config)?.zip(heartbeat).zip(registry).map(joining))
}

/// Returns the options of the connection to NATS, or `None` if NATS is not configured.
pub fn options(config: &Config) -> Result<Option<NatsOptions>, AssemblyError> {
    let section = &config.nats;
    let Some(url) = &section.url else {
        return Ok(None);
    };
    let prefix = prefix(config)?;
    Ok(Some(NatsOptions {
        name: name(config),
        prefix,
        creds: section.creds.clone(),
        nkey: section.nkey.as_ref().map(|nkey| nkey.reveal().to_owned()),
        tls: bus::nats::TlsOptions {
            required: section.tls_ca.is_some() || section.tls_cert.is_some(),
            ca: section.tls_ca.clone(),
            certificate: section.tls_cert.clone().zip(section.tls_key.clone()),
        },
        inbox_prefix: inbox(&section.inbox_prefix)?,
        reply_prefixes: section
            .reply_prefixes
            .iter()
            .map(|prefix| inbox(prefix))
            .collect::<Result<_, _>>()?,
        connect_timeout: section.connect_timeout.0,
        ..NatsOptions::new(url.reveal())
    }))
}

/// Returns the prefix of all NATS subjects of the cluster.
pub fn prefix(config: &Config) -> Result<Prefix, AssemblyError> {
    Prefix::parse(&config.nats.subject_prefix)
        .map_err(|error| AssemblyError::Config(error.to_string()))
}

fn inbox(prefix: &str) -> Result<InboxPrefix, AssemblyError> {
    InboxPrefix::parse(prefix).map_err(|error| AssemblyError::Config(error.to_string()))
}
