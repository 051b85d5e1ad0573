//! The simulated agents, which begin and end tool calls and append both events to the log under
//! their lease. Before some calls they ask, and then run or end the call as the answer says. In some
//! runs the agents work in turns, which begin when they have read an input.

use std::collections::BTreeSet;

use planck_common::wait::WaitDecision;

use super::{
    inbox::InboxChange,
    process::{AgentStage, HostOrder, HostedAgent, ProcessEvent, SqlCaller},
    sql::{
        AgentKey, CallNumber, ClaimedLease, LogRow, LogRowKind, OpenCall, OpenWork, SqlReply,
        SqlStatement,
    },
    world::{SimWorld, agent_id, team},
};
use crate::{
    cascade::CascadeInput,
    planted::{PlantedFault, is_planted},
};

/// One in this many tool calls takes 5 s to 15 s.
const LONG_CALLS: u32 = 6;
/// The maximum number of tool calls in a turn.
const CALLS_IN_TURN: u32 = 4;
/// In place of one in this many tool calls, an agent gives another one a task.
const TASKS: u32 = 8;
/// One in this many turns leaves a note for another agent.
const NOTES: u32 = 4;
/// One in this many agents is parked within 6 s after its turn has ended.
const PARKED: u32 = 2;

impl AgentStage {
    /// Returns the row that the agent appends, or `None` if it appends none.
    fn row(self) -> Option<(LogRowKind, CallNumber)> {
        match self {
            Self::Beginning(call) => Some((LogRowKind::TurnStart, call)),
            Self::Finishing(call) => Some((LogRowKind::TurnEnd, call)),
            Self::Aborting(call) => Some((LogRowKind::Aborted, call)),
            Self::Starting(call) => Some((LogRowKind::ToolStart, call)),
            Self::Ending(call) => Some((LogRowKind::ToolEnd, call)),
            Self::Interrupting(call) => Some((LogRowKind::Interrupted, call)),
            Self::Opening(call) => Some((LogRowKind::WaitOpened, call)),
            Self::Decided(call, WaitDecision::Allow) => Some((LogRowKind::Allowed, call)),
            Self::Decided(call, _) => Some((LogRowKind::NotAllowed, call)),
            Self::Idle | Self::Parked | Self::Thinking | Self::Running(_) | Self::Asking(_) => None,
        }
    }

    /// Returns whether the agent waits for the append of this row. If the agent sent a row twice,
    /// the second answer may arrive when it no longer waits.
    fn awaits(self, row: &LogRow) -> bool {
        self.row() == Some((row.kind, row.call))
    }

    /// Returns whether the agent can move to another node.
    pub fn is_at_rest(self) -> bool {
        self == Self::Thinking || self.is_quiet()
    }

    /// Returns whether the agent is idle or only waits for an answer.
    pub fn is_quiet(self) -> bool {
        matches!(self, Self::Idle | Self::Parked | Self::Asking(_))
    }

    /// Returns the stage of an agent that a node starts, which depends on what its log left open.
    fn resumed(open: OpenWork) -> Self {
        match open.call {
            None if open.is_in_turn => Self::Thinking,
            None => Self::Idle,
            Some(OpenCall::Started(call)) => Self::Interrupting(call),
            Some(OpenCall::Asked(call)) if is_planted(PlantedFault::OpenWaitForgotten) => {
                Self::Starting(call)
            }
            Some(OpenCall::Asked(call)) => Self::Asking(call),
        }
    }
}

