//! All agents of this node. An agent with work has a task. After `park_after` without work, or while
//! it only waits for answers from outside, the agent is parked: only its entry in a map remains. The
//! next message to a parked agent starts a task, which loads the agent from the store.

mod requests;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use planck_common::{AgentId, SessionId, command::AgentState};
use planck_toolbox::Toolbox;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    ActorContext, ActorIdentity, Hosting, Opening, runtimes::Runtimes, startup::ActorStartup,
};
use crate::agent::{OpenTurn, Unstorable};

pub use requests::{Changed, DeliveryOutcome, SpecChange};

pub(super) use requests::{ActorMessage, ActorPause, AnswerSender};

/// The maximum number of messages in the mailbox of an actor. Senders wait when it is full.
const MAILBOX: usize = 64;

/// How long a dropped actor may take to end its work before it is aborted.
const GIVE_UP: Duration = Duration::from_secs(9);

/// A handle to the agents of a node. It is cheap to clone.
#[derive(Clone)]
pub struct Host(Arc<HostInner>);

struct HostInner {
    context: Arc<ActorContext>,
    runtimes: Runtimes,
    tasks: TaskTracker,
    slots: Mutex<BTreeMap<AgentId, HostSlot>>,
    task_numbers: AtomicU64,
    /// Where the store may contain leases of this node whose agents are not in `slots`.
    missing: MissingRecord,
    /// Whether the host starts no more tasks.
    closed: AtomicBool,
}

/// The error if an agent is not on this node, ended before it answered, or cannot be woken because
/// the host is closed.
#[derive(Debug, thiserror::Error)]
#[error("agent {0} is not here")]
pub struct NotHere(pub AgentId);

/// Calls [`Host::may_miss_agents_of`] when it is dropped. See [`Host::taking_leases`].
#[must_use]
pub struct LeaseGuard<'a> {
    host: &'a Host,
    session: SessionId,
}

impl Drop for LeaseGuard<'_> {
    fn drop(&mut self) {
        self.host.may_miss_agents_of(&self.session);
    }
}

impl Host {
    pub fn new(context: Arc<ActorContext>, runtimes: Runtimes) -> Self {
        Self(Arc::new(HostInner {
            context,
            runtimes,
            tasks: TaskTracker::new(),
            slots: Mutex::default(),
            task_numbers: AtomicU64::new(0),
            missing: MissingRecord::default(),
            closed: AtomicBool::new(false),
        }))
    }

    /// Adds an agent and starts its task. Nothing changes if the host is closed, or if the agent is
    /// already on this node under this or a later epoch. If the agent is here under an earlier
    /// epoch, its old actor is dropped, and the new task loads the agent when all work of the old
    /// actor has ended.
    pub fn start(&self, mut hosting: Hosting) {
        let mut slots = self.slots();
        if self.is_closed() {
            return;
        }
        let known = slots.get(&hosting.agent);
        if known.is_some_and(|slot| slot.hosting.epoch >= hosting.epoch) {
            return;
        }
        let predecessor = known
            .and_then(|slot| slot.state.live())
            .map(|live| live.gone.clone());
        let state = SlotState::Live(self.spawn(&mut hosting, predecessor));
        let (notifier, incarnation) = (&self.0.context.notifier, hosting.session.incarnation);
        notifier.started(&hosting);
        let Some(old) = slots.insert(hosting.agent.clone(), HostSlot { hosting, state }) else {
            return;
        };
        if old.hosting.session.incarnation != incarnation {
            notifier.gone(&old.hosting);
        }
        if let Some(live) = old.state.live() {
            live.dropped.cancel();
        }
    }

    /// Returns whether the agent is on this node.
    pub fn has(&self, agent: &AgentId) -> bool {
        self.slots().contains_key(agent)
    }

    /// Records that this node may hold leases of agents of any session that are not in the host.
    pub fn may_miss_agents(&self) {
        self.0.missing.add_all();
    }

    /// Records that this node may hold leases of agents of this session that are not in the host.
    pub fn may_miss_agents_of(&self, session: &SessionId) {
        self.0.missing.add(session);
    }

