//! The parts of the node that all its actors share.

use std::{path::PathBuf, sync::Arc, time::Duration};

use planck_common::{AgentId, InputId, NodeId, SessionId, TeamId, spec::SessionLimits};

use tokio::time::Instant;

use super::{Hosting, activity::ActivityCounts, queues::Queues, toolboxes::Toolboxes};
use crate::{agent::Settings, bus::Bus};
use planck_cluster::permit::Permit;
use planck_providers::Llm;
use planck_store::SessionStore;
use planck_toolbox::CallBounds;

/// The services and settings of the node that its actors use.
pub struct ActorContext {
    pub node: NodeId,
    pub store: Arc<dyn SessionStore>,
    pub queues: Queues,
    pub bus: Arc<dyn Bus>,
    pub models: Arc<Llm>,
    pub tools: Toolboxes,
    /// The limits on the tool calls of each agent.
    pub calls: CallBounds,
    pub notifier: Arc<dyn PeerNotifier>,
    pub settings: Settings,
    /// How long an agent is idle before it is parked.
    pub park_after: Duration,
    pub activity: ActivityCounts,
    /// The permit that an actor needs before it begins new work.
    pub permit: Permit,
}

/// The identity of an agent: its session, its id, and the epoch of its lease.
#[derive(Debug, Clone)]
pub struct ActorIdentity {
    pub session: Arc<SessionContext>,
    pub agent: AgentId,
    pub epoch: i64,
    /// When tools may start at the earliest, or `None` if they may start immediately.
    pub tools_from: Option<Instant>,
}

/// The data of a session that all its agents need.
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
    /// The root folder of the workspace, outside of which tools must not go.
    pub root: PathBuf,
    pub limits: SessionLimits,
}

/// Receives those events of the agents on this node that concern other agents or other parts of the
/// node.
pub trait PeerNotifier: Send + Sync {
    /// Called when these inputs have outcomes. Each input comes with the agent that may be waiting
    /// for the outcome, if there is one.
    fn settled(&self, identity: &ActorIdentity, inputs: Vec<(InputId, Option<AgentId>)>);
    /// Called when these agents of the session received an input.
    fn wake(&self, identity: &ActorIdentity, agents: Vec<AgentId>);
    /// Called when an agent starts on this node.
    fn started(&self, hosting: &Hosting);
    /// Called when an agent of the session was stopped on this node because the store refused its
    /// data. If the agent is a worker, its orchestrator must be informed.
    fn gave_up(&self, session: &SessionId);
    /// Called when an agent is no longer on this node, or was started again under another
    /// incarnation of its team.
    fn gone(&self, hosting: &Hosting);
}
