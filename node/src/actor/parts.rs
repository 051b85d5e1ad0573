//! What every actor of a node shares.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use planck_common::{
    AgentId, InputId, NodeId, SessionId, TeamId,
    spec::{AgentSpec, SessionLimits},
};

use tokio::time::Instant;

use super::{activity::Activity, host::Hosting, queues::Queues};
use crate::{
    agent::Settings,
    bus::Bus,
    llm::Llm,
    permit::Permit,
    sidecar::Sidecars,
    store::SessionStore,
    tools::{Bounds, Toolbox},
};

/// The rest of the node, as an actor sees it.
pub struct Parts {
    pub node: NodeId,
    pub store: Arc<dyn SessionStore>,
    pub queues: Queues,
    pub bus: Arc<dyn Bus>,
    pub models: Arc<Llm>,
    pub tools: Arc<dyn Toolsmith>,
    /// What bounds each agent's calls.
    pub calls: Bounds,
    pub links: Arc<dyn Links>,
    pub settings: Settings,
    /// An agent idle for so long leaves memory but for its place in the host.
    pub park_after: Duration,
    pub activity: Activity,
    /// Asked before anything new is begun.
    pub permit: Permit,
}

/// Who an agent is, for its tools.
#[derive(Debug, Clone)]
pub struct Identity {
    pub session: Arc<SessionContext>,
    pub agent: AgentId,
    pub epoch: i64,
    /// No tool starts before.
    pub tools_from: Option<Instant>,
}

/// What all agents of a session share, as far as their work needs it.
#[derive(Debug)]
pub struct SessionContext {
    pub id: SessionId,
    pub team: TeamId,
    pub lead: AgentId,
    /// The lead's incarnation, under which members are born and claimed.
    pub incarnation: i64,
    /// By its name.
    pub workspace: String,
    /// The working directory, absolute.
    pub dir: PathBuf,
    /// What tools may touch: the workspace.
    pub root: PathBuf,
    pub limits: SessionLimits,
}

/// How news reaches other agents, wherever they are.
pub trait Links: Send + Sync {
    /// These inputs have their outcome; their senders may be waiting.
    fn settled(&self, identity: &Identity, inputs: Vec<(InputId, Option<AgentId>)>);
    /// These agents of the session got an input.
    fn wake(&self, identity: &Identity, agents: Vec<AgentId>);
    /// An agent is on this node from now on.
    fn arrived(&self, hosting: &Hosting);
    /// A worker of the session was stopped here without anybody asking for it: its lead should hear
    /// of that.
    fn gave_up(&self, session: &SessionId);
    /// It is not any more.
    fn departed(&self, hosting: &Hosting);
}

/// Makes toolboxes of specs: built-in, external and inter-agent tools and those of sidecars alike.
#[async_trait]
pub trait Toolsmith: Send + Sync {
    /// The tools that the agent is to have, and the names among them that are not known here.
    fn toolbox(&self, spec: &AgentSpec) -> (Toolbox, Vec<String>);

    /// Who offers tools and compactors.
    fn sidecars(&self) -> &Sidecars;

    /// Whether the agent names tools that are not the node's own: they come and go.
    fn may_change(&self, spec: &AgentSpec) -> bool;

    /// Returns when it is known which tools there are, if the agent names any that nobody has
    /// offered yet.
    async fn ready_for(&self, spec: &AgentSpec);
}