impl SimWorld {
    /// Starts an agent under a lease, unless it runs here under that lease or a later one.
    pub fn start_agent(&mut self, process: usize, order: &HostOrder, lease: ClaimedLease) {
        let (session, agent) = order.agent;
        let hosted = self.processes[process].hosted.get(&order.agent);
        if hosted.is_some_and(|hosted| hosted.epoch >= lease.epoch) {
            return;
        }
        self.trace(|| {
            format!(
                "n{process:03} starts a{agent} of s{session} in incarnation {}, epoch {}",
                order.incarnation, lease.epoch
            )
        });
        let hosted = HostedAgent {
            incarnation: order.incarnation,
            epoch: lease.epoch,
            last_seq: lease.last_seq,
            stage: AgentStage::resumed(lease.open),
            tools_from: order.tools_from,
            calls_left: self.calls_of_turn(),
            queue: BTreeSet::new(),
            taken: BTreeSet::new(),
            note: None,
        };
        self.stop_agent(process, order.agent);
        self.restart_agent(process, order.agent, hosted);
    }

    pub fn restart_agent(&mut self, process: usize, agent: AgentKey, hosted: HostedAgent) {
        let (stage, epoch) = (hosted.stage, hosted.epoch);
        let started = CascadeInput::AgentStarted {
            team: team((agent.0, hosted.incarnation)),
            agent: agent_id(agent.1),
            is_lead: agent.1 == 0,
        };
        self.processes[process].hosted.insert(agent, hosted);
        self.cascade(process, started);
        match stage {
            AgentStage::Asking(_) => self.look_after(process, agent, 50, 500),
            AgentStage::Idle | AgentStage::Parked => {}
            _ => self.step_after(process, agent, epoch, 50, 500),
        }
        if self.has_turns {
            self.read_inbox(process, agent, true);
        }
    }

    /// Returns the number of calls of a turn. Agents that work without turns have no limit.
    fn calls_of_turn(&mut self) -> u32 {
        if self.has_turns {
            self.rng.u32(1..=CALLS_IN_TURN)
        } else {
            u32::MAX
        }
    }

    fn step_after(&mut self, process: usize, agent: AgentKey, epoch: i64, least: u64, most: u64) {
        let delay = self.rng.u64(least..most);
        self.tell(process, delay, ProcessEvent::Agent { agent, epoch });
    }

    pub fn step(&mut self, process: usize, agent: AgentKey, epoch: i64) {
        let may_act = self.may_act(process);
        let next_call = self.checks.next_call();
        let asks_first = self.asks_first();
        let gives_task = self.is_talking && self.rng.u32(0..TASKS) == 0;
        let now = self.now;
        let Some(hosted) = self.processes[process]
            .hosted
            .get_mut(&agent)
            .filter(|hosted| hosted.epoch == epoch)
        else {
            return;
        };
        match hosted.stage {
            AgentStage::Idle if hosted.queue.is_empty() => hosted.stage = AgentStage::Parked,
            AgentStage::Thinking if !may_act => {
                return self.step_after(process, agent, epoch, 250, 350);
            }
            AgentStage::Thinking if hosted.calls_left == 0 => {
                return self.finish_turn(process, agent, next_call);
            }
            AgentStage::Thinking if now < hosted.tools_from => {
                let wait = hosted.tools_from - now;
                return self.step_after(process, agent, epoch, wait, wait + 100);
            }
            AgentStage::Thinking if gives_task => {
                hosted.calls_left -= 1;
                self.give_task(process, agent, next_call);
                return self.step_after(process, agent, epoch, 100, 1_000);
            }
            AgentStage::Thinking => {
                hosted.calls_left = hosted.calls_left.saturating_sub(1);
                hosted.stage = if asks_first {
                    AgentStage::Opening(next_call)
                } else {
                    AgentStage::Starting(next_call)
                };
            }
            AgentStage::Running(call) => {
                hosted.stage = AgentStage::Ending(call);
                self.checks.tool_ended(call, now);
            }
            _ => {}
        }
        self.append(process, agent);
    }

