//! What the nodes of a simulation share: which of them run and what they reach, the tools that run,
//! the checks, and the trace.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use fastrand::Rng;
use planck_common::{AgentId, CallId, InputId, NodeId, SessionId, wait::WaitDecision};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    checks::{SimReport, TeamNotes},
    store::{SimSession, StoreData},
};
use crate::{bus::Delivery, node::Node};

/// The longest additional delay of a call of a slow node, in milliseconds.
const SLOW: u64 = 800;
/// Of 1,000 answers and requests, how many are lost during a fault.
const LOST: u32 = 150;
/// The number of heartbeats of a node that are kept for the checks.
const BEATS_KEPT: usize = 24;

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
    /// The outages of all nodes.
    pub outages: Outages,
    /// Nodes that reach each other, but not the others, until this time.
    pub island: (BTreeSet<NodeId>, u64),
    pub running: BTreeMap<CallId, RunningTool>,
    /// The calls that began, and how often.
    pub began: BTreeMap<CallId, u32>,
    /// When the lease of an agent was last taken from another node, and its epoch since then.
    pub taken: BTreeMap<AgentId, (u64, i64)>,
    /// Whether the registry lost writes.
    pub has_lost: bool,
    pub teams: TeamNotes,
    /// The beginnings and ends of the faults.
    pub faults: Vec<(u64, u64)>,
    /// The sessions whose tool calls need an answer.
    pub careful: BTreeSet<SessionId>,
    /// The prompts that say in which shape they are answered.
    pub shaped: BTreeSet<InputId>,
    /// The answers to waits that were acknowledged.
    pub answers: Vec<(SessionId, CallId, WaitDecision)>,
    pub opened: Option<mpsc::UnboundedSender<OpenedWait>>,
    pub report: SimReport,
    /// The node in each place.
    pub places: BTreeMap<usize, NodeId>,
    names: BTreeMap<String, String>,
    counts: BTreeMap<&'static str, usize>,
    trace: Vec<String>,
    violation: Option<String>,
    /// The nodes that listen to a subject.
    listeners: Vec<(NodeId, String, mpsc::UnboundedSender<Delivery>)>,
    /// When each node sent its last heartbeats that NATS received.
    pub beats: BTreeMap<NodeId, VecDeque<u64>>,
    /// The sessions that are to stop with their nodes, whose node died and which are not closed yet.
    pub must_close: BTreeSet<SessionId>,
}

/// A node and what it reaches.
#[derive(Clone, Default)]
pub(super) struct SimLink {
    pub node: Weak<Node>,
    pub is_crashed: bool,
    /// Whether the node left before its process ended.
    pub has_left: bool,
    pub is_dead: bool,
    pub outages: Outages,
    /// Until when peers may not hear the node, or 0 if all of them always did. A node that crashed
    /// or leaves is silent for ever.
    pub silent_until: u64,
    /// When the newest proof of life that was accepted was sent.
    pub proved: Option<u64>,
    /// Since when the node is suspended.
    pub suspended_at: Option<u64>,
    /// When the node last told the reapers of its tools that it runs.
    pub beaten_at: u64,
}

/// Until when something is missing.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outages {
    /// The process is stopped, as by SIGSTOP.
    pub paused: u64,
    pub nats: u64,
    pub sql: u64,
    pub registry: u64,
    /// The watches of the registry are late.
    pub watches: u64,
    /// Calls to the store and the registry take longer.
    pub slow: u64,
    /// Answers of the store and the registry, and requests between nodes, are lost.
    pub lossy: u64,
}

impl Outages {
    fn and(self, other: Self) -> Self {
        Self {
            paused: self.paused.max(other.paused),
            nats: self.nats.max(other.nats),
            sql: self.sql.max(other.sql),
            registry: self.registry.max(other.registry),
            watches: self.watches.max(other.watches),
            slow: self.slow.max(other.slow),
            lossy: self.lossy.max(other.lossy),
        }
    }

    /// Returns until when the node may not have learned what it must stop.
    pub fn disturbed_until(self) -> u64 {
        self.no_sql_until().max(self.no_registry_until())
    }

    /// Returns until when the store may not have answered.
    pub fn no_sql_until(self) -> u64 {
        self.sql.max(self.lossy).max(self.paused)
    }

    /// Returns until when the registry may not have answered.
    pub fn no_registry_until(self) -> u64 {
        self.registry.max(self.nats).max(self.lossy)
    }
}

/// A wait that an agent opened.
#[derive(Clone)]
pub(super) struct OpenedWait {
    pub session: SessionId,
    pub agent: AgentId,
    pub wait: CallId,
}

/// A tool call that runs.
#[derive(Clone)]
pub(super) struct RunningTool {
    pub node: NodeId,
    pub session: SessionId,
    pub agent: AgentId,
    pub epoch: i64,
    pub incarnation: i64,
    /// Makes the reaper of the call kill its processes.
    pub stop: CancellationToken,
}

impl SimState {
    pub fn outages_of(&self, node: &NodeId) -> Outages {
        let own = self.nodes.get(node).map(|link| link.outages);
        self.outages.and(own.unwrap_or_default())
    }

