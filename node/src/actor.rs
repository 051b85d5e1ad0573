//! Runs agents on this node. An agent with work has a task, a mailbox, and a `JoinSet` of its
//! running model calls, tool calls, compactions and timers. `host` owns all agents of the node.
//! This file has what actors get from the node: its services, the toolboxes, the sessions of their
//! agents, and how each agent begins.

pub mod host;
mod model_call;
mod run;
pub mod runtimes;
pub mod saving;
mod spans;
mod startup;
mod work;

use std::{
    collections::HashMap,
    hash::Hash,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use planck_cluster::permit::Permit;
use planck_common::{
    AgentId, InputId, NodeId, SessionId, TeamId,
    event::Event,
    spec::{AgentSpec, SessionLimits},
};
use planck_providers::Llm;
use planck_store::{AgentRecord, SessionStore};
use planck_toolbox::{
    CallBounds, Tool, ToolCatalogue, Toolbox,
    outside::OutsideTool,
    skill::{self, Skills},
};
use saving::Queues;
use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};

use crate::{
    agent::{Memory, OpenTurn, Settings, search::TOOL_SEARCH},
    bus::Bus,
    sidecar::Sidecars,
    team,
};

pub use host::{DeliveryOutcome, Host, SpecChange};

/// The maximum number of agents that an operation on many agents handles at once.
///
/// Saves and releases of agents that are handled at once share SQL statements.
pub const AT_ONCE: usize = 128;

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

pub struct Toolboxes {
    pub catalogue: ToolCatalogue,
    pub skills: Skills,
    pub sidecars: Sidecars,
    /// The maximum number of tools that an agent lists without a search, if its spec has none.
    pub listed: usize,
}

impl Toolboxes {
    /// Returns whether the agent's spec names tools that are not the node's own and can therefore
    /// appear or disappear.
    pub fn may_change(&self, spec: &AgentSpec) -> bool {
        let mut names = spec.tools.iter().map(String::as_str);
        names.any(|name| {
            let is_of_agent = team::SKILL_TOOLS.contains(&name) || name == TOOL_SEARCH;
            !is_of_agent && !self.catalogue.is_own(name)
        })
    }

    /// Waits until the first search for sidecars has ended if the agent's spec names a tool that is
    /// not the node's own. The wait has a time limit.
    pub async fn ready_for(&self, spec: &AgentSpec) {
        if self.may_change(spec) {
            self.sidecars.looked().await;
        }
    }

    /// Builds the toolbox of an agent. Also returns the names in the agent's spec that no tool on
    /// this node has.
    pub fn toolbox(&self, spec: &AgentSpec) -> (Toolbox, Vec<String>) {
        let (readers, others): (Vec<&str>, Vec<&str>) = spec
            .tools
            .iter()
            .map(String::as_str)
            // An agent that needs the search has it, whether it names it or not.
            .filter(|name| *name != TOOL_SEARCH)
            .partition(|name| team::SKILL_TOOLS.contains(name));
        let most = spec.listed_tools.map_or(self.listed, |most| most as usize);
        let listed = most.saturating_sub(readers.len() + spec.client_tools.len());
        let (toolbox, unknown) = self.catalogue.toolbox(others, listed);
        let unknown = unknown.into_iter().map(|unknown| unknown.name).collect();
        if readers.is_empty() && spec.client_tools.is_empty() {
            return (toolbox, unknown);
        }
        let of_client = spec
            .client_tools
            .iter()
            .map(|tool| Arc::new(OutsideTool::of_client(tool)) as Arc<dyn Tool>);
        let (skills, _) = self.skills.only(spec.skills.iter().map(String::as_str));
        let wanted = |tool: &Arc<dyn Tool>| readers.contains(&tool.spec().name.as_str());
        let own = skill::tools(&skills).into_iter().filter(wanted);
        match toolbox.with(own.chain(of_client)) {
            Ok(toolbox) => (toolbox, unknown),
            Err(error) => {
                tracing::error!(%error, "a tool of the agent has a bad schema");
                (toolbox, unknown)
            }
        }
    }
}

