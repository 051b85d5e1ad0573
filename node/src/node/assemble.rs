//! Builds a node from a configuration and starts it, with its connection to NATS.

mod models;
#[cfg(all(test, any(debug_assertions, feature = "simulation")))]
#[allow(
    clippy::unwrap_used,
    reason = "a simulation ends at the first surprise"
)]
pub(crate) mod simulated;
mod store;
mod tools;

use std::sync::Arc;

use planck_cluster::{
    decisions::Decisions,
    registry::ClusterRegistry,
    thread::{JoinError, MemberLink},
    view::ClusterView,
};
use planck_common::{NodeId, inbox::InboxPrefix, spec::ModelRef, subject::Prefix};
use planck_providers::{Llm, Provider};
use planck_store::{SessionStore, StoreError};
use planck_telemetry::take_node_id;
use planck_toolbox::{
    BadTool, ReaperHeartbeat, Tool,
    project::{NameClash, SourcePart},
    skill::Skills,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tools::NodeTools;

use super::{ClusterHandle, Joining, Node, NodeNotifier, RunningNode, mcp::McpServers};
use crate::{
    actor::{ActivityCounts, ActorContext, Host, Toolboxes, runtimes::Runtimes, saving::Queues},
    agent,
    bus::{self, Bus, BusError, MemoryBus, MemoryHub, NatsBus, NatsOptions},
    compact,
    config::Config,
    handles::ServiceHandles,
    lookup::Lookup,
    peers::Peers,
    services::{Services, ServicesSettings},
    sessions::SessionsLimits,
    sidecar::{SidecarSettings, Sidecars},
    takeover::TakeoverSettings,
    team::{KnownModels, TeamContext, TeamLibrary},
    team_tools,
    workspace::Workspaces,
};

pub use models::{ModelTrial, try_out as try_models};
pub use store::{StoreTrial, look, sqlite as sqlite_options, take_answers, try_out as try_store};
pub use tools::{Inventory, limits, sandbox, sandbox_with};

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

/// The parts that a node is built from.
pub(crate) struct NodeParts {
    pub(crate) id: NodeId,
    pub(crate) store: Arc<dyn SessionStore>,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) models: Arc<Llm>,
    pub(crate) toolboxes: Toolboxes,
    pub(crate) workspaces: Workspaces,
    pub(crate) library: TeamLibrary,
    pub(crate) runtimes: Runtimes,
    /// The parts for joining the cluster, or `None` if the node works without a cluster.
    pub(crate) joining: Option<Joining>,
    pub(crate) mcp: McpServers,
    /// Whether the processes of tools have the network.
    pub(crate) tools_have_network: bool,
}

/// Builds a node and starts it. If NATS is not configured, the node uses a bus in memory.
pub async fn open(config: &Config) -> Result<RunningNode, AssemblyError> {
    let connection = connect_nats(config).await?;
    open_connected(config, connection, false).await
}

/// Builds and starts a node that works only for the person at the terminal of this process. This
/// person can be asked to let a command out of the sandbox. Over NATS others could answer.
pub async fn open_attended(config: &Config) -> Result<RunningNode, AssemblyError> {
    let connection = connect_nats(config).await?;
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
    let connection = connect_nats(config).await?;
    let tools = tools::embedded(config, additions.tools, additions.files)?;
    let names = tools.catalogue.names();
    let models = Llm::new(models::options(config)).with_in_process(additions.provider);
    let id = take_node_id();
    let store = store::open(config, &id).await?;
    let workspaces = workspaces(config).only_named();
    let models = Arc::new(models);
    let running = assemble(config, connection, (id, store), tools, models, workspaces).await?;
    Ok((running, names))
}

async fn open_connected(
    config: &Config,
    connection: NodeConnection,
    is_attended: bool,
) -> Result<RunningNode, AssemblyError> {
    let id = take_node_id();
    // The trial of the sandbox waits for a process, and the store is opened meanwhile.
    let (launching, store) = tokio::join!(
        Box::pin(tools::try_launching(config)),
        store::open(config, &id)
    );
    let store = store?;
    let tools = tools::build(
        config,
        &connection.bus,
        launching,
        crate::baselines::wall(&store),
        is_attended,
    )?;
    let models = Arc::new(Llm::new(models::options(config)));
    let workspaces = workspaces(config);
    assemble(config, connection, (id, store), tools, models, workspaces).await
}

async fn assemble(
    config: &Config,
    connection: NodeConnection,
    (id, store): (NodeId, Arc<dyn SessionStore>),
    tools: NodeTools,
    models: Arc<Llm>,
    workspaces: Workspaces,
) -> Result<RunningNode, AssemblyError> {
    let NodeConnection { bus, registry } = connection;
    let sidecars = Sidecars::new(
        Arc::clone(&bus),
        tools.catalogue.clone(),
        SidecarSettings {
            own: tools.mcp.names(),
            ..tools::sidecars(config)?
        },
    );
    let parts = NodeParts {
        library: library(config, &tools.skills, &models, tools.clashes),
        joining: joining(config, tools.heartbeat, registry)?,
        runtimes: runtimes(config)?,
        toolboxes: Toolboxes {
            catalogue: tools.catalogue,
            skills: tools.skills,
            sidecars,
            listed: config.tools.listed,
        },
        mcp: tools.mcp,
        tools_have_network: tools.have_network,
        id,
        store,
        bus,
        models,
        workspaces,
    };
    build(config, parts).run().await
}

