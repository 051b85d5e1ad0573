//! Builds a node from a configuration and starts it.

mod inventory;
mod models;
#[cfg(test)]
pub(crate) mod simulated;
mod store;
mod store_service;
mod tools;

use std::sync::Arc;

use tools::NodeTools;

pub use inventory::Inventory;
pub use models::{ModelTrial, try_out as try_models};
pub use store::{StoreTrial, sqlite as sqlite_options, try_out as try_store};
pub use store_service::{look, take_answers};
pub use tools::sandbox;

use planck_common::{NodeId, inbox::InboxPrefix, spec::ModelRef, subject::Prefix};

use super::{Joining, Node, NodeParts, NodeSettings, RunningNode};
use crate::{
    actor::runtimes::Runtimes,
    agent, bus,
    bus::{Bus, BusError, MemoryBus, MemoryHub, NatsBus, NatsOptions},
    compact,
    config::Config,
    placement::LocalSettings,
    services::ServicesSettings,
    sessions::SessionsLimits,
    sidecar::Sidecars,
    takeover::TakeoverSettings,
    team::{KnownModels, TeamContext, TeamLibrary},
    workspace::Workspaces,
};
use planck_cluster::{
    registry::ClusterRegistry,
    thread::{JoinError, MemberLink},
};
use planck_providers::{Llm, Provider};
use planck_store::{SessionStore, StoreError};
use planck_telemetry::instance;
use planck_toolbox::project::{NameClash, SourcePart};
use planck_toolbox::skill::Skills;
use planck_toolbox::{BadTool, ReaperHeartbeat, Tool};

/// Why a node could not be built, and how the user can correct that.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    #[error("{0}")]
    Config(String),
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Join(JoinError),
    #[error("cannot start the agents' threads: {0}")]
    Threads(std::io::Error),
    #[error(transparent)]
    Tool(#[from] BadTool),
}

/// The tools and models that a program adds to the runtime that it embeds.
pub(crate) struct Additions {
    pub(crate) tools: Vec<Arc<dyn Tool>>,
    /// Whether agents get tools for the files of their workspace.
    pub(crate) files: bool,
    /// The provider of models that run in this process.
    pub(crate) provider: Option<Arc<dyn Provider>>,
}

/// The bus of a node, and the registry if the node joins a cluster.
struct NodeConnection {
    bus: Arc<dyn Bus>,
    registry: Option<ClusterRegistry>,
}

/// The store of a node, opened under the node's id.
struct NodeStorage {
    id: NodeId,
    store: Arc<dyn SessionStore>,
}

/// The tools, models and workspaces that the agents of a node can use.
struct AgentResources {
    tools: NodeTools,
    models: Arc<Llm>,
    workspaces: Workspaces,
}

/// Builds a node and starts it. If NATS is not configured, the node uses a bus in memory.
pub async fn open(config: &Config) -> Result<RunningNode, AssemblyError> {
    let connection = connect(config).await?;
    open_connected(config, connection, false).await
}

/// Builds and starts a node that works only for the person at the terminal of this process. This
/// person can be asked to let a command out of the sandbox. Over NATS others could answer.
pub async fn open_attended(config: &Config) -> Result<RunningNode, AssemblyError> {
    let connection = connect(config).await?;
    let is_attended = connection.registry.is_none();
    open_connected(config, connection, is_attended).await
}

/// Builds and starts a node without a cluster on an existing bus.
pub async fn open_on(config: &Config, bus: Arc<dyn Bus>) -> Result<RunningNode, AssemblyError> {
    let connection = NodeConnection {
        bus,
        registry: None,
    };
    open_connected(config, connection, false).await
}

/// Builds and starts a node in the process of another program. The node starts no other processes.
/// Also returns the names of the program's tools and of the tools for files.
pub(crate) async fn open_embedded(
    config: &Config,
    additions: Additions,
) -> Result<(RunningNode, Vec<String>), AssemblyError> {
    let connection = connect(config).await?;
    let tools = tools::embedded(config, additions.tools, additions.files)?;
    let names = tools.catalogue.names();
    let models = Llm::new(models::options(config)).with_in_process(additions.provider);
    let resources = AgentResources {
        tools,
        models: Arc::new(models),
        workspaces: workspaces(config).only_named(),
    };
    let id = instance::take();
    let storage = NodeStorage {
        store: store::open(config, &id).await?,
        id,
    };
    let running = assemble(config, connection, storage, resources).await?;
    Ok((running, names))
}

