//! Inputs on their way to a simulated agent, as in `sessions/prompt.rs`, `sessions/delivery.rs` and
//! `actor/run.rs`. A node puts an input, makes sweeps find it, and notifies the agent's host. Without
//! a permit, the host puts the input aside until a sweep finds it.

use super::{
    inbox::{InputNumber, InputSource, InputState, SimInput},
    people::PersonAbort,
    process::{AgentStage, ProcessEvent, SqlCaller},
    sql::{AgentKey, SqlReply, SqlStatement},
    world::SimWorld,
};
use crate::planted::{PlantedFault, is_planted};

/// How long after a failed read of an inbox a node that loads the agent reads it again, in
/// milliseconds.
const LOADS_AGAIN_AFTER: u64 = 500;

impl SimWorld {
    pub fn put(&mut self, process: usize, input: SimInput) {
        let statement = SqlStatement::Put { input };
        self.query(process, statement, SqlCaller::Put(input));
    }

    /// Puts a task for another agent of the same session, during a turn of `agent`.
    pub fn give_task(&mut self, process: usize, agent: AgentKey, number: InputNumber) {
        let input = SimInput {
            source: InputSource::Task,
            ..self.note_of(agent, number)
        };
        self.put(process, input);
    }

    /// Returns a note of an agent for another agent of the same session.
    pub fn note_of(&mut self, (session, agent): AgentKey, number: InputNumber) -> SimInput {
        let agents = self.sql.sessions[session].row.leases.len();
        let to = (agent + self.rng.usize(1..agents)) % agents;
        SimInput {
            number,
            agent: (session, to),
            source: InputSource::Note,
        }
    }

    /// Continues a put after an answer of the store. On SQLite the node remembers what it put for an
    /// agent of its own, and adds any other input to the index. An input that was put before may be
    /// missing in both, so the node adds it to the index if it is unread.
    pub fn put_replied(
        &mut self,
        process: usize,
        input: SimInput,
        statement: &SqlStatement,
        reply: &SqlReply,
    ) {
        match (statement, reply) {
            (SqlStatement::Put { .. }, SqlReply::Put { node, lead, known }) => {
                let (node, lead) = (*node, *lead);
                let is_unread = known.is_none_or(|state| state == InputState::Unread);
                let is_own = known.is_none() && node == Some(process);
                if !is_unread {
                    self.input_acknowledged(input);
                } else if self.sql.index.is_none() {
                    self.delivered(process, input, (node, lead));
                } else if is_own {
                    self.remember(process, input);
                    self.delivered(process, input, (node, lead));
                } else {
                    let statement = SqlStatement::Announce { input, node, lead };
                    self.query(process, statement, SqlCaller::Put(input));
                }
            }
            (SqlStatement::Announce { node, lead, .. }, SqlReply::Done) => {
                self.delivered(process, input, (*node, *lead));
            }
            (_, SqlReply::Refused) => {
                self.checks.settle_input(input.number);
            }
            // The outcome is unknown. A person puts the input again.
            _ => {}
        }
    }

    fn remember(&mut self, process: usize, input: SimInput) {
        if !is_planted(PlantedFault::OwnPutsUnswept) {
            let sweep = &mut self.processes[process].sweep;
            sweep.to_sweep.insert(input.agent.0);
        }
    }

    /// Acknowledges an input, and notifies the host of its agent. If no living node hosts the agent,
    /// has it taken up. `node` and `lead` hold the leases of the agent and of the lead.
    fn delivered(
        &mut self,
        process: usize,
        input: SimInput,
        (node, lead): (Option<usize>, Option<usize>),
    ) {
        self.input_acknowledged(input);
        if self.processes[process].hosted.contains_key(&input.agent) {
            return self.arrived(process, input);
        }
        match self.living(process, node) {
            Some(node) => self.notify_host(process, node, ProcessEvent::Arrived { input }),
            None => self.have_taken_up(process, input.agent.0, lead),
        }
    }

    /// Returns the node that holds a lease, if it is another one and counts as alive.
    fn living(&self, process: usize, node: Option<usize>) -> Option<usize> {
        let alive = self.alive(process);
        node.filter(|node| *node != process && alive.contains(node))
    }

    /// Has the agents of a session that have no host taken up, by the host of the lead if it lives.
    fn have_taken_up(&mut self, process: usize, session: usize, lead: Option<usize>) {
        match self.living(process, lead) {
            Some(lead) => self.notify_host(process, lead, ProcessEvent::TakeUp { session }),
            None => self.take_up(process, session),
        }
    }

