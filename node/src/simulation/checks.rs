//! The conditions that must hold despite all faults. They are checked at the events that they
//! concern, every second, and when the cluster is at rest. All times are in virtual milliseconds.

mod teams;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use planck_common::{
    AgentId, CallId, NodeId, SessionId, Timestamp,
    command::{AgentState, SessionState},
    registry::{Key, NodeRecord, NodeStanding},
    spec::OnNodeDeath,
    wait::{WaitDecision, WaitState},
};
use planck_toolbox::Invocation;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub(super) use self::teams::TeamNotes;
use super::{
    faults::Fault,
    node::Cluster,
    store::SimSession,
    world::{RunningTool, SimState, SimWorld},
};
use crate::bus::records::Write;
use planck_store::LeaseClaim;

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
/// The time within which a wait that has expired ends its call, without a fault.
const EXPIRES_WITHIN: u64 = 13_000;
/// Of 1,000 sessions that are closed because their node died, in how many the database becomes
/// unavailable meanwhile.
const CLOSES_INTERRUPTED: u32 = 500;
/// Of 1,000 deaths, after how many a node loses NATS for a moment.
const DEATHS_INTERRUPTED: u32 = 100;
/// How long an agent may run after its lease was taken or its incarnation ended.
const STOPS_WITHIN: u64 = 13_000;
/// The same for a node that is suspended and reads SQL.
const STOPS_WHEN_SUSPENDED: u64 = 5_000;
/// How long after a lease was taken its former holder may begin a tool call.
const TOOLS_AFTER_LOSS: u64 = 1_500;
/// How long before the start of a tool a fault excuses that an earlier tool still runs.
const EXCUSED_FOR: u64 = 13_000;
/// The time within which a suspended node ends a tool whose lease was taken, because it reads its leases
/// in SQL every second.
const SEEN_IN_SQL: u64 = 1_300;
/// For how long a missing answer of SQL excuses that a node does not know its leases.
const MISSED_FOR: u64 = 4_000;
/// How long a node must not have sent a heartbeat that NATS received before it is declared dead. It is
/// the time after which a silent node is suspected, less the travel of a heartbeat.
const LEAST_SILENCE: u64 = 2_300;
/// How long before a declaration of death the heartbeats of the node are examined.
const BEATS_EXAMINED: u64 = 6_000;
/// How long after a node was silent a peer may still declare it dead.
const BLAME_LASTS: u64 = 13_000;
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
    /// Waits that expired without a fault around.
    pub expiries: u64,
    /// Tasks between agents that have their outcome.
    pub tasks: u64,
    /// Turns that ended with an answer in a shape.
    pub shapes: u64,
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
        self.expiries += other.expiries;
        self.tasks += other.tasks;
        self.shapes += other.shapes;
    }
}

