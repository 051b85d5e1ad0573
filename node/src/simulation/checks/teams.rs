//! The conditions on teams: which incarnation is marked dead, which agents stop with it, and which
//! node its record names.

use std::collections::BTreeMap;

use planck_common::{
    AgentId, NodeId, SessionId, TeamId,
    command::SessionState,
    registry::{TeamEnd, TeamRecord, TeamStanding},
};

use super::CALM_FOR;
use crate::{
    actor::Hosting,
    bus::records::Write,
    simulation::{
        store::SimSession,
        world::{SimLink, SimWorld},
    },
};

/// The time within which a living node stops the members of a team whose leader was declared dead,
/// if the node reaches the registry.
const ENDS_WITHIN: u64 = 4_000;

/// The state of the checks on teams.
#[derive(Default)]
pub(in crate::simulation) struct TeamNotes {
    /// The last accepted record of each incarnation.
    records: BTreeMap<(TeamId, i64), TeamRecord>,
    /// The incarnation in which the lease of an agent was last claimed.
    claimed_in: BTreeMap<AgentId, i64>,
    /// The leaders that were declared dead, and when.
    dead_leaders: Vec<(NodeId, u64)>,
}

/// Returns whether an outage that lasted until `until`, or 0 if there was none, is long over.
fn calm_after(until: u64, now: u64) -> bool {
    until == 0 || until + CALM_FOR < now
}

impl SimWorld {
    /// Checks a record of a team that was written. Only the end of the node that leads the current
    /// incarnation may end that incarnation, unless its session was closed or stopped.
    pub(super) fn team_written(&self, team: (TeamId, i64), write: &Write) {
        let value = write.value.as_deref();
        let record = value.and_then(|value| serde_json::from_slice::<TeamRecord>(value).ok());
        let Some(record) = record else { return };
        let condition = write.only_if.as_ref();
        let had_record = condition.is_some_and(|condition| condition.revision > 0);
        let is_dead = record.state == TeamStanding::Dead;
        if is_dead && had_record && record.reason == Some(TeamEnd::NodeDead) {
            self.team_lost_leader(team.1, &record);
        }
        self.state().teams.records.insert(team, record);
    }

    fn team_lost_leader(&self, incarnation: i64, record: &TeamRecord) {
        let leader = self.link(&record.node);
        let is_gone = leader.is_dead || leader.has_left || leader.is_crashed;
        let is_current = {
            let data = self.data();
            let session = data.sessions.get(&record.session);
            session.is_some_and(|session| session.incarnation() == incarnation)
        };
        if is_current && !is_gone && !self.has_lost_writes() {
            let session = self.name("session", &record.session);
            let node = self.name("node", &record.node);
            self.violated(format!(
                "incarnation {incarnation} of {session} was marked dead, which {node} leads"
            ));
        }
    }

    /// Checks that a node that claims one of its own agents again, which worked at the epoch `last`,
    /// did not stop the agent although its incarnation lives.
    pub(super) fn claimed_again(
        &self,
        session: &SimSession,
        agent: &AgentId,
        (from, by): (&NodeId, &NodeId),
        last: i64,
    ) {
        let now = self.millis();
        let incarnation = session.incarnation();
        let team = (session.record().spec.team_id, incarnation);
        let is_again = {
            let notes = &mut self.state().teams;
            let before = notes.claimed_in.insert(agent.clone(), incarnation);
            let record = notes.records.get(&team);
            let lives = record.is_some_and(|record| record.state == TeamStanding::Alive);
            from == by && before == Some(incarnation) && lives
        };
        let is_calm = !self.has_lost_writes() && calm_after(self.outages(by).no_sql_until(), now);
        // A node may claim an agent twice while it starts the agent.
        let mut rows = session.log.iter().rev();
        let has_worked = rows.any(|row| row.agent == *agent && row.epoch == last);
        if is_again && is_calm && has_worked {
            let (agent, node) = (self.name("agent", agent), self.name("node", by));
            self.violated(format!(
                "{agent} was stopped on {node}, though incarnation {incarnation} lives"
            ));
        }
    }

    /// Notes that a node was declared dead, whose teams must stop now.
    pub(super) fn leader_died(&self, node: &NodeId) {
        let now = self.millis();
        self.state().teams.dead_leaders.push((node.clone(), now));
    }

    /// Checks on each node that the record of a team names the node that hosts its orchestrator, and
    /// that the members of a team are stopped whose leader was declared dead.
    pub(super) fn watch_teams(&self, now: u64) {
        let dead = {
            let leaders = &mut self.state().teams.dead_leaders;
            let due = leaders.partition_point(|(_, at)| at + ENDS_WITHIN <= now);
            leaders.drain(..due).collect::<Vec<_>>()
        };
        for id in self.living() {
            let link = self.link(&id);
            let Some(node) = link.node.upgrade() else {
                continue;
            };
            for hosting in node.services().handles.host.hostings() {
                if let Some(wrong) = self.wrong_team(&id, &link, &hosting, &dead) {
                    let (agent, node) =
                        (self.name("agent", &hosting.agent), self.name("node", &id));
                    self.violated(format!("{agent} runs on {node}, but {wrong}"));
                }
            }
        }
    }

    fn wrong_team(
        &self,
        node: &NodeId,
        link: &SimLink,
        hosting: &Hosting,
        dead: &[(NodeId, u64)],
    ) -> Option<String> {
        let session = &hosting.session;
        let team = (session.team.clone(), session.incarnation);
        let record = self.state().teams.records.get(&team).cloned()?;
        let (has_lost, outages) = (self.has_lost_writes(), self.outages(node));
        let reads_since = |from: u64| {
            let away_until = outages
                .no_registry_until()
                .max(outages.watches)
                .max(outages.slow);
            !has_lost && link.silent_until == 0 && (away_until == 0 || away_until < from)
        };
        let ended = dead.iter().find(|(leader, _)| record.node == *leader);
        if let Some((leader, at)) = ended.filter(|(_, at)| reads_since(at.saturating_sub(1_000))) {
            let leader = self.name("node", leader);
            return Some(format!("{leader}, which led its team, is dead since {at}"));
        }
        let is_led_here = session.lead == hosting.agent && record.state == TeamStanding::Alive;
        if !is_led_here
            || record.node == *node
            || !reads_since(self.millis().saturating_sub(CALM_FOR))
        {
            return None;
        }
        let holds = {
            let data = self.data();
            let session = data.sessions.get(&session.id)?;
            let is_open = session.record().state == SessionState::Open;
            is_open && session.agent(&hosting.agent)?.epoch == hosting.epoch
        };
        holds.then(|| {
            format!(
                "{} leads its team in the registry",
                self.name("node", &record.node)
            )
        })
    }

    /// Checks that no member runs on in a session that a client closed now, without a fault around.
    pub(in crate::simulation) fn closed(&self, session: &SessionId) {
        let held = {
            let data = self.data();
            let closed = data.sessions.get(session);
            let closed = closed.filter(|session| session.record().state == SessionState::Closed);
            closed.and_then(|session| {
                let lead = session.record().spec.lead;
                let mut agents = session.agents.iter();
                let held = agents.find(|agent| agent.id != lead && agent.node.is_some());
                held.map(|agent| agent.id.clone())
            })
        };
        if let Some(agent) = held.filter(|_| self.is_calm_since(self.millis())) {
            let agent = self.name("agent", &agent);
            self.violated(format!("{agent} is held in a session that was closed"));
        }
    }
}
