//! What actors get from the node: its services, the sessions of their agents, and how each agent
//! begins.

use std::{path::PathBuf, sync::Arc, time::Duration};

use planck_common::{
    AgentId, InputId, NodeId, SessionId, TeamId, event::Event, spec::SessionLimits,
};

use tokio::time::Instant;

use super::{activity::ActivityCounts, saving::Queues, toolboxes::Toolboxes};
use crate::{
    agent::{Memory, OpenTurn, Settings},
    bus::Bus,
};
use planck_cluster::permit::Permit;
use planck_providers::Llm;
use planck_store::{AgentRecord, SessionStore};
use planck_toolbox::{CallBounds, Toolbox};

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

/// An agent whose lease this node holds.
#[derive(Clone)]
pub struct Hosting {
    pub session: Arc<SessionContext>,
    pub agent: AgentId,
    pub epoch: i64,
    pub opening: Opening,
    /// The time before which no tool may start, because tools that a dead node started may still
    /// run.
    pub tools_from: Option<Instant>,
}

/// How the next task of an agent begins. The values apply to that task only.
#[derive(Clone, Default)]
pub struct Opening {
    /// The events that the task writes to the agent's log first.
    pub events: Vec<Event>,
    pub open_turn: OpenTurn,
    /// The tools that the agent had when it was parked, if they may have changed since.
    pub had: Option<Arc<Toolbox>>,
    /// The agent's record and memory, if they are known and need not be read from the store.
    pub known: Option<Box<(AgentRecord, Memory)>>,
}

impl Opening {
    /// Returns an opening that writes this event to the agent's log and then continues the agent
    /// where it was.
    pub fn with(event: Event) -> Self {
        Self {
            events: vec![event],
            ..Self::default()
        }
    }
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
