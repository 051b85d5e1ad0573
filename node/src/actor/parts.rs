//! The parts that all actors of a node share.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use planck_common::{
    AgentId, InputId, NodeId, SessionId, TeamId,
    spec::{AgentSpec, SessionLimits},
};

use tokio::time::Instant;

use super::{Hosting, activity::ActivityCounts, queues::Queues};
use crate::{
    agent::Settings,
    bus::Bus,
    llm::Llm,
    permit::Permit,
    sidecar::Sidecars,
    store::SessionStore,
    tools::{CallBounds, Toolbox},
};

/// The rest of the node, as an actor sees it.
pub struct ActorContext {
    pub node: NodeId,
    pub store: Arc<dyn SessionStore>,
    pub queues: Queues,
    pub bus: Arc<dyn Bus>,
    pub models: Arc<Llm>,
    pub tools: Arc<dyn ToolboxFactory>,
    /// The limits of each agent's calls.
    pub calls: CallBounds,
    pub notifier: Arc<dyn PeerNotifier>,
    pub settings: Settings,
    /// How long an agent must be idle before it is parked.
    pub park_after: Duration,
    pub activity: ActivityCounts,
    /// The permit that is required before new work begins.
    pub permit: Permit,
}

/// The identity of an agent, for its tools.
#[derive(Debug, Clone)]
pub struct ActorIdentity {
    pub session: Arc<SessionContext>,
    pub agent: AgentId,
    pub epoch: i64,
    /// The time before which no tool may start.
    pub tools_from: Option<Instant>,
}

/// The part of a session's data that its agents share and that their work needs.
#[derive(Debug)]
pub struct SessionContext {
    pub id: SessionId,
    pub team: TeamId,
    pub lead: AgentId,
    /// The team's incarnation, under which members are created and claimed.
    pub incarnation: i64,
    /// The name of the workspace.
    pub workspace: String,
    /// The working directory, as an absolute path.
    pub dir: PathBuf,
    /// The folder that tools may access: the workspace.
    pub root: PathBuf,
    pub limits: SessionLimits,
}

/// Receives the events of the agents on this node that other agents or services need.
pub trait PeerNotifier: Send + Sync {
    /// Called when these inputs have their outcome; their senders may be waiting.
    fn settled(&self, identity: &ActorIdentity, inputs: Vec<(InputId, Option<AgentId>)>);
    /// Called when these agents of the session received an input.
    fn wake(&self, identity: &ActorIdentity, agents: Vec<AgentId>);
    /// Called when an agent starts on this node.
    fn arrived(&self, hosting: &Hosting);
    /// Called when a worker of the session was stopped here because of a failure, so that its
    /// orchestrator can be informed.
    fn gave_up(&self, session: &SessionId);
    /// Called when an agent is no longer on this node.
    fn departed(&self, hosting: &Hosting);
}

/// Builds toolboxes from specs: of built-in, external and inter-agent tools, and those of sidecars.
#[async_trait]
pub trait ToolboxFactory: Send + Sync {
    /// Returns the tools of an agent, and the names among them that are unknown here.
    fn toolbox(&self, spec: &AgentSpec) -> (Toolbox, Vec<String>);

    /// Returns the sidecars, which offer tools and compactors.
    fn sidecars(&self) -> &Sidecars;

    /// Returns whether the agent names tools that are not the node's own and can therefore appear
    /// and disappear.
    fn may_change(&self, spec: &AgentSpec) -> bool;

    /// Waits until the first search for sidecars is over, if the agent names a tool that is
    /// unknown.
    async fn ready_for(&self, spec: &AgentSpec);
}
