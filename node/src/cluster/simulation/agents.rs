//! The simulated agents, which begin and end tool calls and append both events to the log under
//! their lease.

use super::{
    process::{AgentStage, HostOrder, HostedAgent, ProcessEvent, SqlCaller},
    sql::{AgentKey, ClaimedLease, LogRow, LogRowKind, SqlReply, SqlStatement},
    world::{SimWorld, agent_id, team},
};
use crate::cluster::cascade::CascadeInput;

/// One in this many tool calls takes 5 s to 15 s.
const LONG_CALLS: u32 = 6;

impl AgentStage {
    /// Returns whether the agent waits for the append of this row. If the agent sent a row twice,
    /// the second answer may arrive when it no longer waits.
    fn awaits(self, row: &LogRow) -> bool {
        let (kind, call) = match self {
            Self::Starting(call) => (LogRowKind::ToolStart, call),
            Self::Ending(call) => (LogRowKind::ToolEnd, call),
            Self::Interrupting(call) => (LogRowKind::Interrupted, call),
            Self::Thinking | Self::Running(_) => return false,
        };
        (kind, call) == (row.kind, row.call)
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
        let stage = lease
            .open_call
            .map_or(AgentStage::Thinking, AgentStage::Interrupting);
        let hosted = HostedAgent {
            incarnation: order.incarnation,
            epoch: lease.epoch,
            last_seq: lease.last_seq,
            stage,
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
        self.step_after(process, agent, hosted.epoch, 50, 500);
    }

    fn step_after(&mut self, process: usize, agent: AgentKey, epoch: i64, least: u64, most: u64) {
        let delay = self.rng.u64(least..most);
        self.tell(process, delay, ProcessEvent::Agent { agent, epoch });
    }

    pub fn step(&mut self, process: usize, agent: AgentKey, epoch: i64) {
        let may_act = self.may_act(process);
        let next_call = self.checks.next_call();
        let now = self.now;
        let Some(hosted) = self.processes[process]
            .hosted
            .get_mut(&agent)
            .filter(|hosted| hosted.epoch == epoch)
        else {
            return;
        };
        let (kind, call) = match hosted.stage {
            AgentStage::Thinking if !may_act => {
                return self.step_after(process, agent, epoch, 250, 350);
            }
            AgentStage::Thinking if now < hosted.tools_from => {
                let wait = hosted.tools_from - now;
                return self.step_after(process, agent, epoch, wait, wait + 100);
            }
            AgentStage::Thinking => {
                hosted.stage = AgentStage::Starting(next_call);
                (LogRowKind::ToolStart, next_call)
            }
            AgentStage::Starting(call) => (LogRowKind::ToolStart, call),
            AgentStage::Running(call) => {
                hosted.stage = AgentStage::Ending(call);
                self.checks.tool_ended(call, now);
                (LogRowKind::ToolEnd, call)
            }
            AgentStage::Ending(call) => (LogRowKind::ToolEnd, call),
            AgentStage::Interrupting(call) => (LogRowKind::Interrupted, call),
        };
        let Some(hosted) = self.processes[process].hosted.get(&agent) else {
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
            AgentStage::Starting(call) if may_act => {
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
            AgentStage::Starting(call) => {
                hosted.stage = AgentStage::Ending(call);
                self.step_after(process, agent, row.epoch, 50, 100);
            }
            AgentStage::Ending(_) | AgentStage::Interrupting(_) => {
                hosted.stage = AgentStage::Thinking;
                self.step_after(process, agent, row.epoch, 100, 4_000);
            }
            AgentStage::Thinking | AgentStage::Running(_) => {}
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
