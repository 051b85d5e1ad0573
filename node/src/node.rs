//! A node: builds every part in order, joins them by handles, and runs until it is shut down.

mod assemble;
mod belonging;
mod links;
mod teams;
mod toolsmith;
mod vitals;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use planck_common::{
    NodeId, Timestamp,
    command::{NodeInfo, NodeState, TeamRow},
    reply::{Code, Refusal},
    spec::SessionLimits,
};
use serde_json::{Map, Value};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use assemble::{AssemblyError, nats, open, open_on};
pub(crate) use assemble::{
    Inventory, StoreTrial, default_model, look, prefix, sandbox, sqlite_options, try_store,
};
pub use belonging::Joining;

use self::belonging::Belonging;
use crate::{
    actor::{
        Host, Parts, activity::Activity, queues::Queues, runtimes::Runtimes, waiters::Waiters,
    },
    agent::Settings,
    bus::{Bus, Serving},
    gateway,
    llm::Llm,
    peers::Peers,
    project::Source,
    session::{births::Births, chores::Chores, door::Door, workspace::Workspaces},
    sidecar::Sidecars,
    skill::Skills,
    store::SessionStore,
    team::{self, context::NO_ADDRESS},
    telemetry,
    tools::{Bounds, Catalogue},
};

/// How long a node that leaves waits for what it ends.
const LEAVE: Duration = Duration::from_secs(10);

/// What a node stands on.
pub struct Foundations {
    pub id: NodeId,
    pub store: Arc<dyn SessionStore>,
    pub bus: Arc<dyn Bus>,
    pub models: Arc<Llm>,
    pub tools: Catalogue,
    pub skills: Skills,
    pub sidecars: Sidecars,
    pub workspaces: Workspaces,
    pub teams: Teams,
    pub runtimes: Runtimes,
    /// `None`: it works alone.
    pub joining: Option<Joining>,
    pub settings: NodeSettings,
}

/// Where teams come from.
pub struct Teams {
    /// What they are resolved against, but for the place they start in.
    pub context: team::Context,
    /// Folders of templates.
    pub sources: Vec<Source>,
    /// The user's own folder: he consents to the addresses in its templates.
    pub own: PathBuf,
    /// Whether `spawn_agent` takes a `base_url`.
    pub offers_addresses: bool,
}

/// The numbers and names of a node.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    pub name: String,
    pub labels: Map<String, Value>,
    /// No NATS: no other process reaches it.
    pub alone: bool,
    /// How many agents it hosts at most.
    pub capacity: u32,
    pub agents: Settings,
    /// For sessions that name none.
    pub session_limits: SessionLimits,
    /// The largest prompt, as JSON in bytes.
    pub max_prompt: u64,
    /// What bounds each agent's calls.
    pub calls: Bounds,
    pub park_after: Duration,
    /// Closed sessions not written to for so long are removed.
    pub retention: Option<Duration>,
    pub drain_timeout: Duration,
    /// How often it looks for what nobody looks after.
    pub sweep_every: Duration,
}

/// A running node.
pub struct Node {
    own: Weak<Self>,
    id: NodeId,
    parts: Arc<Parts>,
    host: Host,
    notes: Notes,
    workspaces: Workspaces,
    teams: Teams,
    settings: NodeSettings,
    tasks: TaskTracker,
    stop: CancellationToken,
    belonging: Belonging,
    peers: Peers,
}

/// What a node knows that is in no table: since when it runs, who waits here, who is on the way in,
/// what is to be finished.
struct Notes {
    started_at: Timestamp,
    waiters: Waiters,
    door: Door,
    births: Births,
    chores: Chores,
}

impl Notes {
    fn begin() -> Self {
        Self {
            started_at: Timestamp::now(),
            waiters: Waiters::default(),
            door: Door::default(),
            births: Births::default(),
            chores: Chores::default(),
        }
    }
}

/// A node in service: it answers commands, and looks after what nobody looks after.
pub struct Running {
    node: Arc<Node>,
    service: Box<dyn Serving>,
}

impl Node {
    /// Joins the parts; nothing runs yet.
    pub fn new(foundations: Foundations) -> Arc<Self> {
        Arc::new_cyclic(|own: &Weak<Self>| {
            let Foundations {
                id,
                store,
                bus,
                models,
                tools,
                skills,
                sidecars,
                workspaces,
                teams,
                runtimes,
                joining,
                settings,
            } = foundations;
            let belonging = Belonging::new(joining, &id, &store);
            let parts = Arc::new(Parts {
                node: id.clone(),
                queues: Queues::new(Arc::clone(&store), id.clone()),
                tools: Arc::new(toolsmith::NodeTools::new(
                    own,
                    tools,
                    skills,
                    sidecars,
                    teams.offers_addresses,
                )),
                links: Arc::new(links::NodeLinks::new(own.clone())),
                settings: settings.agents.clone(),
                calls: settings.calls,
                park_after: settings.park_after,
                activity: Activity::default(),
                permit: belonging.permit.clone(),
                bus: Arc::clone(&bus),
                store,
                models,
            });
            Self {
                own: own.clone(),
                peers: Peers::new(Arc::clone(&parts.bus), Arc::clone(&belonging.liveness)),
                host: Host::new(Arc::clone(&parts), runtimes),
                id,
                parts,
                notes: Notes::begin(),
                workspaces,
                teams,
                settings,
                tasks: TaskTracker::new(),
                stop: CancellationToken::new(),
                belonging,
            }
        })
    }

