//! What the nodes of a simulation share: which of them run and what they reach, the tools that run,
//! the checks, and the trace.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use fastrand::Rng;
use planck_common::{AgentId, CallId, NodeId, SessionId, wait::WaitDecision};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{
    checks::SimReport,
    store::{SimSession, StoreData},
};
use crate::{bus::Delivery, node::Node};

/// How long a process of a crashed node may run on.
const REAPED: u64 = 2_500;

/// The shared state of a simulation.
pub(super) struct SimWorld {
    state: Mutex<SimState>,
    /// The rows of the store. They are locked before the state, or without it.
    pub rows: Arc<Mutex<StoreData>>,
    began: Instant,
}

pub(super) struct SimState {
    pub rng: Rng,
    pub nodes: BTreeMap<NodeId, SimLink>,
    /// Whether the database is unreachable for all nodes.
    pub is_sql_away: bool,
    /// Whether the registry is unreachable for all nodes.
    pub is_registry_away: bool,
    /// Of 1,000 answers of the store and the registry, how many are lost.
    pub lost: u32,
    /// Of 1,000 requests between nodes, how many are lost.
    pub lost_requests: u32,
    pub running: BTreeMap<CallId, RunningTool>,
    /// The calls that began, and how often.
    pub began: BTreeMap<CallId, u32>,
    /// When the lease of an agent was last taken from another node, and its epoch since then.
    pub taken: BTreeMap<AgentId, (u64, i64)>,
    /// The beginnings and ends of the faults.
    pub faults: Vec<(u64, u64)>,
    /// The sessions whose tool calls need an answer.
    pub careful: BTreeSet<SessionId>,
    /// The answers to waits that were acknowledged.
    pub answers: Vec<(SessionId, CallId, WaitDecision)>,
    pub opened: Option<mpsc::UnboundedSender<OpenedWait>>,
    pub report: SimReport,
    names: BTreeMap<String, String>,
    counts: BTreeMap<&'static str, usize>,
    trace: Vec<String>,
    violation: Option<String>,
    listeners: Vec<mpsc::UnboundedSender<Delivery>>,
    /// The sessions that are to stop with their nodes, whose node died.
    pub must_close: BTreeSet<SessionId>,
}

/// What a node reaches.
#[derive(Clone)]
pub(super) struct SimLink {
    pub is_crashed: bool,
    pub has_nats: bool,
    pub has_sql: bool,
    /// Whether the node was crashed or cut off at least once, so that its peers may declare it dead.
    pub may_die: bool,
    /// Whether the node left before its process ended.
    pub has_left: bool,
    pub node: Weak<Node>,
    /// Until when the node may be declared dead, because it is or was silent.
    pub blamed_until: u64,
    pub is_dead: bool,
    /// When the newest proof of life that was accepted was sent.
    pub proved: Option<u64>,
    /// When the node last had a fault.
    pub disturbed_at: Option<u64>,
    /// When the node last had no SQL.
    pub no_sql_at: Option<u64>,
    /// The longest additional delay of a call to the store and the registry, in milliseconds.
    pub slow: u64,
}

/// A wait that an agent opened.
#[derive(Clone)]
pub(super) struct OpenedWait {
    pub session: SessionId,
    pub agent: AgentId,
    pub wait: CallId,
}

impl SimLink {
    const NEW: Self = Self {
        is_crashed: false,
        has_nats: true,
        has_sql: true,
        may_die: false,
        has_left: false,
        node: Weak::new(),
        blamed_until: 0,
        is_dead: false,
        proved: None,
        disturbed_at: None,
        no_sql_at: None,
        slow: 0,
    };
}

/// A tool call that runs.
#[derive(Clone)]
pub(super) struct RunningTool {
    pub node: NodeId,
    pub session: SessionId,
    pub agent: AgentId,
    pub epoch: i64,
    pub incarnation: i64,
    /// When the processes of the call end if its node crashed.
    pub until: Option<Instant>,
}