/// The numbers of open turns, queued inputs and active sessions. Actors update these numbers, and
/// heartbeats and metrics read them.
#[derive(Debug, Default)]
pub struct ActivityCounts {
    /// The number of agents whose turn is open.
    running: AtomicUsize,
    /// The number of inputs that wait in the queues of loaded agents.
    queued: AtomicUsize,
    /// The number of open turns of each session that has at least one.
    sessions: Mutex<HashMap<SessionId, usize>>,
}

impl ActivityCounts {
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Returns the number of sessions with an open turn.
    pub fn sessions(&self) -> usize {
        self.sessions_by_turns().len()
    }

    fn turn(&self, session: &SessionId, open: bool) {
        let mut sessions = self.sessions_by_turns();
        if open {
            self.running.fetch_add(1, Ordering::Relaxed);
            *sessions.entry(session.clone()).or_default() += 1;
        } else {
            self.running.fetch_sub(1, Ordering::Relaxed);
            if let Some(turns) = sessions.get_mut(session) {
                *turns -= 1;
                if *turns == 0 {
                    sessions.remove(session);
                }
            }
        }
    }

    /// Updates the number of waiting inputs after an agent's queue changed from `before` to `now`
    /// inputs.
    fn queue(&self, before: usize, now: usize) {
        if now > before {
            self.queued.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.queued.fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    fn sessions_by_turns(&self) -> MutexGuard<'_, HashMap<SessionId, usize>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The waiters, by the input or the session whose news they wait for.
#[derive(Debug)]
pub struct Waiters<K: Eq + Hash> {
    waiting: Mutex<HashMap<K, Arc<Notify>>>,
}

/// A registered waiter. It is unregistered when it is dropped.
#[derive(Debug)]
pub struct Waiter<'a, K: Eq + Hash> {
    waiters: &'a Waiters<K>,
    about: K,
    news: Arc<Notify>,
}

impl<K: Eq + Hash> Default for Waiters<K> {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash + Clone> Waiters<K> {
    /// Registers a waiter. The caller must register the waiter before it stores the input or reads
    /// the outcome, because a notification could be missed otherwise.
    pub fn register(&self, about: K) -> Waiter<'_, K> {
        let news = Arc::clone(self.lock().entry(about.clone()).or_default());
        Waiter {
            waiters: self,
            about,
            news,
        }
    }

    /// Notifies the waiters that there is an outcome now.
    pub fn settle(&self, about: &K) {
        if let Some(news) = self.lock().get(about) {
            news.notify_waiters();
            news.notify_one();
        }
    }
}

impl<K: Eq + Hash> Waiters<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Arc<Notify>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Waiter<'_, K> {
    /// Waits for a notification that an outcome may be available. A notification after this call is
    /// not missed, even if the future is awaited later.
    pub fn news(&self) -> Notified<'_> {
        self.news.notified()
    }
}

impl<K: Eq + Hash> Drop for Waiter<'_, K> {
    fn drop(&mut self) {
        let mut waiting = self.waiters.lock();
        // The map and this waiter hold one reference each. If there are no more, no other waiter is
        // registered for this.
        if Arc::strong_count(&self.news) <= 2 {
            waiting.remove(&self.about);
        }
    }
}

#[cfg(test)]
mod tests {
    use planck_common::InputId;

    use super::*;

    #[test]
    fn a_session_is_active_while_any_of_its_turns_is_open() {
        let (activity, session) = (ActivityCounts::default(), SessionId::parse("s").unwrap());
        activity.turn(&session, true);
        activity.turn(&session, true);
        activity.turn(&session, false);
        assert_eq!((activity.running(), activity.sessions()), (1, 1));
        activity.turn(&session, false);
        assert_eq!((activity.running(), activity.sessions()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_notification_reaches_the_remaining_waiter() {
        let (waiters, input) = (Waiters::default(), InputId::parse("q").unwrap());
        let (gone, left) = (
            waiters.register(input.clone()),
            waiters.register(input.clone()),
        );
        drop(gone);
        waiters.settle(&input);
        tokio::time::timeout(std::time::Duration::from_secs(1), left.news())
            .await
            .unwrap();
        drop(left);
        assert!(waiters.lock().is_empty());
    }
}
