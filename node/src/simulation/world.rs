//! What the nodes of a simulation share: which of them run and what they reach, the tools that run,
//! the checks, and the trace.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use fastrand::Rng;
use planck_common::{AgentId, CallId, NodeId, SessionId, command::SessionState, spec::OnNodeDeath};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use crate::{bus::Delivery, node::Node};
use planck_store::SessionRecord;

/// How long a process of a crashed node may run on.
const REAPED: u64 = 2_500;

/// The shared state of a simulation.
pub(super) struct SimWorld {
    state: Mutex<SimState>,
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
    running: BTreeMap<CallId, RunningTool>,
    /// The calls that began, and how often.
    pub began: BTreeMap<CallId, u32>,
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
}

impl SimLink {
    const NEW: Self = Self {
        is_crashed: false,
        has_nats: true,
        has_sql: true,
        may_die: false,
        has_left: false,
        node: Weak::new(),
    };
}

/// A tool call that runs.
#[derive(Clone)]
struct RunningTool {
    node: NodeId,
    session: SessionId,
    agent: AgentId,
    epoch: i64,
    incarnation: i64,
    /// When the processes of the call end if its node crashed.
    until: Option<Instant>,
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
                names: BTreeMap::new(),
                counts: BTreeMap::new(),
                trace: Vec::new(),
                violation: None,
                listeners: Vec::new(),
                must_close: BTreeSet::new(),
            }),
            began: Instant::now(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, SimState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        }
        let SimState { rng, running, .. } = &mut *state;
        for tool in running.values_mut().filter(|tool| tool.node == *node) {
            let more = Duration::from_millis(rng.u64(0..REAPED));
            tool.until.get_or_insert(Instant::now() + more);
        }
    }

    /// Checks a tool call that is about to run.
    pub(super) fn tool_began(&self, node: &NodeId, call: &planck_toolbox::Invocation) {
        let incarnation = self.link(node).node.upgrade().and_then(|node| {
            let hosting = node.services().base.host.hosting(&call.agent_id)?;
            Some(hosting.session.incarnation)
        });
        let new = RunningTool {
            node: node.clone(),
            session: call.session_id.clone(),
            agent: call.agent_id.clone(),
            epoch: call.epoch,
            incarnation: incarnation.unwrap_or(i64::MAX),
            until: None,
        };
        let mut wrong = Vec::new();
        {
            let mut state = self.state();
            let now = Instant::now();
            state
                .running
                .retain(|_, tool| tool.until.is_none_or(|until| until > now));
            for old in state.running.values() {
                if old.agent == new.agent && old.epoch < new.epoch {
                    wrong.push("a tool of the agent's earlier epoch still ran".to_owned());
                }
                if old.session == new.session && old.incarnation < new.incarnation {
                    wrong.push("a tool of the team's earlier incarnation still ran".to_owned());
                }
            }
            let count = state.began.entry(call.call_id.clone()).or_default();
            *count += 1;
            if *count > 1 {
                wrong.push("a call ran twice".to_owned());
            }
            state.running.insert(call.call_id.clone(), new);
        }
        let agent = self.name("agent", &call.agent_id);
        let (call, on) = (
            self.name("call", &call.call_id),
            self.name("node", node.as_str()),
        );
        self.note(&format!("{call} of {agent} began on {on}"));
        for what in wrong {
            self.violated(format!("{call} of {agent} on {on}: {what}"));
        }
    }

    /// Checks a claim. `from` held the lease before.
    pub(super) fn claimed(
        &self,
        session: &SessionRecord,
        agent: &AgentId,
        from: &NodeId,
        by: &NodeId,
    ) {
        let link = self.link(from);
        let running = link.node.upgrade();
        let runs_it = running.is_some_and(|node| node.services().base.host.has(agent));
        if from != by && !link.may_die && runs_it {
            let (agent, from) = (self.name("agent", agent), self.name("node", from));
            self.violated(format!("{agent} was claimed from {from}, which runs it"));
        }
        let is_lead = *agent == session.spec.lead;
        let stops = session.spec.on_node_death == OnNodeDeath::Stop;
        let is_open = session.state == SessionState::Open;
        if is_lead && stops && is_open && link.is_crashed && !link.has_left {
            self.state().must_close.insert(session.id.clone());
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