    /// Begins a turn with all inputs that an idle agent knows. Without a permit, the agent knows
    /// only inputs that it read when it was loaded.
    pub fn settle(&mut self, process: usize, agent: AgentKey) {
        let number = self.checks.next_call();
        let hosted = self.processes[process].hosted.get_mut(&agent);
        let Some(hosted) =
            hosted.filter(|hosted| hosted.stage == AgentStage::Idle && !hosted.queue.is_empty())
        else {
            return;
        };
        hosted.taken = std::mem::take(&mut hosted.queue);
        hosted.stage = AgentStage::Beginning(number);
        self.append(process, agent);
    }

    fn finish_turn(&mut self, process: usize, agent: AgentKey, number: CallNumber) {
        let leaves_note = self.is_talking && self.rng.u32(0..NOTES) == 0;
        let note = leaves_note.then(|| self.note_of(agent, number));
        if let Some(hosted) = self.processes[process].hosted.get_mut(&agent) {
            hosted.stage = AgentStage::Finishing(number);
            hosted.note = note;
        }
        self.append(process, agent);
    }

    /// Handles the end of a turn. The agent begins the next turn or becomes idle.
    fn turn_ended(&mut self, process: usize, agent: AgentKey) {
        let is_parked = self.rng.u32(0..PARKED) == 0;
        let Some(hosted) = self.processes[process].hosted.get_mut(&agent) else {
            return;
        };
        hosted.stage = AgentStage::Idle;
        let (note, epoch) = (hosted.note.take(), hosted.epoch);
        if let Some(note) = note {
            let node = self.sql.row(note.agent).node;
            self.wake_agent(process, node, note.agent);
        }
        if is_parked {
            self.step_after(process, agent, epoch, 200, 6_000);
        }
        self.settle(process, agent);
    }

    /// Sends the row that an agent appends, if there is one.
    pub fn append(&mut self, process: usize, agent: AgentKey) {
        let Some(hosted) = self.processes[process].hosted.get(&agent) else {
            return;
        };
        let Some((kind, call)) = hosted.stage.row() else {
            return;
        };
        let (session, prev) = (agent.0, hosted.last_seq);
        let row = LogRow {
            agent: agent.1,
            epoch: hosted.epoch,
            kind,
            call,
        };
        let consumed = match hosted.stage {
            AgentStage::Beginning(_) => hosted.taken.iter().copied().collect(),
            _ => Vec::new(),
        };
        let note = hosted.note;
        let statement = SqlStatement::Append {
            session,
            row,
            prev,
            inboxes: InboxChange { consumed, note },
        };
        self.query(process, statement, SqlCaller::Agent);
    }

    fn look_after(&mut self, process: usize, agent: AgentKey, least: u64, most: u64) {
        let delay = self.rng.u64(least..most);
        self.tell(process, delay, ProcessEvent::Look { agent });
    }

    /// Makes an agent read its inbox, and the answer if it waits for one. Does nothing without a
    /// permit, because a later sweep makes the agent look again.
    pub fn look(&mut self, process: usize, agent: AgentKey) {
        let (may_act, now) = (self.may_act(process), self.now);
        self.look_into_inbox(process, agent, may_act);
        let hosted = self.processes[process].hosted.get(&agent);
        let Some(hosted) =
            hosted.filter(|hosted| may_act && matches!(hosted.stage, AgentStage::Asking(_)))
        else {
            return;
        };
        if now < hosted.tools_from {
            let wait = hosted.tools_from - now;
            return self.look_after(process, agent, wait, wait + 100);
        }
        self.query(
            process,
            SqlStatement::ReadAnswer { agent },
            SqlCaller::Agent,
        );
    }

    /// Ends the wait of an agent as the answer says.
    pub fn answer_read(
        &mut self,
        process: usize,
        agent: AgentKey,
        (call, decision): (CallNumber, WaitDecision),
    ) {
        let hosted = self.processes[process].hosted.get_mut(&agent);
        if let Some(hosted) = hosted.filter(|hosted| hosted.stage == AgentStage::Asking(call)) {
            hosted.stage = AgentStage::Decided(call, decision);
            self.append(process, agent);
        }
    }

