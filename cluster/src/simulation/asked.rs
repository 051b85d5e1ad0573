//! The checks on calls that ask first. Each wait has one decision, which is the acknowledged one. A
//! call that asked runs only if it is allowed, and an answer is read in time. All times are in
//! virtual milliseconds.

use planck_common::wait::{WaitDecision, WaitState};

use super::{
    people::PersonAnswer,
    process::AgentStage,
    sql::{AgentKey, CallNumber, LogRow, LogRowKind, SqlReply, SqlStatement},
    world::{ALL_ANSWERED_FROM, SimWorld, WorldEvent},
};

/// The time within which an agent must read an answer if no fault occurs. If the wake-up is lost,
/// the next sweep wakes the agent. Sweeps are up to 12 s apart.
pub const READ_WITHIN: u64 = 13_000;

impl SimWorld {
    pub fn after_wait_statement(&mut self, statement: &SqlStatement, reply: &SqlReply) {
        match (statement, reply) {
            (SqlStatement::Append { session, row, .. }, SqlReply::Appended { .. }) => {
                self.check_append(*session, *row);
                if row.kind == LogRowKind::WaitOpened && self.checks.shown(row) {
                    self.show_people(*session, *row);
                }
            }
            (SqlStatement::Answer { session, call, .. }, SqlReply::Answered { .. }) => {
                self.check_accepted(*session, *call);
            }
            _ => {}
        }
    }

    /// Checks that an agent that ends a wait does what the only decision says.
    fn check_append(&mut self, session: usize, row: LogRow) {
        let is_allowed = match row.kind {
            LogRowKind::Allowed => true,
            LogRowKind::NotAllowed => false,
            _ => return,
        };
        let wait = self.sql.sessions[session].wait(row.call);
        let decisions = wait.map(|wait| wait.decisions.clone()).unwrap_or_default();
        let is_so = decisions.len() == 1 && is_allowed == (decisions[0] == WaitDecision::Allow);
        if !is_so {
            self.checks.violate(format!(
                "s{session} has {row:?}, but the decisions are {decisions:?}"
            ));
        }
    }

    /// Checks that the store accepts only the first answer to the wait of a living agent, before the
    /// wait expires.
    fn check_accepted(&mut self, session: usize, call: CallNumber) {
        let stored = &self.sql.sessions[session];
        let Some(wait) = stored.wait(call) else {
            return;
        };
        let what = if wait.decisions.len() > 1 {
            "has two decisions"
        } else if self.now >= wait.expires_at {
            "was answered after it expired"
        } else if !stored.row.is_open || stored.row.leases[wait.agent].is_stopped {
            "was answered though its agent has ended"
        } else {
            return;
        };
        let what = format!("the wait of call {call} of s{session} {what}: {wait:?}");
        self.checks.violate(what);
    }

    /// Handles the acknowledgement of an answer. The answer must be the stored one, and the agent
    /// must read it in time unless a fault occurs.
    pub fn acknowledged(&mut self, answer: PersonAnswer) {
        self.checks.replied(answer);
        self.checks.report.answers += 1;
        self.checks.acknowledged.push(answer);
        self.check_acknowledged(answer);
        let is_calm = self.checks.is_calm(self.now, self.now + READ_WITHIN);
        if is_calm && self.now >= ALL_ANSWERED_FROM {
            self.after(READ_WITHIN, WorldEvent::AnswerDue(answer));
        }
    }

    pub fn check_acknowledged(&mut self, answer: PersonAnswer) {
        let wait = self.sql.sessions[answer.session].wait(answer.call);
        let decisions = wait.map(|wait| wait.decisions.clone()).unwrap_or_default();
        if decisions != [answer.decision] {
            self.checks.violate(format!(
                "{answer:?} was acknowledged, but the decisions are {decisions:?}"
            ));
        }
    }

    pub fn check_answer_due(&mut self, answer: PersonAnswer) {
        self.checks.report.answer_bounds += 1;
        let wait = self.sql.sessions[answer.session].wait(answer.call);
        if wait.is_some_and(|wait| wait.state == WaitState::Answered) {
            self.checks
                .violate(format!("{answer:?} was acknowledged and not read in time"));
        }
    }

    /// Checks that a call that asked is allowed when its tool starts.
    pub fn check_allowed(&mut self, session: usize, call: CallNumber) {
        let wait = self.sql.sessions[session].wait(call);
        if let Some(wait) = wait.filter(|wait| wait.decisions != [WaitDecision::Allow]) {
            let what = format!("call {call} of s{session} ran without an allow: {wait:?}");
            self.checks.violate(what);
        }
    }

    /// Checks that every live wait has not expired long ago, and that its agent waits for it unless
    /// its node released the agent. Checks that the acknowledged answers are still the stored ones.
    pub fn check_waits_at_end(&mut self) {
        for answer in std::mem::take(&mut self.checks.acknowledged) {
            self.check_acknowledged(answer);
        }
        for session in 0..self.sql.sessions.len() {
            let waits = self.sql.sessions[session].waits.iter();
            let live: Vec<_> = waits.filter(|wait| wait.is_live()).cloned().collect();
            for wait in live {
                // One sweep expires the wait, and the next one of its host wakes the agent.
                let sweeps = if wait.state == WaitState::Open { 1 } else { 2 };
                let is_late = self.now > wait.expires_at + sweeps * READ_WITHIN;
                let agent = (session, wait.agent);
                let is_awaited = self.is_awaited(agent, wait.call) || self.is_released(agent);
                if is_late || !is_awaited {
                    self.checks
                        .violate(format!("s{session} has a forgotten wait: {wait:?}"));
                }
            }
        }
    }

    fn is_awaited(&self, agent: AgentKey, call: CallNumber) -> bool {
        self.at_holder(agent).is_some_and(|hosted| {
            matches!(hosted.stage, AgentStage::Opening(of) | AgentStage::Asking(of)
                | AgentStage::Decided(of, _) | AgentStage::Aborting(of) if of == call)
        })
    }
}