    /// Joins its cluster, and begins to answer and to sweep.
    pub async fn run(self: Arc<Self>) -> Result<Running, AssemblyError> {
        self.join().await?;
        let service = self
            .bus()
            .serve(&self.id, gateway::answer(Arc::clone(&self)))
            .await?;
        self.tasks
            .spawn(Arc::clone(&self).keep_sweeping(self.stop.clone()));
        if !self.settings.alone {
            self.tasks
                .spawn(Arc::clone(&self).keep_looking_for_sidecars());
        }
        let own: Weak<Self> = Arc::downgrade(&self);
        telemetry::vitals::register(own);
        tracing::info!(node = %self.id, name = self.settings.name, "the node is in service");
        Ok(Running {
            node: self,
            service,
        })
    }

    async fn keep_looking_for_sidecars(self: Arc<Self>) {
        let changed = || {
            let host = self.host.clone();
            self.tasks.spawn(async move { host.tools_changed().await });
        };
        self.stop
            .run_until_cancelled(self.sidecars().keep_looking(changed))
            .await;
    }

    /// For tasks that outlive a call.
    pub(crate) fn own(&self) -> Option<Arc<Self>> {
        self.own.upgrade()
    }

    pub fn id(&self) -> &NodeId {
        &self.id
    }

    pub(crate) fn draining(&self) -> &CancellationToken {
        self.parts.permit.draining()
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn store(&self) -> &Arc<dyn SessionStore> {
        &self.parts.store
    }

    pub fn bus(&self) -> &Arc<dyn Bus> {
        &self.parts.bus
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    pub fn models(&self) -> &Llm {
        &self.parts.models
    }

    pub(crate) fn sidecars(&self) -> &Sidecars {
        self.parts.tools.sidecars()
    }

    pub(crate) fn waiters(&self) -> &Waiters {
        &self.notes.waiters
    }

    pub(crate) fn workspaces(&self) -> &Workspaces {
        &self.workspaces
    }

    pub(crate) fn chores(&self) -> &Chores {
        &self.notes.chores
    }

    pub(crate) fn door(&self) -> &Door {
        &self.notes.door
    }

    pub(crate) fn births(&self) -> &Births {
        &self.notes.births
    }

    pub(crate) fn team_sources(&self) -> &[Source] {
        &self.teams.sources
    }

    pub(crate) fn settings(&self) -> &NodeSettings {
        &self.settings
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// What a team is resolved against, with the instructions of its directory.
    pub(crate) fn context(&self, source: String, instructions: Option<String>) -> team::Context {
        team::Context {
            source,
            agents_md: instructions,
            ..self.teams.context.clone()
        }
    }

    /// Refuses an address that the configuration does not have.
    pub(crate) fn check_address(&self, url: &str) -> Result<(), Refusal> {
        let known = self.teams.context.models.addresses.as_ref();
        match known.is_none_or(|known| known.allow(url)) {
            true => Ok(()),
            false => Err(Refusal::new(
                Code::Denied,
                format!("base_url `{url}` is not an address that this node may ask; {NO_ADDRESS}"),
            )),
        }
    }

    /// Whether a template lies in the user's own folder, or is a project's, whose content he
    /// trusts.
    pub(crate) fn is_own_template(&self, file: &Path) -> bool {
        if self
            .team_sources()
            .iter()
            .any(|source| source.project().is_some() && file.starts_with(source.dir()))
        {
            return true;
        }
        let whole = |path: &Path| path.canonicalize().ok();
        whole(file)
            .zip(whole(&self.teams.own))
            .is_some_and(|(file, own)| file.starts_with(own.join("teams")))
    }

    /// The team templates of this node; broken ones are left out.
    pub(crate) fn team_rows(&self) -> Vec<TeamRow> {
        let templates = team::list(&self.teams.sources)
            .into_iter()
            .filter_map(|(_, template)| template.ok());
        templates.map(|template| template.row()).collect()
    }

    fn state(&self) -> NodeState {
        if self.is_suspended() {
            NodeState::Suspended
        } else if self.draining().is_cancelled() {
            NodeState::Draining
        } else {
            NodeState::Alive
        }
    }

    pub fn info(&self) -> NodeInfo {
        let (agents, running) = self.host.load();
        NodeInfo {
            id: self.id.clone(),
            name: self.settings.name.clone(),
            state: self.state(),
            version: env!("CARGO_PKG_VERSION").into(),
            labels: self.settings.labels.clone(),
            capacity: self.settings.capacity,
            agents: u32::try_from(agents)
                .unwrap_or(u32::MAX)
                .saturating_add(self.notes.door.arriving()),
            running: u32::try_from(running).unwrap_or(u32::MAX),
            workspaces: self.workspaces.names(),
            providers: self.models().available(),
            started_at: self.notes.started_at,
            silent_ms: 0,
        }
    }
}

impl Running {
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Returns, with the reason, when this node must end at once: it is out of its cluster and has
    /// stopped what ran on it.
    pub async fn must_end(&self) -> String {
        self.node.must_end().await
    }

    /// Returns when somebody asks this node to drain, with how long it may take.
    pub async fn must_drain(&self) -> Duration {
        self.node.must_drain().await
    }

    /// Leaves: no new work, what runs goes on elsewhere within a time, the rest stays in the store
    /// for whoever takes it up, and nothing of it runs on here.
    pub async fn shut_down(self, patience: Duration) {
        let Self { node, service } = self;
        service.leave_queue().await;
        node.announce_leave();
        node.drain(patience).await;
        node.stop.cancel();
        node.host.close();
        let ended = async {
            node.release_idle().await;
            node.host.shut_down().await;
            service.stop().await;
            node.tasks.close();
            node.tasks.wait().await;
        };
        if tokio::time::timeout(LEAVE, ended).await.is_err() {
            tracing::warn!("some work did not end in time; it ends with the process");
        }
        node.leave_cluster().await;
        let _ = node.bus().flush(Duration::from_secs(1)).await;
        node.store().close().await;
    }
}