    fn notify_host(&mut self, process: usize, host: usize, event: ProcessEvent) {
        if !self.loses_wake() {
            self.send(process, host, event);
        }
    }

    /// Handles an input that was put for an agent on this node. Without a permit the input stays in
    /// the inbox, and the sweep that begins when the permit returns makes the agent read its inbox.
    /// A parked agent is loaded, for which no permit is needed.
    pub fn arrived(&mut self, process: usize, input: SimInput) {
        let may_act = self.may_act(process);
        let hosted = self.processes[process].hosted.get_mut(&input.agent);
        let Some(hosted) = hosted else {
            return;
        };
        if hosted.stage == AgentStage::Parked {
            return self.read_inbox(process, input.agent, true);
        }
        if may_act && !hosted.taken.contains(&input.number) {
            hosted.queue.insert(input.number);
            self.settle(process, input.agent);
        }
    }

    /// Makes an agent read its inbox, if it is parked or the node has a permit.
    pub fn look_into_inbox(&mut self, process: usize, agent: AgentKey, may_act: bool) {
        let hosted = self.processes[process].hosted.get(&agent);
        let Some(hosted) = hosted.filter(|_| self.has_turns) else {
            return;
        };
        let is_parked = hosted.stage == AgentStage::Parked;
        if is_parked || may_act {
            self.read_inbox(process, agent, is_parked);
        }
    }

    pub fn read_inbox(&mut self, process: usize, agent: AgentKey, is_load: bool) {
        let Some(hosted) = self.processes[process].hosted.get_mut(&agent) else {
            return;
        };
        if hosted.stage == AgentStage::Parked {
            hosted.stage = AgentStage::Idle;
        }
        let statement = SqlStatement::ReadInbox {
            agent,
            epoch: hosted.epoch,
            is_load,
        };
        self.query(process, statement, SqlCaller::Agent);
    }

    pub fn load_again(&mut self, process: usize, agent: AgentKey, epoch: i64) {
        let hosted = self.processes[process].hosted.get(&agent);
        if hosted.is_some_and(|hosted| hosted.epoch == epoch) {
            self.read_inbox(process, agent, true);
        }
    }

    /// Handles the answer to the read of an inbox. If the read failed, a load repeats it, and
    /// otherwise the next sweep requests another one.
    pub fn inbox_read(&mut self, process: usize, statement: &SqlStatement, reply: &SqlReply) {
        let SqlStatement::ReadInbox {
            agent,
            epoch,
            is_load,
        } = *statement
        else {
            return;
        };
        let SqlReply::Inbox(unread) = reply else {
            if is_load {
                let again = ProcessEvent::Load { agent, epoch };
                self.tell(process, LOADS_AGAIN_AFTER, again);
            }
            return;
        };
        let hosted = self.processes[process].hosted.get_mut(&agent);
        let Some(hosted) = hosted.filter(|hosted| hosted.epoch == epoch) else {
            return;
        };
        let new = unread.iter().filter(|input| !hosted.taken.contains(input));
        hosted.queue.extend(new.copied());
        if hosted.stage == AgentStage::Parked && !hosted.queue.is_empty() {
            hosted.stage = AgentStage::Idle;
        }
        self.settle(process, agent);
    }

    /// Passes an abort to the host of the agent, as in `sessions/remote.rs`. An agent without a
    /// living host is taken up, and the person sends the abort again.
    pub fn abort_replied(&mut self, process: usize, abort: PersonAbort, reply: &SqlReply) {
        let SqlReply::Session(row) = reply else {
            return;
        };
        if self.processes[process].hosted.contains_key(&abort.agent) {
            return self.abort(process, abort);
        }
        let (session, agent) = abort.agent;
        match self.living(process, row.leases[agent].node) {
            Some(node) => self.send(process, node, ProcessEvent::Abort { abort }),
            None => self.have_taken_up(process, session, row.leases[0].node),
        }
    }

    /// Ends the turn of an agent that waits for the answer to a call. Needs no permit.
    pub fn abort(&mut self, process: usize, PersonAbort { agent, call }: PersonAbort) {
        let hosted = self.processes[process].hosted.get_mut(&agent);
        if let Some(hosted) = hosted.filter(|hosted| hosted.stage == AgentStage::Asking(call)) {
            hosted.stage = AgentStage::Aborting(call);
            self.append(process, agent);
        }
    }
}
