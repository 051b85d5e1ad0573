//! The simulated table of waits. The log opens and ends a wait, a person's answer or the end of its
//! time changes only the wait, and the conditions are those of the real statements.

use planck_common::wait::{WaitDecision, WaitState};

use super::sql::{CallNumber, LogRow, LogRowKind, SqlReply, StoredSession};
use crate::planted::{PlantedFault, is_planted};

/// How long after its opening a wait expires, in milliseconds.
const EXPIRES_AFTER: u64 = 9_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimWait {
    pub agent: usize,
    pub call: CallNumber,
    pub state: WaitState,
    pub expires_at: u64,
    /// The decisions that the store accepted, of which the last one is the answer. The checks demand
    /// that there is never more than one.
    pub decisions: Vec<WaitDecision>,
}

impl SimWait {
    pub fn is_live(&self) -> bool {
        matches!(self.state, WaitState::Open | WaitState::Answered)
    }

    fn accept(&mut self, decision: WaitDecision) {
        self.state = WaitState::Answered;
        self.decisions.push(decision);
    }

    fn accepts(&self, now: u64) -> bool {
        let is_answered_again = self.is_live()
            && is_planted(PlantedFault::SecondAnswerAccepted)
            && now < self.expires_at;
        let is_in_time = now < self.expires_at || is_planted(PlantedFault::AnswerAfterExpiry);
        self.state == WaitState::Open && is_in_time || is_answered_again
    }
}

impl StoredSession {
    pub fn wait(&self, call: CallNumber) -> Option<&SimWait> {
        self.waits.iter().rev().find(|wait| wait.call == call)
    }

    /// Changes the wait of a row that is written to the log, as the triggers of the real log do.
    pub fn row_written(&mut self, row: LogRow, now: u64) {
        match row.kind {
            LogRowKind::WaitOpened => self.waits.push(SimWait {
                agent: row.agent,
                call: row.call,
                state: WaitState::Open,
                expires_at: now + EXPIRES_AFTER,
                decisions: Vec::new(),
            }),
            LogRowKind::Allowed | LogRowKind::NotAllowed => {
                let waits = self.waits.iter_mut().filter(|wait| wait.call == row.call);
                waits.for_each(|wait| wait.state = WaitState::Closed);
            }
            LogRowKind::Aborted if is_planted(PlantedFault::AbortKeepsWait) => {}
            LogRowKind::Aborted => {
                let waits = self.waits.iter_mut().filter(|wait| wait.call == row.call);
                waits.for_each(|wait| wait.state = WaitState::Withdrawn);
            }
            LogRowKind::TurnStart
            | LogRowKind::TurnEnd
            | LogRowKind::ToolStart
            | LogRowKind::ToolEnd
            | LogRowKind::Interrupted => {}
        }
    }

    /// Handles a row that was sent again after a lost answer. Such a row changes no wait.
    pub fn row_repeated(&mut self, row: LogRow) {
        if row.kind == LogRowKind::WaitOpened && is_planted(PlantedFault::RepeatedRowReopens) {
            let waits = self.waits.iter_mut().filter(|wait| wait.call == row.call);
            waits.for_each(|wait| wait.state = WaitState::Open);
        }
    }

    pub fn answer(&mut self, call: CallNumber, decision: WaitDecision, now: u64) -> SqlReply {
        let Some(wait) = self.waits.iter_mut().rev().find(|wait| wait.call == call) else {
            return SqlReply::Refused;
        };
        if !wait.accepts(now) {
            return SqlReply::AnsweredBefore(wait.decisions.last().copied());
        }
        wait.accept(decision);
        let node = self.row.leases[wait.agent].node;
        SqlReply::Answered { node }
    }

    /// Returns whether an agent has an answer that it has not read yet.
    pub fn has_answer(&self, agent: usize) -> bool {
        self.unread_answer(agent).is_some()
    }

    pub fn unread_answer(&self, agent: usize) -> Option<(CallNumber, WaitDecision)> {
        let is_unread = |wait: &&SimWait| wait.agent == agent && wait.state == WaitState::Answered;
        let wait = self.waits.iter().rev().find(is_unread)?;
        Some((wait.call, *wait.decisions.last()?))
    }

    pub fn expire_waits(&mut self, now: u64) {
        let is_late = |wait: &&mut SimWait| wait.state == WaitState::Open && now >= wait.expires_at;
        let late = self.waits.iter_mut().filter(is_late);
        late.for_each(|wait| wait.accept(WaitDecision::Expired));
    }

    /// Withdraws the waits of an agent, or of all agents.
    pub fn withdraw(&mut self, agent: Option<usize>) {
        let is_of = |wait: &SimWait| agent.is_none_or(|agent| wait.agent == agent);
        let waits = self.waits.iter_mut();
        waits
            .filter(|wait| is_of(wait) && wait.is_live())
            .for_each(|wait| wait.state = WaitState::Withdrawn);
    }
}