    /// Returns a guard that calls [`may_miss_agents_of`](Self::may_miss_agents_of) when it is
    /// dropped. An operation that takes leases holds the guard to its end. A sweep that runs
    /// meanwhile may not see the lease yet, and the operation may fail or be cancelled after it
    /// took the lease.
    pub fn taking_leases(&self, session: &SessionId) -> LeaseGuard<'_> {
        LeaseGuard {
            host: self,
            session: session.clone(),
        }
    }

    /// Returns where agents may be missing, without what an earlier call returned. The first call
    /// returns [`MissingAgents::InAnySession`].
    pub fn take_missing_agents(&self) -> MissingAgents {
        self.0.missing.take()
    }

    /// Returns whether the agent is on this node without a task. Such an agent is idle, or has an
    /// open turn in which it waits for answers from outside.
    pub fn is_parked(&self, agent: &AgentId) -> bool {
        self.slots()
            .get(agent)
            .is_some_and(|slot| slot.state.live().is_none())
    }

    pub fn hosting(&self, agent: &AgentId) -> Option<Hosting> {
        self.slots().get(agent).map(|slot| slot.hosting.clone())
    }

    /// Returns the [`Hosting`] of every agent on this node.
    pub fn hostings(&self) -> Vec<Hosting> {
        let slots = self.slots();
        slots.values().map(|slot| slot.hosting.clone()).collect()
    }

    /// Returns the ids of the agents on this node, of one session or of all sessions.
    pub fn agents(&self, session: Option<&SessionId>) -> Vec<AgentId> {
        let slots = self.slots();
        let here = slots
            .values()
            .filter(|slot| session.is_none_or(|id| slot.hosting.session.id == *id));
        here.map(|slot| slot.hosting.agent.clone()).collect()
    }

    /// Returns the number of agents on this node, and how many of them have an open turn.
    pub fn load(&self) -> (usize, usize) {
        (self.slots().len(), self.0.context.activity.running())
    }

    fn wake(&self, agent: &AgentId) -> Option<LiveActor> {
        let mut slots = self.slots();
        let slot = slots.get_mut(agent)?;
        if let Some(live) = slot.state.live().filter(|live| !live.mailbox.is_closed()) {
            return Some(live.clone());
        }
        if self.is_closed() {
            return None;
        }
        let live = self.spawn(&mut slot.hosting, None);
        slot.state = SlotState::Live(live.clone());
        Some(live)
    }

    fn spawn(&self, hosting: &mut Hosting, predecessor: Option<CancellationToken>) -> LiveActor {
        let (sender, mailbox) = mpsc::channel(MAILBOX);
        let number = self.0.task_numbers.fetch_add(1, Ordering::Relaxed);
        let (dropped, gone) = (CancellationToken::new(), CancellationToken::new());
        let live = LiveActor {
            number,
            mailbox: sender,
            look_is_due: Arc::default(),
            dropped,
            gone,
        };
        if let Some(runtime) = self.0.runtimes.next() {
            let identity = ActorIdentity {
                session: Arc::clone(&hosting.session),
                agent: hosting.agent.clone(),
                epoch: hosting.epoch,
                tools_from: hosting.tools_from,
            };
            let opening = std::mem::take(&mut hosting.opening);
            let (context, clients) = (Arc::clone(&self.0.context), runtime.clients.clone());
            let startup = ActorStartup {
                context,
                identity,
                clients,
                opening,
                predecessor,
                dropped: live.dropped.clone(),
            };
            // The future is boxed, because the task would otherwise reserve three times its size.
            let running = Box::pin(startup.live(mailbox));
            let (host, dropped, gone) = (
                self.clone(),
                live.dropped.clone(),
                live.gone.clone().drop_guard(),
            );
            let agent = hosting.agent.clone();
            let task = async move {
                let _gone = gone;
                tokio::select! {
                    biased;
                    ended = running => Box::pin(host.ended(&agent, number, ended)).await,
                    () = async { dropped.cancelled().await; tokio::time::sleep(GIVE_UP).await } => {}
                }
            };
            self.0.tasks.spawn_on(task, &runtime.handle);
        }
        live
    }

    /// Handles the end of an actor's task. If the agent is gone, removes its slot and notifies the
    /// callers that wait for its stop. Otherwise changes the slot, and sends the agent the messages
    /// that its actor did not read. An agent whose data the store refused starts again at once.
    async fn ended(&self, agent: &AgentId, number: u64, ended: TaskEnd) {
        match ended {
            TaskEnd::Gone(ack) => {
                let mut gone = None;
                self.forget(agent, number, |slots| gone = slots.remove(agent));
                if let Some(slot) = gone {
                    self.may_miss_agents_of(&slot.hosting.session.id);
                    self.0.context.notifier.gone(&slot.hosting);
                }
                ack.send();
            }
            TaskEnd::Refused { unread, unstorable } => {
                self.settle(agent, number, |slot| {
                    slot.state = SlotState::Parked;
                    slot.hosting.opening = Opening {
                        open_turn: OpenTurn::Refused(unstorable),
                        ..Opening::default()
                    };
                });
                self.wake(agent);
                self.hand_on(agent, unread).await;
            }
            TaskEnd::Parked { unread, had } => {
                tracing::debug!(%agent, "parked");
                self.settle(agent, number, |slot| {
                    slot.state = SlotState::Parked;
                    slot.hosting.opening.had = had;
                });
                self.hand_on(agent, unread).await;
            }
        }
    }

    /// Sends the agent the messages that its last task did not read. The first message starts a new
    /// task if none runs.
    async fn hand_on(&self, agent: &AgentId, unread: Vec<ActorMessage>) {
        for message in unread {
            let _ = self.send(agent, message).await;
        }
    }

    /// Changes the agent's slot if it still belongs to the task with this number.
    fn settle(&self, agent: &AgentId, number: u64, change: impl FnOnce(&mut HostSlot)) {
        self.forget(agent, number, |slots| {
            slots.get_mut(agent).map(change).unwrap_or_default()
        });
    }

    /// Changes the slots if the agent's slot still belongs to the task with this number.
    fn forget(
        &self,
        agent: &AgentId,
        number: u64,
        change: impl FnOnce(&mut BTreeMap<AgentId, HostSlot>),
    ) {
        let mut slots = self.slots();
        let current = slots
            .get(agent)
            .and_then(|slot| slot.state.live())
            .map(|live| live.number);
        if current == Some(number) {
            change(&mut slots);
        }
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<AgentId, HostSlot>> {
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct HostSlot {
    hosting: Hosting,
    state: SlotState,
}

enum SlotState {
    Live(LiveActor),
    Parked,
}

/// A handle to an agent's task.
#[derive(Clone)]
struct LiveActor {
    /// Distinguishes the successive tasks of an agent.
    number: u64,
    mailbox: mpsc::Sender<Box<ActorMessage>>,
    /// Whether the mailbox contains a request to check the inbox.
    look_is_due: Arc<AtomicBool>,
    /// Cancelled to end the actor and its work without writing anything.
    dropped: CancellationToken,
    /// Cancelled when the task and all of its work have ended.
    gone: CancellationToken,
}

impl SlotState {
    fn live(&self) -> Option<&LiveActor> {
        match self {
            Self::Live(live) => Some(live),
            Self::Parked => None,
        }
    }
}

/// How an actor's task ended. `unread` has the messages that the actor did not read.
pub(super) enum TaskEnd {
    /// The agent needs no task. `had` contains the agent's tools if they may change before the agent
    /// is loaded again.
    Parked {
        unread: Vec<ActorMessage>,
        had: Option<Arc<Toolbox>>,
    },
    /// The store refused the agent's data. The agent is loaded again to end its turn as failed.
    Refused {
        unread: Vec<ActorMessage>,
        unstorable: Unstorable,
    },
    /// The agent was stopped or dropped, another node holds its lease, or it cannot continue on
    /// this node. The callers are notified after the agent's slot is free, so that their next
    /// request finds it free.
    Gone(StopAck),
}

/// The callers that wait for the stop of an agent, and the state that they receive.
pub(super) struct StopAck {
    pub(super) done: Vec<AnswerSender<AgentState>>,
    pub(super) state: AgentState,
}

impl StopAck {
    pub(super) fn to_nobody() -> Self {
        Self {
            done: Vec::new(),
            state: AgentState::Stopped,
        }
    }

    fn send(self) {
        for done in self.done {
            let _ = done.send(self.state);
        }
    }
}

/// The numbers of agents, sessions and inputs on this node.
#[derive(Debug, Clone, Copy, Default)]
pub struct AgentCounts {
    pub sessions: usize,
    /// Sessions with an open turn.
    pub active: usize,
    /// Agents with an open turn.
    pub running: usize,
    /// Agents with a task.
    pub live: usize,
    pub parked: usize,
    /// Inputs that wait for agents in memory.
    pub queued: usize,
}

impl Host {
    /// Counts the agents on this node by state, their sessions, and their queued inputs.
    pub fn counts(&self) -> AgentCounts {
        let activity = &self.0.context.activity;
        let mut counts = AgentCounts {
            running: activity.running(),
            queued: activity.queued(),
            active: activity.sessions(),
            ..AgentCounts::default()
        };
        let slots = self.slots();
        let mut sessions = HashSet::new();
        for slot in slots.values() {
            sessions.insert(&slot.hosting.session.id);
            match slot.state {
                SlotState::Live(_) => counts.live += 1,
                SlotState::Parked => counts.parked += 1,
            }
        }
        counts.sessions = sessions.len();
        counts
    }

    /// Returns whether every thread that runs agents completes an empty task within this time.
    pub async fn turns(&self, within: Duration) -> bool {
        self.0.runtimes.turn(within).await
    }
}

/// The number of sessions above which [`MissingAgents`] no longer lists them.
const LISTED: usize = 1_024;

/// The sessions in which this node may hold leases of agents that it does not host.
#[derive(Debug, PartialEq, Eq)]
pub enum MissingAgents {
    InAnySession,
    In(BTreeSet<SessionId>),
}

/// A [`MissingAgents`] that grows until it is taken.
#[derive(Debug)]
struct MissingRecord(Mutex<MissingAgents>);

impl Default for MissingRecord {
    /// Begins with all sessions, because a starting node may hold leases from its last run.
    fn default() -> Self {
        Self(Mutex::new(MissingAgents::InAnySession))
    }
}

impl MissingRecord {
    pub fn add_all(&self) {
        *self.lock() = MissingAgents::InAnySession;
    }

    pub fn add(&self, session: &SessionId) {
        let mut missing = self.lock();
        match &mut *missing {
            MissingAgents::InAnySession => {}
            MissingAgents::In(sessions) if sessions.len() >= LISTED => {
                *missing = MissingAgents::InAnySession;
            }
            MissingAgents::In(sessions) => {
                sessions.insert(session.clone());
            }
        }
    }

    /// Returns what was added since the last call, and empties the record.
    pub fn take(&self) -> MissingAgents {
        let empty = MissingAgents::In(BTreeSet::new());
        std::mem::replace(&mut *self.lock(), empty)
    }

    fn lock(&self) -> MutexGuard<'_, MissingAgents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