    pub fn appended(&mut self, process: usize, session: usize, row: LogRow, reply: &SqlReply) {
        let agent = (session, row.agent);
        let Some(hosted) = self.processes[process]
            .hosted
            .get_mut(&agent)
            .filter(|hosted| hosted.epoch == row.epoch && hosted.stage.awaits(&row))
        else {
            return;
        };
        match reply {
            SqlReply::Appended { seq } => hosted.last_seq = *seq,
            SqlReply::Unknown => return self.step_after(process, agent, row.epoch, 50, 200),
            SqlReply::InputsGone(gone) => {
                hosted.stage = AgentStage::Idle;
                hosted.queue.append(&mut hosted.taken);
                hosted.queue.retain(|input| !gone.contains(input));
                return self.settle(process, agent);
            }
            _ => {
                self.trace(|| format!("n{process:03} lost a{} of s{session}", row.agent));
                return self.drop_agent(process, agent);
            }
        }
        self.after_row(process, agent, row);
    }

    /// Continues an agent whose row was appended.
    fn after_row(&mut self, process: usize, agent: AgentKey, row: LogRow) {
        let may_act = self.may_act(process);
        let Some(hosted) = self.processes[process].hosted.get_mut(&agent) else {
            return;
        };
        match hosted.stage {
            AgentStage::Starting(call) | AgentStage::Decided(call, WaitDecision::Allow)
                if may_act =>
            {
                hosted.stage = AgentStage::Running(call);
                let incarnation = hosted.incarnation;
                self.start_tool(process, agent.0, row, incarnation);
                let (least, most) = if self.rng.u32(0..LONG_CALLS) == 0 {
                    (5_000, 15_000)
                } else {
                    (300, 3_000)
                };
                self.step_after(process, agent, row.epoch, least, most);
            }
            AgentStage::Starting(call) | AgentStage::Decided(call, WaitDecision::Allow) => {
                hosted.stage = AgentStage::Ending(call);
                self.step_after(process, agent, row.epoch, 50, 100);
            }
            AgentStage::Ending(_) | AgentStage::Interrupting(_) | AgentStage::Decided(..) => {
                hosted.stage = AgentStage::Thinking;
                self.step_after(process, agent, row.epoch, 100, 4_000);
            }
            AgentStage::Opening(call) => {
                hosted.stage = AgentStage::Asking(call);
                self.look(process, agent);
            }
            AgentStage::Beginning(_) => self.turn_began(process, agent),
            AgentStage::Finishing(_) | AgentStage::Aborting(_) => self.turn_ended(process, agent),
            AgentStage::Idle
            | AgentStage::Parked
            | AgentStage::Thinking
            | AgentStage::Running(_)
            | AgentStage::Asking(_) => {}
        }
    }

    fn turn_began(&mut self, process: usize, agent: AgentKey) {
        let calls_left = self.calls_of_turn();
        if let Some(hosted) = self.processes[process].hosted.get_mut(&agent) {
            hosted.taken.clear();
            hosted.calls_left = calls_left;
            hosted.stage = AgentStage::Thinking;
            let epoch = hosted.epoch;
            self.step_after(process, agent, epoch, 50, 1_000);
        }
    }

    /// Ends an agent's actor and its tools. Returns the agent as it was.
    pub fn stop_agent(&mut self, process: usize, agent: AgentKey) -> Option<HostedAgent> {
        let hosted = self.processes[process].hosted.remove(&agent)?;
        let at = self.now + self.stopping_takes(process);
        self.checks.tools_end(process, Some(agent), at);
        Some(hosted)
    }

    pub fn kill_tools(&mut self, process: usize) {
        let at = self.now + self.stopping_takes(process);
        self.checks.tools_end(process, None, at);
    }

    pub fn stopping_takes(&mut self, process: usize) -> u64 {
        let slow = self.net.slow(self.processes[process].machine);
        self.rng.u64(20..100) + slow
    }
}
