//! The waits of the simulated store. Rows of the log open and end them, as in the stores in SQL.

use planck_common::{
    AgentId, CallId, Seq, Timestamp,
    command::WaitRow,
    event::EventKind,
    wait::{WaitAnswer, WaitClosed, WaitDecision, WaitOpened, WaitState},
};

use super::data::SimSession;
use crate::agent::Entry;
use planck_cluster::planted::{PlantedFault, is_planted};
use planck_store::AnswerOutcome;

/// A wait with its answer.
#[derive(Clone)]
pub(crate) struct SimWait {
    pub agent: AgentId,
    pub state: WaitState,
    pub answer: Option<WaitAnswer>,
    seq: Seq,
    opened_at: Timestamp,
    opened: WaitOpened,
}

impl SimWait {
    pub fn is_live(&self) -> bool {
        matches!(self.state, WaitState::Open | WaitState::Answered)
    }

    pub fn decision(&self) -> Option<WaitDecision> {
        self.answer.as_ref().map(|answer| answer.decision)
    }
}

impl SimSession {
    /// Opens or ends the wait of a row that is being written.
    pub(super) fn wait_row(&mut self, agent: &AgentId, seq: Seq, entry: &Entry) {
        match entry.kind {
            EventKind::WaitOpened => {
                let opened: WaitOpened = serde_json::from_str(&entry.body).unwrap();
                self.opened.push(opened.id.clone());
                let wait = SimWait {
                    agent: agent.clone(),
                    state: WaitState::Open,
                    answer: None,
                    seq,
                    opened_at: entry.place.at,
                    opened,
                };
                self.waits.insert(wait.opened.id.clone(), wait);
            }
            EventKind::WaitClosed => {
                let closed: WaitClosed = serde_json::from_str(&entry.body).unwrap();
                if let Some(wait) = self.waits.get_mut(&closed.id) {
                    wait.state = match closed.decision {
                        WaitDecision::Withdrawn => WaitState::Withdrawn,
                        _ => WaitState::Closed,
                    };
                }
            }
            _ => {}
        }
    }

    pub fn wait(&self, id: &CallId) -> Option<WaitRow> {
        let wait = self.waits.get(id)?;
        let (opened, said) = (wait.opened.clone(), wait.answer.as_ref());
        Some(WaitRow {
            id: opened.id,
            session_id: self.record().id,
            agent_id: wait.agent.clone(),
            seq: wait.seq,
            kind: opened.kind,
            state: wait.state,
            title: opened.title,
            request: opened.request,
            digest: opened.digest,
            options: opened.options,
            schema: opened.schema,
            rule: opened.rule,
            opened_at: wait.opened_at,
            expires_at: opened.expires_at,
            decision: said.map(|answer| answer.decision),
            reason: said.and_then(|answer| answer.reason.clone()),
            answered_by: said.and_then(|answer| answer.by.clone()),
            answered_at: said.map(|answer| answer.at),
        })
    }

    pub fn answer(&mut self, id: &CallId, digest: &str, answer: &WaitAnswer) -> AnswerOutcome {
        let Some(row) = self.wait(id) else {
            return AnswerOutcome::NotFound;
        };
        let agent = self.agent(&row.agent_id).filter(|agent| agent.is_there());
        let Some(node) = agent.map(|agent| agent.node.clone()) else {
            return AnswerOutcome::NotFound;
        };
        let is_in_time = row.expires_at.is_none_or(|at| Timestamp::now() < at);
        let is_second =
            row.state == WaitState::Answered && is_planted(PlantedFault::SecondAnswerAccepted);
        let wait = self.waits.get_mut(id).unwrap();
        let takes = row.state == WaitState::Open && is_in_time || is_second;
        if takes && row.digest == digest {
            wait.state = WaitState::Answered;
            wait.answer = Some(answer.clone());
            return AnswerOutcome::Answered {
                agent: row.agent_id,
                node,
            };
        }
        AnswerOutcome::Refused {
            answer: wait.answer.clone().map(Box::new),
            row: Box::new(row),
        }
    }

    pub(super) fn expire_waits(&mut self, now: Timestamp) -> u64 {
        let is_late = |wait: &&mut SimWait| {
            let until = wait.opened.expires_at;
            wait.state == WaitState::Open && until.is_some_and(|until| until <= now)
        };
        let mut count = 0;
        for wait in self.waits.values_mut().filter(is_late) {
            wait.state = WaitState::Answered;
            wait.answer = Some(WaitAnswer {
                decision: WaitDecision::Expired,
                args: None,
                value: None,
                reason: Some("nobody answered in time".into()),
                scope: None,
                by: None,
                at: now,
            });
            count += 1;
        }
        count
    }

    pub fn answers(&self, agent: &AgentId) -> Vec<(CallId, WaitAnswer)> {
        let mut waits: Vec<_> = self.waits.iter().collect();
        waits.sort_by_key(|(_, wait)| wait.seq);
        let answered = waits
            .into_iter()
            .filter(|(_, wait)| wait.agent == *agent && wait.state == WaitState::Answered);
        answered
            .filter_map(|(id, wait)| Some((id.clone(), wait.answer.clone()?)))
            .collect()
    }

    pub(super) fn has_answer_for(&self, agent: &AgentId) -> bool {
        let is_skipped = is_planted(PlantedFault::AnsweredWaitsUnswept);
        !is_skipped && !self.answers(agent).is_empty()
    }
}