impl SimWorld {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(SimState {
                rng: Rng::with_seed(seed),
                nodes: BTreeMap::new(),
                is_sql_away: false,
                is_registry_away: false,
                lost: 0,
                lost_requests: 0,
                running: BTreeMap::new(),
                began: BTreeMap::new(),
                taken: BTreeMap::new(),
                faults: Vec::new(),
                careful: BTreeSet::new(),
                answers: Vec::new(),
                opened: None,
                report: SimReport::default(),
                names: BTreeMap::new(),
                counts: BTreeMap::new(),
                trace: Vec::new(),
                violation: None,
                listeners: Vec::new(),
                must_close: BTreeSet::new(),
            }),
            rows: Arc::default(),
            began: Instant::now(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, SimState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn data(&self) -> MutexGuard<'_, StoreData> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the clients of a wait that an agent opened.
    pub(super) fn wait_opened(&self, session: &SimSession, wait: CallId) {
        let opened = OpenedWait {
            session: session.record().id,
            agent: session.waits[&wait].agent.clone(),
            wait,
        };
        if let Some(people) = &self.state().opened {
            let _ = people.send(opened);
        }
    }

    /// Waits as long as the node's link is slow.
    pub(super) async fn slowly(&self, node: &NodeId) {
        let slow = self.link(node).slow;
        if slow > 0 {
            self.pause(0..slow).await;
        }
    }

    pub(super) fn millis(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap()
    }

    /// Returns a random number of this range.
    pub(super) fn draw(&self, range: std::ops::Range<u64>) -> u64 {
        self.state().rng.u64(range)
    }

    pub(super) fn chance(&self, of_1000: u32) -> bool {
        of_1000 > 0 && self.state().rng.u32(0..1_000) < of_1000
    }

    pub(super) async fn pause(&self, millis: std::ops::Range<u64>) {
        let millis = self.draw(millis);
        sleep(Duration::from_millis(millis)).await;
    }

    /// Adds a line to the trace.
    pub(super) fn note(&self, what: &str) {
        let millis = self.millis();
        self.state().trace.push(format!("{millis:>6} {what}"));
    }

    /// Returns a short name for an id, which is the same in every run of a seed.
    pub(super) fn name(&self, kind: &'static str, id: &str) -> String {
        let state = &mut *self.state();
        let counts = &mut state.counts;
        let names = &mut state.names;
        names
            .entry(id.to_owned())
            .or_insert_with(|| {
                let count = counts.entry(kind).or_default();
                *count += 1;
                format!("{kind}{count}")
            })
            .clone()
    }

    /// Returns the heartbeats of all nodes from now on.
    pub(super) fn listen(&self) -> mpsc::UnboundedReceiver<Delivery> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.state().listeners.push(sender);
        receiver
    }

    pub(super) fn deliver(&self, heartbeat: &Delivery) {
        let listeners = &mut self.state().listeners;
        listeners.retain(|listener| listener.send(heartbeat.clone()).is_ok());
    }

    pub(super) fn violated(&self, what: String) {
        self.note(&format!("VIOLATED: {what}"));
        self.state().violation.get_or_insert(what);
    }

    pub(super) fn violation(&self) -> Option<String> {
        self.state().violation.clone()
    }

    pub(super) fn take_trace(&self) -> Vec<String> {
        std::mem::take(&mut self.state().trace)
    }

    pub(super) fn link(&self, node: &NodeId) -> SimLink {
        let known = self.state().nodes.get(node).cloned();
        // The clients are no nodes, and reach everything.
        known.unwrap_or(SimLink::NEW)
    }

    pub(super) fn add(&self, id: &NodeId) {
        self.state().nodes.insert(id.clone(), SimLink::NEW);
    }

    pub(super) fn change(&self, id: &NodeId, change: impl FnOnce(&mut SimLink)) {
        if let Some(link) = self.state().nodes.get_mut(id) {
            change(link);
        }
    }

    /// Never returns on a node that crashed.
    pub(super) async fn unless_crashed(&self, node: &NodeId) {
        if self.link(node).is_crashed {
            pending::<()>().await;
        }
    }

    /// Ends a node as SIGKILL does: it does nothing more, and its tools end soon.
    pub(super) fn crash(&self, node: &NodeId) {
        let mut state = self.state();
        if let Some(link) = state.nodes.get_mut(node) {
            link.is_crashed = true;
            link.may_die = true;
            link.blamed_until = u64::MAX;
        }
        let SimState { rng, running, .. } = &mut *state;
        for tool in running.values_mut().filter(|tool| tool.node == *node) {
            let more = Duration::from_millis(rng.u64(0..REAPED));
            tool.until.get_or_insert(Instant::now() + more);
        }
    }

    pub(super) fn tool_ended(&self, call: &CallId) {
        self.state().running.remove(call);
    }

    /// Returns the nodes that run.
    pub(super) fn living(&self) -> BTreeSet<NodeId> {
        let state = self.state();
        let living = state.nodes.iter().filter(|(_, link)| !link.is_crashed);
        living.map(|(id, _)| id.clone()).collect()
    }
}