impl SimState {
    /// Returns whether the node of a running tool may not know yet that it must end the tool, although
    /// another one starts. That is so if the node was cut off or disturbed, unless it is suspended and
    /// should have read in SQL that its agent's lease was taken.
    fn may_run_on(&self, old: &RunningTool, new: &RunningTool, now: u64) -> bool {
        let link = &self.nodes[&old.node];
        let outages = self.outages_of(&old.node);
        let is_running = !link.is_crashed && outages.paused <= now;
        let apart_until = outages.nats.max(self.island.1);
        let excused_until = match is_running {
            true => apart_until.max(outages.disturbed_until()).max(outages.slow),
            false => apart_until,
        };
        if excused_until + EXCUSED_FOR <= now {
            return false;
        }
        let taken = self
            .taken
            .get(&old.agent)
            .filter(|(_, epoch)| *epoch > old.epoch);
        let (Some((taken, _)), Some(suspended)) = (taken, link.suspended_at) else {
            return true;
        };
        // A member is claimed later than its lead, so a tool of the lead may start soon after the claim
        // of the member.
        let known_from = if new.agent == old.agent {
            suspended
        } else {
            suspended.max(*taken)
        };
        let has_missed = outages.no_sql_until().max(outages.slow) + MISSED_FOR > now;
        !is_running || has_missed || now <= known_from + SEEN_IN_SQL
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

    /// Waits for a time. Returns whether no fault happened around it.
    async fn is_calm_for(&self, time: Duration) -> bool {
        let since = self.millis();
        sleep(time).await;
        self.is_calm_since(since)
    }

    /// Checks a tool call that is about to run.
    pub(super) fn tool_began(&self, node: &NodeId, call: &Invocation) -> CancellationToken {
        let link = self.link(node);
        let hosting = link.node.upgrade();
        let hosting = hosting.and_then(|node| node.services().handles.host.hosting(&call.agent_id));
        let new = RunningTool {
            node: node.clone(),
            session: call.session_id.clone(),
            agent: call.agent_id.clone(),
            epoch: call.epoch,
            incarnation: hosting.map_or(i64::MAX, |hosting| hosting.session.incarnation),
            stop: CancellationToken::new(),
        };
        let stop = new.stop.clone();
        let mut wrong = self.misses_in_store(node, call);
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
        stop
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
        let earlier = state.running.iter().filter(|(_, old)| {
            let is_superseded = old.agent == new.agent && old.epoch < new.epoch;
            let is_over = old.session == new.session && old.incarnation < new.incarnation;
            is_superseded || is_over
        });
        let known = earlier.filter(|(_, old)| !state.may_run_on(old, new, now));
        let still: Vec<_> = known
            .map(|(call, old)| (call.clone(), old.node.clone()))
            .collect();
        let count = state.began.entry(call.clone()).or_default();
        *count += 1;
        if *count > 1 {
            wrong.push("a call ran twice".to_owned());
        }
        state.running.insert(call.clone(), new.clone());
        drop(state);
        for (call, on) in still {
            let (call, on) = (self.name("call", &call), self.name("node", on.as_str()));
            wrong.push(format!(
                "{call}, which is of an earlier time, still ran on {on}"
            ));
        }
        wrong
    }

    /// Returns what the store lacks for a call to begin.
    fn misses_in_store(&self, node: &NodeId, call: &Invocation) -> Vec<String> {
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
        if self.must_close(session) && !self.is_excused(node) {
            wrong.push("its session stops with its node".to_owned());
        }
        wrong
    }

    /// Returns whether a node was disturbed so lately that it may not have learned what it must stop.
    fn is_excused(&self, node: &NodeId) -> bool {
        self.outages(node).disturbed_until() + EXCUSED_FOR > self.millis()
    }

    /// Returns whether a session is to be closed because its node died, and is not closed yet.
    pub(super) fn must_close(&self, session: &SimSession) -> bool {
        self.state().must_close.contains(&session.record().id)
    }

    /// Checks a claim. `from` held the lease before.
    pub(super) fn claimed(
        self: &Arc<Self>,
        stored: &SimSession,
        agent: &AgentId,
        (from, by): (&NodeId, &NodeId),
        (claim, epoch): (&LeaseClaim, i64),
    ) {
        self.claimed_again(stored, agent, (from, by), epoch - 1);
        let session = stored.record();
        let (link, now) = (self.link(from), self.millis());
        let running = link.node.upgrade();
        let runs_it = running.is_some_and(|node| node.services().handles.host.has(agent));
        // The order to stop its team may have been lost.
        let is_unordered = self.outages(from).lossy + EXCUSED_FOR > now;
        if from != by && link.silent_until == 0 && runs_it && !is_unordered {
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
        let is_lost = matches!(claim, LeaseClaim::Lead { after_death: true });
        if is_lost && stops && is_open && link.is_crashed && !link.has_left {
            state.report.closes += 1;
            state.must_close.insert(session.id.clone());
            drop(state);
            let time = Duration::from_millis(self.draw(1_000..4_000));
            self.may_interrupt(CLOSES_INTERRUPTED, 0..80, Fault::SqlAway(time));
        }
    }

    /// Checks writes to the registry that were accepted: proofs of life and declarations of death.
    pub(super) fn registry_wrote(self: &Arc<Self>, by: &NodeId, writes: &[Write], sent: u64) {
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
                    match record.state {
                        NodeStanding::Dead => self.declared_dead(by, &node, sent),
                        NodeStanding::Left => self.change(&node, |link| link.has_left = true),
                        NodeStanding::Alive | NodeStanding::Draining => {}
                    }
                }
                Some(Key::Team(team, incarnation)) => self.team_written((team, incarnation), write),
                _ => {}
            }
        }
    }

    fn declared_dead(self: &Arc<Self>, observer: &NodeId, suspect: &NodeId, sent: u64) {
        let (by, node) = (self.name("node", observer), self.name("node", suspect));
        self.note(&format!("{node} is dead, says {by}"));
        let now = self.millis();
        let link = self.link(suspect);
        if self.link(observer).is_dead {
            self.violated(format!("{node} was declared dead by {by}, which is dead"));
        }
        if now > link.silent_until.saturating_add(BLAME_LASTS) {
            self.violated(format!(
                "{node} was declared dead though it was never silent"
            ));
        }
        if !link.is_crashed && !link.is_dead && self.has_beaten(suspect, observer, sent) {
            self.violated(format!(
                "{node} was declared dead by {by} though its heartbeats had no gap"
            ));
        }
        self.change(suspect, |link| link.is_dead = true);
        self.leader_died(suspect);
        let place = usize::try_from(self.draw(0..2)).unwrap();
        let time = Duration::from_millis(self.draw(200..1_000));
        self.may_interrupt(DEATHS_INTERRUPTED, 0..10, Fault::CutOffNats(place, time));
        self.state().report.deaths += 1;
    }

    /// Returns whether a node sent heartbeats without a long gap until an observer decided that it is
    /// dead, and the observer could receive them. An observer may take a gap of its own link for silence
    /// of the node, if its own heartbeats came back after the gap.
    fn has_beaten(&self, suspect: &NodeId, observer: &NodeId, decided: u64) -> bool {
        let from = decided.saturating_sub(BEATS_EXAMINED);
        let state = self.state();
        let [own, its] = [observer, suspect].map(|node| state.outages_of(node));
        let was_back = (from..decided).contains(&own.nats.max(own.paused));
        let was_apart = state.island.1 > from;
        if was_back || was_apart || own.lossy.max(own.slow).max(its.slow) > from {
            return false;
        }
        let beats = state.beats.get(suspect).into_iter().flatten().copied();
        let beats: Vec<u64> = beats.filter(|at| *at < decided).chain([decided]).collect();
        let mut gaps = beats.windows(2).filter(|pair| pair[1] > from);
        beats[0] <= from && gaps.all(|pair| pair[1] - pair[0] < LEAST_SILENCE)
    }

    /// Checks every second that agents stop whose lease was taken or whose incarnation is over.
    pub(super) async fn watch(self: Arc<Self>) {
        let mut stale: BTreeMap<(NodeId, AgentId), u64> = BTreeMap::new();
        loop {
            sleep(Duration::from_secs(1)).await;
            let now = self.millis();
            let mut still = BTreeMap::new();
            for id in self.living() {
                let Some(node) = self.link(&id).node.upgrade() else {
                    continue;
                };
                let is_suspended = node.services().handles.view.is_suspended();
                self.change(&id, |link| {
                    link.suspended_at = is_suspended.then(|| link.suspended_at.unwrap_or(now));
                });
                let (link, outages) = (self.link(&id), self.outages(&id));
                if outages.paused > now {
                    continue;
                }
                for agent in self.stale_on(&node) {
                    let key = (id.clone(), agent);
                    let since = *stale.get(&key).unwrap_or(&now);
                    let is_calm = outages.disturbed_until() + CALM_FOR < since;
                    let is_long = is_calm && now > since + STOPS_WITHIN;
                    let known = link.suspended_at.map(|at| since.max(at));
                    let is_known = known.is_some_and(|known| {
                        outages.no_sql_until() < known && now > known + STOPS_WHEN_SUSPENDED
                    });
                    if is_long || is_known {
                        let (agent, node) = (self.name("agent", &key.1), self.name("node", &id));
                        self.violated(format!("{agent} still runs on {node}, stale since {since}"));
                    }
                    still.insert(key, since);
                }
            }
            stale = still;
            self.watch_teams(now);
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
        self.state().report.inputs += 1;
        if !self.is_calm_for(Duration::from_millis(READ_WITHIN)).await {
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
        let call = self.name("call", wait);
        {
            let mut state = self.state();
            state.report.answers += 1;
            state
                .answers
                .push((session.clone(), wait.clone(), decision));
        }
        if !self.is_calm_for(Duration::from_millis(READ_WITHIN)).await {
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

    /// Returns whether the time of a wait is over.
    pub(super) fn has_expired(&self, session: &SessionId, wait: &CallId) -> bool {
        let data = self.data();
        let session = data.sessions.get(session);
        let wait = session.and_then(|session| session.wait(wait));
        wait.is_some_and(|wait| wait.expires_at.is_some_and(|at| at <= Timestamp::now()))
    }

    /// Checks that a wait that no client answers ends its call once its time, which is `lasts`, is
    /// over.
    pub(super) async fn expect_expiry(&self, session: &SessionId, wait: &CallId, lasts: Duration) {
        let until = lasts + Duration::from_millis(EXPIRES_WITHIN);
        if !self.is_calm_for(until).await {
            return;
        }
        self.state().report.expiries += 1;
        let is_live = {
            let data = self.data();
            let session = data.sessions.get(session);
            session.is_some_and(|session| session.waits[wait].is_live())
        };
        if is_live {
            let call = self.name("call", wait);
            self.violated(format!("the wait of {call} has expired and not ended"));
        }
    }

    /// Checks that an abort that was acknowledged now ends the turn.
    pub(super) async fn expect_abort(&self, session: &SessionId, agent: &AgentId, turn: u32) {
        self.state().report.aborts += 1;
        if !self.is_calm_for(Duration::from_millis(ABORTS_WITHIN)).await {
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
        let is_alone = || {
            let state = world.state();
            let from = since.saturating_sub(CALM_FOR);
            let until = since + FAILOVER_WITHIN;
            let near = |(begin, end): &&(u64, u64)| *begin <= until && *end >= from;
            state.faults.iter().filter(near).count() <= 1
        };
        if !is_alone() {
            return;
        }
        world.state().report.bounds += 1;
        let name = world.name("node", &node);
        sleep(Duration::from_millis(DEATH_WITHIN)).await;
        let standing = self.records.standing(&node);
        if standing.is_some_and(|standing| standing != NodeStanding::Dead) {
            world.violated(format!(
                "{name} crashed at {since} and is not declared dead"
            ));
        }
        sleep(Duration::from_millis(FAILOVER_WITHIN - DEATH_WITHIN)).await;
        let left = world.data().held_by(&node, |_| true);
        if let Some(left) = left.first().filter(|_| is_alone()) {
            let agent = world.name("agent", &left.agent);
            world.violated(format!(
                "{agent} of {name}, which crashed at {since}, was not taken over"
            ));
        }
    }
}
