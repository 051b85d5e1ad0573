//! The conditions that must hold despite all faults. They are checked at the events that they
//! concern, every second, and when the cluster is at rest. All times are in virtual milliseconds.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use planck_common::{
    AgentId, CallId, NodeId, SessionId,
    command::{AgentState, SessionState},
    event::EventKind,
    registry::{Key, NodeRecord, NodeStanding},
    spec::OnNodeDeath,
    wait::{WaitDecision, WaitState},
};
use planck_toolbox::Invocation;
use tokio::time::{Instant, sleep};

use super::{
    node::Cluster,
    store::SimSession,
    world::{RunningTool, SimWorld},
};
use crate::bus::{Records as _, records::Write};
use planck_store::SessionRecord;

/// How long before and after an event no fault may happen if a limit on time is to hold.
const CALM_FOR: u64 = 15_000;
/// The time within which a crashed node is declared dead, if that is the only fault.
const DEATH_WITHIN: u64 = 4_000;
/// The time within which nothing is left on a crashed node, if that is the only fault.
const FAILOVER_WITHIN: u64 = 8_000;
/// The time within which an agent reads what was acknowledged, without a fault.
const READ_WITHIN: u64 = 13_000;
/// The time within which an abort ends a turn, without a fault.
const ABORTS_WITHIN: u64 = 7_000;
/// How long an agent may run after its lease was taken or its incarnation ended.
const STOPS_WITHIN: u64 = 13_000;
/// The same for a node that is suspended and reads SQL.
const STOPS_WHEN_SUSPENDED: u64 = 5_000;
/// How long after a lease was taken its former holder may begin a tool call.
const TOOLS_AFTER_LOSS: u64 = 1_500;
/// How old the proof of a node may be when it begins a tool call. It is the limit of the node and
/// the time from the permit to the call.
const PROOF_LASTS: u64 = 12_000 + 500;

/// How often the checks had something to check.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SimReport {
    pub calls: u64,
    pub deaths: u64,
    pub claims: u64,
    pub closes: u64,
    /// Crashes after which the limits on time were checked.
    pub bounds: u64,
    pub inputs: u64,
    pub input_bounds: u64,
    pub answers: u64,
    pub answer_bounds: u64,
    pub aborts: u64,
    pub abort_bounds: u64,
}

impl SimReport {
    pub fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.deaths += other.deaths;
        self.claims += other.claims;
        self.closes += other.closes;
        self.bounds += other.bounds;
        self.inputs += other.inputs;
        self.input_bounds += other.input_bounds;
        self.answers += other.answers;
        self.answer_bounds += other.answer_bounds;
        self.aborts += other.aborts;
        self.abort_bounds += other.abort_bounds;
    }
}

impl SimWorld {
    /// Returns whether no fault happens from `CALM_FOR` before `since` until now.
    fn is_calm_since(&self, since: u64) -> bool {
        let (from, now) = (since.saturating_sub(CALM_FOR), self.millis());
        let state = self.state();
        let mut faults = state.faults.iter();
        !faults.any(|(begin, end)| *begin <= now && *end >= from)
    }

