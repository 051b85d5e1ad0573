//! The simulated agents, which begin and end tool calls and append both events to the log under
//! their lease. Before some calls they ask, and then run or end the call as the answer says.

use planck_common::wait::WaitDecision;

use super::{
    process::{AgentStage, HostOrder, HostedAgent, ProcessEvent, SqlCaller},
    sql::{
        AgentKey, CallNumber, ClaimedLease, LogRow, LogRowKind, OpenCall, SqlReply, SqlStatement,
    },
    world::{SimWorld, agent_id, team},
};
use crate::cluster::{
    cascade::CascadeInput,
    planted::{PlantedFault, is_planted},
};

/// One in this many tool calls takes 5 s to 15 s.
const LONG_CALLS: u32 = 6;

impl AgentStage {
    /// Returns the row that the agent appends, or `None` if it appends none.
    fn row(self) -> Option<(LogRowKind, CallNumber)> {
        match self {
            Self::Starting(call) => Some((LogRowKind::ToolStart, call)),
            Self::Ending(call) => Some((LogRowKind::ToolEnd, call)),
            Self::Interrupting(call) => Some((LogRowKind::Interrupted, call)),
            Self::Opening(call) => Some((LogRowKind::WaitOpened, call)),
            Self::Decided(call, WaitDecision::Allow) => Some((LogRowKind::Allowed, call)),
            Self::Decided(call, _) => Some((LogRowKind::NotAllowed, call)),
            Self::Thinking | Self::Running(_) | Self::Asking(_) => None,
        }
    }

    /// Returns whether the agent waits for the append of this row. If the agent sent a row twice,
    /// the second answer may arrive when it no longer waits.
    fn awaits(self, row: &LogRow) -> bool {
        self.row() == Some((row.kind, row.call))
    }

    /// Returns whether the agent can move to another node.
    pub fn is_at_rest(self) -> bool {
        matches!(self, Self::Thinking | Self::Asking(_))
    }

    /// Returns the stage of an agent that a node starts, which depends on what its log left open.
    fn resumed(open: Option<OpenCall>) -> Self {
        match open {
            None => Self::Thinking,
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
            stage: AgentStage::resumed(lease.open_call),
            tools_from: order.tools_from,
        };
        self.stop_agent(process, order.agent);
        self.restart_agent(process, order.agent, hosted);
    }

    pub fn restart_agent(&mut self, process: usize, agent: AgentKey, hosted: HostedAgent) {
        self.processes[process].hosted.insert(agent, hosted);
        let started = CascadeInput::AgentStarted {
            team: team((agent.0, hosted.incarnation)),
            agent: agent_id(agent.1),
            is_lead: agent.1 == 0,
        };
        self.cascade(process, started);
        if matches!(hosted.stage, AgentStage::Asking(_)) {
            self.look_after(process, agent, 50, 500);
        } else {
            self.step_after(process, agent, hosted.epoch, 50, 500);
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
        let now = self.now;
        let Some(hosted) = self.processes[process]
            .hosted
            .get_mut(&agent)
            .filter(|hosted| hosted.epoch == epoch)
        else {
            return;
        };
        match hosted.stage {
            AgentStage::Thinking if !may_act => {
                return self.step_after(process, agent, epoch, 250, 350);
            }
            AgentStage::Thinking if now < hosted.tools_from => {
                let wait = hosted.tools_from - now;
                return self.step_after(process, agent, epoch, wait, wait + 100);
            }
            AgentStage::Thinking if asks_first => hosted.stage = AgentStage::Opening(next_call),
            AgentStage::Thinking => hosted.stage = AgentStage::Starting(next_call),
            AgentStage::Running(call) => {
                hosted.stage = AgentStage::Ending(call);
                self.checks.tool_ended(call, now);
            }
            _ => {}
        }
        self.append(process, agent);
    }

    /// Sends the row that an agent appends, if there is one.
    fn append(&mut self, process: usize, agent: AgentKey) {
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
        let statement = SqlStatement::Append { session, row, prev };
        self.query(process, statement, SqlCaller::Agent);
    }

    fn look_after(&mut self, process: usize, agent: AgentKey, least: u64, most: u64) {
        let delay = self.rng.u64(least..most);
        self.tell(process, delay, ProcessEvent::Look { agent });
    }

    /// Makes an agent that waits read the answer to its wait. Does nothing without a permit, because
    /// a later sweep makes the agent look again.
    pub fn look(&mut self, process: usize, agent: AgentKey) {
        let (may_act, now) = (self.may_act(process), self.now);
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
        let may_act = self.may_act(process);
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
            _ => {
                self.trace(|| format!("n{process:03} lost a{} of s{session}", row.agent));
                return self.drop_agent(process, agent);
            }
        }
        match hosted.stage {
            AgentStage::Starting(call) | AgentStage::Decided(call, WaitDecision::Allow)
                if may_act =>
            {
                hosted.stage = AgentStage::Running(call);
                let incarnation = hosted.incarnation;
                self.start_tool(process, session, row, incarnation);
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
            AgentStage::Thinking | AgentStage::Running(_) | AgentStage::Asking(_) => {}
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