async fn connect(config: &Config) -> Result<NodeConnection, AssemblyError> {
    let Some(options) = nats(config)? else {
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

async fn open_connected(
    config: &Config,
    connection: NodeConnection,
    is_attended: bool,
) -> Result<RunningNode, AssemblyError> {
    let id = instance::take();
    // The trial of the sandbox waits for a process, and the store is opened meanwhile.
    let (launching, store) = tokio::join!(tools::try_launching(config), store::open(config, &id));
    let store = store?;
    let tools = tools::build(
        config,
        &connection.bus,
        launching,
        crate::baselines::wall(&store),
        is_attended,
    )?;
    let resources = AgentResources {
        tools,
        models: Arc::new(Llm::new(models::options(config))),
        workspaces: workspaces(config),
    };
    assemble(config, connection, NodeStorage { id, store }, resources).await
}

async fn assemble(
    config: &Config,
    connection: NodeConnection,
    storage: NodeStorage,
    resources: AgentResources,
) -> Result<RunningNode, AssemblyError> {
    let NodeStorage { id, store } = storage;
    let NodeConnection { bus, registry } = connection;
    let AgentResources {
        tools,
        models,
        workspaces,
    } = resources;
    let NodeTools {
        catalogue,
        skills,
        heartbeat,
        clashes,
        have_network,
    } = tools;
    let sidecars = Sidecars::new(
        Arc::clone(&bus),
        catalogue.clone(),
        tools::sidecars(config)?,
    );
    let joining = joining(config, heartbeat, registry)?;
    let parts = NodeParts {
        workspaces,
        library: TeamLibrary {
            context: teams(config, &skills, &models, clashes),
            sources: config.sources(SourcePart::Teams),
            own: config.node.data_dir.clone(),
        },
        runtimes: runtimes(config)?,
        settings: NodeSettings {
            tools_have_network: have_network,
            ..settings(config)
        },
        tools: catalogue,
        skills,
        sidecars,
        joining,
        id,
        store,
        bus,
        models,
    };
    Node::new(parts).run().await
}

fn workspaces(config: &Config) -> Workspaces {
    let workspaces = Workspaces::new(config.workspaces.0.clone(), &host_name());
    let takes_paths = config
        .node
        .absolute_dirs
        .unwrap_or_else(|| config.nats.is_on_this_machine());
    if takes_paths {
        workspaces
    } else {
        workspaces.without_paths()
    }
}

/// Returns the parts for joining the cluster, or `None` if NATS is not configured or `registry` is
/// `None`.
fn joining(
    config: &Config,
    heartbeat: Option<ReaperHeartbeat>,
    registry: Option<ClusterRegistry>,
) -> Result<Option<Joining>, AssemblyError> {
    let replicas = config.nats.replicas as usize;
    let (cluster, store_address) = (config.cluster.clone(), config.store.address());
    let joining = |((options, heartbeat), registry)| Joining {
        link: MemberLink::Nats(Box::new(options), replicas),
        cluster,
        registry,
        store_address,
        heartbeat,
    };
    Ok(nats(config)?.zip(heartbeat).zip(registry).map(joining))
}

/// Returns the options of the connection to NATS, or `None` if NATS is not configured.
pub fn nats(config: &Config) -> Result<Option<NatsOptions>, AssemblyError> {
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

/// Returns the model of agents that do not name one: the configured default or, if there is none,
/// the standard model of the first provider that has both a key and a standard model.
pub fn default_model(config: &Config) -> Option<ModelRef> {
    KnownModels::of(config)
        .default
        .or_else(|| models::default(config, &Llm::new(models::options(config))))
}

fn teams(config: &Config, skills: &Skills, models: &Llm, clashes: Vec<NameClash>) -> TeamContext {
    let mut known = KnownModels::of(config);
    known.default = known.default.or_else(|| models::default(config, models));
    known.addresses = Some(models::addresses(config));
    TeamContext {
        source: String::new(),
        models: known,
        limits: config.limits.of_agent(),
        permissions: vec![config.permissions.layer()],
        user_md: None,
        agents_md: None,
        clashes: clashes.into(),
        skills: skills
            .iter()
            .map(|skill| (skill.name.clone(), skill.entry()))
            .collect(),
    }
}

fn runtimes(config: &Config) -> Result<Runtimes, AssemblyError> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = config
        .node
        .threads
        .map_or(cores, |threads| threads as usize);
    let client = models::client(config);
    Runtimes::start(threads, || planck_providers::Clients::new(&client))
        .map_err(AssemblyError::Threads)
}

fn settings(config: &Config) -> NodeSettings {
    NodeSettings {
        is_alone: config.nats.url.is_none(),
        tools_have_network: true,
        offers_addresses: models::offers_addresses(config),
        agents: agent::Settings {
            loop_guard: agent::setup::LoopLimits {
                note_from: config.tools.repeat_note,
                refuse_from: config.tools.repeat_refuse,
            },
            compaction: compact::Rules {
                ratio: config.compaction.ratio,
                keep_recent: config.compaction.keep_recent as usize,
            },
            max_requests_per_turn: config.limits.max_requests_per_turn,
            wait_expires: config.waits.expiry(),
        },
        calls: tools::bounds(config),
        park_after: config.node.park_after.0,
        services: services(config),
    }
}

fn services(config: &Config) -> ServicesSettings {
    let labels = config.node.labels.0.iter();
    ServicesSettings {
        local: LocalSettings {
            name: name(config),
            labels: labels
                .map(|(name, value)| (name.clone(), value.clone().into()))
                .collect(),
            capacity: config.node.capacity,
        },
        takeover: TakeoverSettings {
            sweep_every: config.cluster.sweep.0,
            retention: config.store.retention.as_ref().map(|period| period.0),
            drain_timeout: config.node.drain_timeout.0,
        },
        sessions: SessionsLimits {
            session: config.limits.of_session(),
            max_prompt: config.limits.max_prompt.0,
        },
    }
}

fn name(config: &Config) -> String {
    config.node.name.clone().unwrap_or_else(host_name)
}

pub(crate) fn host_name() -> String {
    let name = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_default();
    if name.is_empty() {
        "localhost".into()
    } else {
        name
    }
}