    /// Checks a tool call that is about to run.
    pub(super) fn tool_began(&self, node: &NodeId, call: &Invocation) {
        let link = self.link(node);
        let hosting = link.node.upgrade();
        let hosting = hosting.and_then(|node| node.services().handles.host.hosting(&call.agent_id));
        let new = RunningTool {
            node: node.clone(),
            session: call.session_id.clone(),
            agent: call.agent_id.clone(),
            epoch: call.epoch,
            incarnation: hosting.map_or(i64::MAX, |hosting| hosting.session.incarnation),
            until: None,
        };
        let mut wrong = self.misses_in_store(call);
        let now = self.millis();
        if link.proved.is_none_or(|proved| now > proved + PROOF_LASTS) {
            wrong.push("its node has no young proof".to_owned());
        }
        wrong.extend(self.overlaps(&new, &call.call_id));
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

    /// Returns which tools still run although this one begins, and whether it ran before.
    fn overlaps(&self, new: &RunningTool, call: &CallId) -> Vec<String> {
        let mut wrong = Vec::new();
        let now = self.millis();
        let mut state = self.state();
        state.report.calls += 1;
        let taken = state.taken.get(&new.agent);
        if taken.is_some_and(|(at, epoch)| *epoch > new.epoch && now > at + TOOLS_AFTER_LOSS) {
            wrong.push("another node has the lease".to_owned());
        }
        let ended = Instant::now();
        state
            .running
            .retain(|_, tool| tool.until.is_none_or(|until| until > ended));
        for old in state.running.values() {
            if old.agent == new.agent && old.epoch < new.epoch {
                wrong.push("a tool of the agent's earlier epoch still ran".to_owned());
            }
            if old.session == new.session && old.incarnation < new.incarnation {
                wrong.push("a tool of the team's earlier incarnation still ran".to_owned());
            }
        }
        let count = state.began.entry(call.clone()).or_default();
        *count += 1;
        if *count > 1 {
            wrong.push("a call ran twice".to_owned());
        }
        state.running.insert(call.clone(), new.clone());
        wrong
    }

    /// Returns what the store lacks for a call to begin.
    fn misses_in_store(&self, call: &Invocation) -> Vec<String> {
        let data = self.data();
        let Some(session) = data.sessions.get(&call.session_id) else {
            return vec!["it has no session".to_owned()];
        };
        let mut wrong = Vec::new();
        if !session.has_begun(&call.call_id) {
            wrong.push("the log has no start of it".to_owned());
        }
        let wait = session.waits.get(&call.call_id);
        let may_run = match wait {
            Some(wait) => wait.decision() == Some(WaitDecision::Allow),
            None => !self.state().careful.contains(&call.session_id),
        };
        if !may_run {
            wrong.push("it ran without an allow".to_owned());
        }
        if self.must_close(session) {
            wrong.push("its session stops with its node".to_owned());
        }
        wrong
    }

    /// Returns whether a session is to be closed because its node died, and is not closed yet.
    pub(super) fn must_close(&self, session: &SimSession) -> bool {
        let mut rows = session.log.iter();
        let is_closed = rows.any(|row| row.row.kind == EventKind::SessionClosed);
        !is_closed && self.state().must_close.contains(&session.record().id)
    }

    /// Checks a claim. `from` held the lease before.
    pub(super) fn claimed(
        &self,
        session: &SessionRecord,
        agent: &AgentId,
        (from, by): (&NodeId, &NodeId),
        epoch: i64,
    ) {
        let (link, now) = (self.link(from), self.millis());
        let running = link.node.upgrade();
        let runs_it = running.is_some_and(|node| node.services().handles.host.has(agent));
        if from != by && !link.may_die && runs_it {
            let (agent, from) = (self.name("agent", agent), self.name("node", from));
            self.violated(format!("{agent} was claimed from {from}, which runs it"));
        }
        let is_lead = *agent == session.spec.lead;
        let stops = session.spec.on_node_death == OnNodeDeath::Stop;
        let is_open = session.state == SessionState::Open;
        let mut state = self.state();
        state.report.claims += u64::from(is_lead);
        if from != by {
            state.taken.insert(agent.clone(), (now, epoch));
        }
        if is_lead && stops && is_open && link.is_crashed && !link.has_left {
            state.report.closes += 1;
            state.must_close.insert(session.id.clone());
        }
    }

    /// Checks writes to the registry that were accepted: proofs of life and declarations of death.
    pub(super) fn registry_wrote(&self, by: &NodeId, writes: &[Write], sent: u64) {
        for write in writes {
            match Key::parse(&write.key) {
                Some(Key::Proof(node)) if node == *by => {
                    self.change(by, |link| link.proved = link.proved.max(Some(sent)));
                }
                Some(Key::Node(node)) => {
                    let Some(value) = &write.value else { continue };
                    let Ok(record) = serde_json::from_slice::<NodeRecord>(value) else {
                        continue;
                    };
                    if record.state == NodeStanding::Dead {
                        self.declared_dead(by, &node);
                    }
                }
                _ => {}
            }
        }
    }

    fn declared_dead(&self, observer: &NodeId, suspect: &NodeId) {
        let (by, node) = (self.name("node", observer), self.name("node", suspect));
        self.note(&format!("{node} is dead, says {by}"));
        let now = self.millis();
        let link = self.link(suspect);
        if self.link(observer).is_dead {
            self.violated(format!("{node} was declared dead by {by}, which is dead"));
        }
        if now > link.blamed_until {
            self.violated(format!(
                "{node} was declared dead though it was never silent"
            ));
        }
        self.change(suspect, |link| link.is_dead = true);
        self.state().report.deaths += 1;
    }

    /// Checks every second that agents stop whose lease was taken or whose incarnation is over.
    pub(super) async fn watch(self: Arc<Self>) {
        let mut stale: BTreeMap<(NodeId, AgentId), u64> = BTreeMap::new();
        let mut suspended: BTreeMap<NodeId, u64> = BTreeMap::new();
        loop {
            sleep(Duration::from_secs(1)).await;
            let now = self.millis();
            self.note_disturbances(now);
            let mut still = BTreeMap::new();
            for id in self.living() {
                let link = self.link(&id);
                let Some(node) = link.node.upgrade() else {
                    continue;
                };
                if node.services().handles.view.is_suspended() {
                    suspended.entry(id.clone()).or_insert(now);
                } else {
                    suspended.remove(&id);
                }
                for agent in self.stale_on(&node) {
                    let key = (id.clone(), agent);
                    let since = *stale.get(&key).unwrap_or(&now);
                    let is_long = now > since + STOPS_WITHIN
                        && link.disturbed_at.is_none_or(|at| at + CALM_FOR < since);
                    let known = suspended.get(&id).map(|at| since.max(*at));
                    let is_known = known.is_some_and(|known| {
                        let has_sql = link.no_sql_at.is_none_or(|at| at < known);
                        has_sql && now > known + STOPS_WHEN_SUSPENDED
                    });
                    if is_long || is_known {
                        let (agent, node) = (self.name("agent", &key.1), self.name("node", &id));
                        self.violated(format!("{agent} still runs on {node}, stale since {since}"));
                    }
                    still.insert(key, since);
                }
            }
            stale = still;
        }
    }

    fn note_disturbances(&self, now: u64) {
        let mut state = self.state();
        let sql = state.is_sql_away || state.lost > 0;
        let registry = state.is_registry_away;
        for link in state.nodes.values_mut() {
            if sql || !link.has_sql {
                link.no_sql_at = Some(now);
            }
            if sql || registry || !link.has_sql || !link.has_nats {
                link.disturbed_at = Some(now);
            }
        }
    }

    fn stale_on(&self, node: &crate::node::Node) -> Vec<AgentId> {
        let hostings = node.services().handles.host.hostings();
        let data = self.data();
        let is_stale = |hosting: &crate::actor::Hosting| {
            let session = data.sessions.get(&hosting.session.id)?;
            let agent = session.agent(&hosting.agent)?;
            let lead = session.agent(&hosting.session.lead)?;
            Some(agent.epoch > hosting.epoch || lead.incarnation > hosting.session.incarnation)
        };
        let stale = hostings
            .into_iter()
            .filter(|hosting| is_stale(hosting) == Some(true));
        stale.map(|hosting| hosting.agent).collect()
    }

    /// Checks that an agent reads an input that was acknowledged now.
    pub(super) async fn expect_read(&self, session: &SessionId, input: &planck_common::InputId) {
        let since = self.millis();
        self.state().report.inputs += 1;
        sleep(Duration::from_millis(READ_WITHIN)).await;
        if !self.is_calm_since(since) {
            return;
        }
        self.state().report.input_bounds += 1;
        let is_unread = {
            let data = self.data();
            let session = data.sessions.get(session);
            session.is_some_and(|session| {
                let row = session.inputs.iter().find(|row| row.input.id == *input);
                row.is_none_or(|row| {
                    let agent = session.agent(&row.input.agent);
                    let is_idle = agent.is_none_or(|agent| agent.state == AgentState::Idle);
                    row.is_unread() && row.outcome.is_none() && is_idle
                })
            })
        };
        if is_unread {
            self.violated("an input was acknowledged and not read in time".to_owned());
        }
    }

    /// Checks an answer that was acknowledged now: that it is the stored one, and that its agent
    /// reads it.
    pub(super) async fn expect_answer(
        &self,
        session: &SessionId,
        wait: &CallId,
        decision: WaitDecision,
    ) {
        let since = self.millis();
        let call = self.name("call", wait);
        {
            let mut state = self.state();
            state.report.answers += 1;
            state
                .answers
                .push((session.clone(), wait.clone(), decision));
        }
        sleep(Duration::from_millis(READ_WITHIN)).await;
        if !self.is_calm_since(since) {
            return;
        }
        self.state().report.answer_bounds += 1;
        let is_unread = {
            let data = self.data();
            let wait = data
                .sessions
                .get(session)
                .map(|session| &session.waits[wait]);
            wait.is_some_and(|wait| wait.state == WaitState::Answered)
        };
        if is_unread {
            self.violated(format!(
                "the answer to {call} was acknowledged and not read in time"
            ));
        }
    }

    /// Checks that the stored answers are those that were acknowledged.
    pub(super) fn check_answers(&self) {
        let wrong = {
            let data = self.data();
            let state = self.state();
            let mut answers = state.answers.iter();
            let wrong = answers.find(|(session, wait, decision)| {
                let stored = data
                    .sessions
                    .get(session)
                    .map(|session| &session.waits[wait]);
                stored.is_some_and(|stored| stored.decision() != Some(*decision))
            });
            wrong.map(|(_, wait, _)| wait.clone())
        };
        if let Some(wait) = wrong {
            let call = self.name("call", &wait);
            self.violated(format!("{call} has two decisions"));
        }
    }

    /// Checks that an abort that was acknowledged now ends the turn.
    pub(super) async fn expect_abort(&self, session: &SessionId, agent: &AgentId, turn: u32) {
        let since = self.millis();
        self.state().report.aborts += 1;
        sleep(Duration::from_millis(ABORTS_WITHIN)).await;
        if !self.is_calm_since(since) {
            return;
        }
        self.state().report.abort_bounds += 1;
        let is_open = {
            let data = self.data();
            let session = data.sessions.get(session);
            session.and_then(|session| session.open_turn(agent)) == Some(turn)
        };
        if is_open {
            let agent = self.name("agent", agent);
            self.violated(format!(
                "an abort has not ended the turn of {agent} in time"
            ));
        }
    }
}

impl Cluster {
    /// Checks that a node that crashed now is declared dead and its agents continue in time, if
    /// nothing else happens.
    pub(super) async fn expect_failover(self, node: NodeId) {
        let (world, since) = (Arc::clone(&self.world), self.world.millis());
        let others = {
            let state = world.state();
            let from = since.saturating_sub(CALM_FOR);
            let until = since + FAILOVER_WITHIN;
            let faults = state.faults.iter();
            faults
                .filter(|(begin, end)| *begin <= until && *end >= from)
                .count()
        };
        if others > 1 {
            return;
        }
        world.state().report.bounds += 1;
        let name = world.name("node", &node);
        sleep(Duration::from_millis(DEATH_WITHIN)).await;
        let key = Key::Node(node.clone()).to_string();
        let record = self
            .records
            .read(&key)
            .await
            .ok()
            .and_then(|record| record.value);
        let record = record.and_then(|value| serde_json::from_slice::<NodeRecord>(&value).ok());
        if record.is_some_and(|record| record.state != NodeStanding::Dead) {
            world.violated(format!(
                "{name} crashed at {since} and is not declared dead"
            ));
        }
        sleep(Duration::from_millis(FAILOVER_WITHIN - DEATH_WITHIN)).await;
        let left = world.data().held_by(&node, |_| true);
        if let Some(left) = left.first() {
            let agent = world.name("agent", &left.agent);
            world.violated(format!(
                "{agent} of {name}, which crashed at {since}, was not taken over"
            ));
        }
    }
}