/// Builds a node with its services, without starting anything.
pub(crate) fn build(config: &Config, parts: NodeParts) -> Arc<Node> {
    let NodeParts {
        store,
        bus,
        models,
        joining,
        ..
    } = parts;
    let view = match &joining {
        Some(joining) => {
            let tool_grace = joining.cluster.times().tool_grace;
            ClusterView::of_member(parts.id, Arc::clone(&store), tool_grace)
        }
        None => ClusterView::of_single(parts.id, Arc::clone(&store), config.nats.url.is_none()),
    };
    let sidecars = parts.toolboxes.sidecars.clone();
    let registry = joining.as_ref().map(|joining| joining.registry.clone());
    // The tools of agents call the services, and the services host the agents.
    let services = Arc::new_cyclic(|services| {
        for tool in team_tools::all(services, models::offers_addresses(config)) {
            if let Err(error) = parts.toolboxes.catalogue.add(tool) {
                tracing::error!(%error, "left out a tool between agents");
            }
        }
        let actors = ActorContext {
            node: view.id().clone(),
            queues: Queues::new(Arc::clone(&store), view.id().clone()),
            tools: parts.toolboxes,
            notifier: Arc::new(NodeNotifier(services.clone())),
            settings: agents(config),
            calls: tools::bounds(config),
            park_after: config.node.park_after.0,
            activity: ActivityCounts::default(),
            permit: view.permit().clone(),
            bus: Arc::clone(&bus),
            store: Arc::clone(&store),
            models: Arc::clone(&models),
        };
        let handles = ServiceHandles {
            peers: Arc::new(Peers::new(Arc::clone(&bus), Arc::clone(view.liveness()))),
            lookup: Lookup::new(Arc::clone(&store), parts.workspaces),
            host: Host::new(Arc::new(actors), parts.runtimes),
            decisions: Decisions::new(Arc::clone(&bus), view.id().clone()),
            view: Arc::new(view),
            bus,
            store,
            tasks: TaskTracker::new(),
        };
        let settings = services_settings(config);
        Services::new(handles, models, sidecars, parts.library, registry, settings)
    });
    Arc::new(Node {
        services,
        cluster: ClusterHandle::new(joining),
        mcp: parts.mcp,
        tools_have_network: parts.tools_have_network,
        stop: CancellationToken::new(),
    })
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

/// Returns the model of agents that do not name one: the configured default or, if there is none,
/// the standard model of the first provider that has both a key and a standard model.
pub fn default_model(config: &Config) -> Option<ModelRef> {
    KnownModels::of(config)
        .default
        .or_else(|| models::default(config, &Llm::new(models::options(config))))
}

fn library(config: &Config, skills: &Skills, models: &Llm, clashes: Vec<NameClash>) -> TeamLibrary {
    let mut known = KnownModels::of(config);
    known.default = known.default.or_else(|| models::default(config, models));
    known.addresses = Some(models::addresses(config));
    let servers = config.mcp.0.keys().map(|name| format!("{name}__*"));
    let context = TeamContext {
        source: String::new(),
        models: known,
        limits: config.limits.of_agent(),
        permissions: vec![config.permissions.layer()],
        user_md: None,
        agents_md: None,
        clashes: clashes.into(),
        servers: servers.collect(),
        skills: skills
            .iter()
            .map(|skill| (skill.name.clone(), skill.entry()))
            .collect(),
    };
    TeamLibrary {
        context,
        sources: config.sources(SourcePart::Teams),
        own: config.node.data_dir.clone(),
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

fn agents(config: &Config) -> agent::Settings {
    agent::Settings {
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
    }
}

fn services_settings(config: &Config) -> ServicesSettings {
    let labels = config.node.labels.0.iter();
    ServicesSettings {
        name: name(config),
        labels: labels
            .map(|(name, value)| (name.clone(), value.clone().into()))
            .collect(),
        capacity: config.node.capacity,
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

/// The bus of a node, and the registry if the node joins a cluster.
struct NodeConnection {
    bus: Arc<dyn Bus>,
    registry: Option<ClusterRegistry>,
}

/// Connects to NATS. If NATS is not configured, returns a bus in memory.
async fn connect_nats(config: &Config) -> Result<NodeConnection, AssemblyError> {
    let Some(options) = nats_options(config)? else {
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
fn joining(
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
        reapers: Arc::new(heartbeat),
    };
    Ok(nats_options(config)?
        .zip(heartbeat)
        .zip(registry)
        .map(joining))
}

/// Returns the options of the connection to NATS, or `None` if NATS is not configured.
pub fn nats_options(config: &Config) -> Result<Option<NatsOptions>, AssemblyError> {
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
