//! The simulated people who answer waits and abort turns that wait. A person sends the answer to any process, repeats it until
//! there is a reply, and the process that stored it wakes the agent.

use planck_common::wait::WaitDecision;

use super::{
    process::{ProcessEvent, SqlCaller},
    sql::{AgentKey, CallNumber, LogRow, SqlReply, SqlStatement},
    world::{SimWorld, WorldEvent},
};

/// One in this many waits gets no answer.
const UNANSWERED: u32 = 6;
/// One in this many answered waits is answered by two people at once.
const CONTESTED: u32 = 4;
/// One in this many wake-ups is lost, in addition to those that the network loses.
const LOST_WAKES: u32 = 4;
/// How long a person waits for a reply before the answer is sent again, in milliseconds.
pub const PATIENCE: u64 = 3_000;

/// The answer of a person to the wait of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PersonAnswer {
    pub session: usize,
    pub call: CallNumber,
    pub person: u8,
    pub decision: WaitDecision,
}

/// The abort by a person of the turn in which an agent waits for the answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PersonAbort {
    pub agent: AgentKey,
    pub call: CallNumber,
}

impl SimWorld {
    /// Returns whether an agent asks before its next call.
    pub fn asks_first(&mut self) -> bool {
        self.asked_in
            .is_some_and(|one_in| self.rng.u32(0..one_in) == 0)
    }

    /// Lets people answer a wait that was opened, or abort its turn. Some answers come after the wait
    /// has expired.
    pub fn show_people(&mut self, session: usize, row: LogRow) {
        self.may_be_aborted(session, row);
        if self.rng.u32(0..UNANSWERED) == 0 {
            return;
        }
        let longest = if self.rng.bool() { 3_000 } else { 11_000 };
        let at = self.now + self.rng.u64(1..longest);
        let mut decisions = [WaitDecision::Allow, WaitDecision::Deny];
        if self.rng.u32(0..3) == 0 {
            decisions.reverse();
        }
        let people = if self.rng.u32(0..CONTESTED) == 0 {
            2
        } else {
            1
        };
        for (person, decision) in (0..people).zip(decisions) {
            let answer = PersonAnswer {
                session,
                call: row.call,
                person,
                decision,
            };
            let delay = self.rng.u64(0..10);
            self.at(at + delay, WorldEvent::Person(answer));
        }
    }

    /// Sends the answer of a person who has no reply yet through a random process.
    pub fn person_answers(&mut self, answer: PersonAnswer) {
        if self.checks.has_reply(&answer) {
            return;
        }
        if let Some(process) = self.any_process() {
            let statement = SqlStatement::Answer {
                session: answer.session,
                call: answer.call,
                decision: answer.decision,
            };
            self.query(process, statement, SqlCaller::Person(answer));
        }
        self.after(PATIENCE, WorldEvent::Person(answer));
    }

    /// Handles the reply to an answer. The same answer as the stored one gets the same reply.
    pub fn person_replied(&mut self, process: usize, answer: PersonAnswer, reply: &SqlReply) {
        self.trace(|| format!("n{process:03} {answer:?}: {reply:?}"));
        match reply {
            SqlReply::Answered { node } => {
                self.acknowledged(answer);
                let agent = self.sql.sessions[answer.session].wait(answer.call);
                if let Some(agent) = agent.map(|wait| (answer.session, wait.agent)) {
                    self.wake_agent(process, *node, agent);
                }
            }
            SqlReply::AnsweredBefore(Some(known)) if *known == answer.decision => {
                self.acknowledged(answer);
            }
            SqlReply::AnsweredBefore(_) | SqlReply::Refused => self.checks.replied(answer),
            _ => {}
        }
    }

    /// Returns whether the next wake-up is lost.
    pub fn loses_wake(&mut self) -> bool {
        self.rng.u32(0..LOST_WAKES) == 0
    }

    pub fn wake_agent(&mut self, process: usize, node: Option<usize>, agent: AgentKey) {
        if self.loses_wake() {
            return;
        }
        match node {
            Some(node) if node == process => self.look(process, agent),
            Some(node) => self.send(process, node, ProcessEvent::Look { agent }),
            None => {}
        }
    }
}