    fn has_nats(&self, node: &NodeId, now: u64) -> bool {
        self.outages_of(node).nats <= now
    }

    /// Returns whether a message from one node arrives at another.
    fn reaches(&self, from: &NodeId, to: &NodeId, now: u64) -> bool {
        let (island, until) = &self.island;
        let is_together = *until <= now || island.contains(from) == island.contains(to);
        is_together && self.has_nats(from, now) && self.has_nats(to, now)
    }
}

impl SimWorld {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(SimState {
                rng: Rng::with_seed(seed),
                nodes: BTreeMap::new(),
                outages: Outages::default(),
                island: (BTreeSet::new(), 0),
                running: BTreeMap::new(),
                began: BTreeMap::new(),
                taken: BTreeMap::new(),
                has_lost: false,
                teams: TeamNotes::default(),
                faults: Vec::new(),
                careful: BTreeSet::new(),
                shaped: BTreeSet::new(),
                answers: Vec::new(),
                opened: None,
                report: SimReport::default(),
                places: BTreeMap::new(),
                names: BTreeMap::new(),
                counts: BTreeMap::new(),
                trace: Vec::new(),
                violation: None,
                listeners: Vec::new(),
                beats: BTreeMap::new(),
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

    /// Waits as long as a call of the node takes.
    pub(super) async fn slowly(&self, node: &NodeId) {
        if self.outages(node).slow > self.millis() {
            self.pause(0..SLOW).await;
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

    /// Returns the heartbeats that a node receives from now on.
    pub(super) fn listen(&self, node: &NodeId, subject: &str) -> mpsc::UnboundedReceiver<Delivery> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let listener = (node.clone(), subject.to_owned(), sender);
        self.state().listeners.push(listener);
        receiver
    }

    /// Delivers a heartbeat to the nodes that listen to it and that `from` reaches.
    pub(super) fn deliver(&self, from: &NodeId, heartbeat: &Delivery) {
        let now = self.millis();
        let mut state = self.state();
        if !state.has_nats(from, now) {
            return;
        }
        let beats = state.beats.entry(from.clone()).or_default();
        beats.push_back(now);
        if beats.len() > BEATS_KEPT {
            beats.pop_front();
        }
        let mut listeners = std::mem::take(&mut state.listeners);
        listeners.retain(|(node, subject, listener)| {
            let is_heard = *subject == heartbeat.subject && state.reaches(from, node, now);
            match is_heard {
                true => listener.send(heartbeat.clone()).is_ok(),
                false => !listener.is_closed(),
            }
        });
        state.listeners = listeners;
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
        // The clients are no nodes, and have no faults of their own.
        self.state().nodes.get(node).cloned().unwrap_or_default()
    }

    pub(super) fn outages(&self, node: &NodeId) -> Outages {
        self.state().outages_of(node)
    }

    pub(super) fn has_nats(&self, node: &NodeId) -> bool {
        self.state().has_nats(node, self.millis())
    }

    pub(super) fn reaches(&self, from: &NodeId, to: &NodeId) -> bool {
        self.state().reaches(from, to, self.millis())
    }

    /// Returns whether an answer to a node is lost.
    pub(super) fn is_lost(&self, node: &NodeId) -> bool {
        self.outages(node).lossy > self.millis() && self.chance(LOST)
    }

    /// Returns whether the registry lost writes in this run.
    pub(super) fn has_lost_writes(&self) -> bool {
        self.state().has_lost
    }

    pub(super) fn add(&self, id: &NodeId, place: usize) {
        let now = self.millis();
        let mut state = self.state();
        let apart_until = Some(state.island.1).filter(|until| *until > now);
        let link = SimLink {
            silent_until: apart_until.unwrap_or(0),
            ..SimLink::default()
        };
        state.nodes.insert(id.clone(), link);
        state.places.insert(place, id.clone());
    }

    /// Returns the node that runs in this place.
    pub(super) fn node_at(&self, place: usize) -> Option<NodeId> {
        let state = self.state();
        let node = state.places.get(&place)?;
        (!state.nodes[node].is_crashed).then(|| node.clone())
    }

    pub(super) fn change(&self, id: &NodeId, change: impl FnOnce(&mut SimLink)) {
        if let Some(link) = self.state().nodes.get_mut(id) {
            change(link);
        }
    }

    /// Waits while the process of a node is stopped. Never returns on a node that crashed.
    pub(super) async fn while_running(&self, node: &NodeId) {
        loop {
            if self.link(node).is_crashed {
                pending::<()>().await;
            }
            let left = self.outages(node).paused.saturating_sub(self.millis());
            if left == 0 {
                return;
            }
            sleep(Duration::from_millis(left)).await;
        }
    }

    pub(super) fn is_running(&self, node: &NodeId) -> bool {
        !self.link(node).is_crashed && self.outages(node).paused <= self.millis()
    }

    /// Ends a node as SIGKILL does: it does nothing more, and its tools end soon.
    pub(super) fn crash(&self, node: &NodeId) {
        self.change(node, |link| {
            link.is_crashed = true;
            link.silent_until = u64::MAX;
        });
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
