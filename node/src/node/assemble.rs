//! From a configuration to a node in service.

mod inventory;
mod models;
mod store;
mod tools;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use tools::Workshop;

pub(crate) use inventory::Inventory;
pub(crate) use store::inspect as inspect_store;
pub(crate) use tools::sandbox;

use planck_common::{NodeId, subject::Prefix};

use super::{Foundations, Node, NodeSettings, Running, Teams};
use crate::{
    actor::runtimes::Runtimes,
    agent, bus,
    bus::{Bus, BusError, MemoryBus, MemoryHub, NatsBus, NatsOptions},
    compact,
    config::Config,
    llm::{self, Llm},
    session::workspace::Workspaces,
    skill::Skills,
    store::StoreError,
    team::{Context, KnownModels},
};

/// An agent idle for so long leaves memory.
const PARK_AFTER: Duration = Duration::from_secs(60);

/// Why a node could not be built: what is wrong, and the way out.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    #[error("{0}")]
    Config(String),
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot start the agents' threads: {0}")]
    Threads(std::io::Error),
}

/// Builds a node and puts it into service; on the memory bus where no NATS is configured.
pub async fn open(config: &Config) -> Result<Running, AssemblyError> {
    let bus: Arc<dyn Bus> = match nats(config)? {
        Some(options) => Arc::new(NatsBus::connect(options).await?),
        None => Arc::new(MemoryBus::new(Arc::new(MemoryHub::default()))),
    };
    open_on(config, bus).await
}

/// The same on a bus that is there.
pub async fn open_on(config: &Config, bus: Arc<dyn Bus>) -> Result<Running, AssemblyError> {
    let id = NodeId::mint();
    let store = store::open(config, &id).await?;
    let models = Arc::new(Llm::new(models::options(config)));
    let Workshop { catalogue, skills, heart } = tools::build(config)?;
    let foundations = Foundations {
        workspaces: Workspaces::new(config.workspaces.0.clone(), &host_name()),
        teams: Teams { context: teams(config, &skills, &models), dirs: folders(&config.teams.dirs) },
        runtimes: runtimes(config)?,
        settings: settings(config),
        tools: catalogue,
        skills,
        heart,
        id,
        store,
        bus,
        models,
    };
    Ok(Node::new(foundations).run().await?)
}

/// How to reach NATS; `None` where it is not configured.
pub fn nats(config: &Config) -> Result<Option<NatsOptions>, AssemblyError> {
    let section = &config.nats;
    let Some(url) = &section.url else { return Ok(None) };
    let prefix = Prefix::parse(&section.subject_prefix).map_err(|error| AssemblyError::Config(error.to_string()))?;
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
        connect_timeout: section.connect_timeout.0,
        ..NatsOptions::new(url.reveal())
    }))
}

/// The folders of a setting, `~` resolved. One that is named twice, as the project's and the user's are in the home
/// folder, is one.
pub(crate) fn folders(dirs: &[PathBuf]) -> Vec<PathBuf> {
    let mut known = BTreeSet::new();
    let is_new = |dir: &PathBuf| known.insert(std::path::absolute(dir).unwrap_or_else(|_| dir.clone()));
    dirs.iter().map(|dir| expand(dir)).filter(is_new).collect()
}

fn expand(path: &std::path::Path) -> PathBuf {
    match (path.strip_prefix("~"), std::env::var_os("HOME")) {
        (Ok(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => path.to_path_buf(),
    }
}

fn teams(config: &Config, skills: &Skills, models: &Llm) -> Context {
    let mut known = KnownModels::of(config);
    known.default = known.default.or_else(|| models::default(config, models));
    Context {
        source: String::new(),
        models: known,
        limits: config.limits.of_agent(),
        agents_md: None,
        tools: None,
        skills: skills.iter().map(|skill| (skill.name.clone(), skill.entry())).collect(),
    }
}

fn runtimes(config: &Config) -> Result<Runtimes, AssemblyError> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = config.node.threads.map_or(cores, |threads| threads as usize);
    Runtimes::start(threads, || llm::client(&llm::ClientOptions::default())).map_err(AssemblyError::Threads)
}

fn settings(config: &Config) -> NodeSettings {
    NodeSettings {
        name: name(config),
        alone: config.nats.url.is_none(),
        labels: config.node.labels.0.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect(),
        capacity: config.node.capacity,
        agents: agent::Settings {
            loop_guard: agent::setup::LoopLimits { note_from: config.tools.repeat_note, refuse_from: config.tools.repeat_refuse },
            compaction: compact::Rules { ratio: config.compaction.ratio, keep_recent: config.compaction.keep_recent as usize },
            max_requests_per_turn: config.limits.max_requests_per_turn,
        },
        session_limits: config.limits.of_session(),
        calls: tools::bounds(config),
        park_after: PARK_AFTER,
        retention: config.store.retention.as_ref().map(|period| period.0),
        drain_timeout: config.node.drain_timeout.0,
    }
}

fn name(config: &Config) -> String {
    config.node.name.clone().unwrap_or_else(host_name)
}

pub(crate) fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    if name.is_empty() { "localhost".into() } else { name }
}
