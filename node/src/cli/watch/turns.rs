//! Decides whether a team has completed a prompt, that is, whether the prompt's turn and all turns
//! that it caused have ended.

use std::collections::BTreeSet;

use planck_common::{
    AgentId, CallId, InputId, Seq,
    envelope::Envelope,
    event::{Event, TurnEnd, TurnError, TurnOutcome},
};
use serde::Serialize;

use crate::{cli::exit::Exit, client::Retracted};

/// The outcome of the work on a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkOutcome {
    Completed,
    Aborted,
    Truncated,
    /// The model refused to answer, or a filter of its provider stopped the answer.
    Refused,
    Limit,
    Error,
    /// Agents wait for answers from outside, and nothing else happens until there is one.
    Waiting,
    /// The turn of the prompt was not seen to end: the session was closed or could not be followed
    /// any longer, or the user left.
    Lost,
}

impl WorkOutcome {
    pub fn exit(self) -> Exit {
        match self {
            Self::Completed => Exit::Done,
            Self::Waiting => Exit::Waiting,
            Self::Aborted
            | Self::Truncated
            | Self::Refused
            | Self::Limit
            | Self::Error
            | Self::Lost => Exit::Failed,
        }
    }

    fn of(end: &TurnEnd) -> Self {
        match end.outcome {
            TurnOutcome::Completed if end.refused => Self::Refused,
            TurnOutcome::Completed => Self::Completed,
            TurnOutcome::Aborted => Self::Aborted,
            TurnOutcome::Truncated => Self::Truncated,
            TurnOutcome::Limit => Self::Limit,
        }
    }
}

/// The end of the latest of the orchestrator's turns that the prompt caused.
#[derive(Debug, Clone)]
pub struct WorkEnd {
    /// The number of the event that ended the turn, or `None` if the work ended without such an
    /// event.
    pub seq: Option<Seq>,
    pub outcome: WorkOutcome,
    /// The answer of this turn or, if this turn was completed without a text, of an earlier one.
    pub answer: Option<String>,
    /// The number of the event that ended the turn with the answer, or `None` if there is no
    /// answer.
    pub answered_at: Option<Seq>,
    pub error: Option<TurnError>,
}

impl WorkEnd {
    pub fn lost() -> Self {
        Self {
            seq: None,
            outcome: WorkOutcome::Lost,
            answer: None,
            answered_at: None,
            error: None,
        }
    }

    /// If the event ends a turn, returns that end and the inputs that the turn consumed.
    pub fn of(envelope: &Envelope) -> Option<(Self, Vec<InputId>)> {
        let (seq, event) = (envelope.seq, envelope.event().and_then(Result::ok)?);
        if let Event::TurnEnd(end) = event {
            let (outcome, answered_at) =
                (WorkOutcome::of(&end), seq.filter(|_| end.message.is_some()));
            return Some((
                Self {
                    seq,
                    outcome,
                    answer: end.message,
                    answered_at,
                    error: None,
                },
                end.inputs,
            ));
        }
        let Event::Error(error) = event else {
            return None;
        };
        let inputs = error.inputs.clone();
        Some((
            Self {
                seq,
                outcome: WorkOutcome::Error,
                answer: None,
                answered_at: None,
                error: Some(error),
            },
            inputs,
        ))
    }
}

/// The open turns of a session, according to its events.
#[derive(Debug)]
pub struct OpenTurns {
    prompt: Option<InputId>,
    /// The agent whose turn consumed the prompt.
    orchestrator: Option<AgentId>,
    open: BTreeSet<AgentId>,
    ended: Option<WorkEnd>,
    /// The calls that wait for an answer from outside.
    pub waits: BTreeSet<CallId>,
}

impl OpenTurns {
    /// Starts with no open turn. Without a prompt there is no turn whose end is awaited.
    pub fn of(prompt: Option<InputId>) -> Self {
        Self {
            orchestrator: None,
            open: BTreeSet::new(),
            ended: prompt.is_none().then(WorkEnd::lost),
            prompt,
            waits: BTreeSet::new(),
        }
    }

    pub fn apply(&mut self, envelope: &Envelope) {
        let agent = &envelope.agent_id;
        if let Some((ended, inputs)) = WorkEnd::of(envelope) {
            self.close(agent, &inputs, ended);
            return;
        }
        match envelope.event().and_then(Result::ok) {
            Some(Event::TurnStart(start)) => {
                if start.inputs.iter().any(|input| self.is_prompt(&input.id)) {
                    self.orchestrator = Some(agent.clone());
                }
                self.open.insert(agent.clone());
            }
            Some(Event::WaitOpened(wait)) => {
                self.waits.insert(wait.id);
            }
            Some(Event::WaitClosed(wait)) => {
                self.waits.remove(&wait.id);
            }
            Some(Event::Rewound(_)) => self.waits.clear(),
            Some(Event::AgentStopped(_)) => {
                self.open.remove(agent);
            }
            Some(Event::SessionClosed(_)) => {
                self.open.clear();
                self.ended.get_or_insert_with(WorkEnd::lost);
            }
            Some(_) | None => {}
        }
    }

    /// Discards what is known of an agent's turn after one of its events turned out not to be in
    /// the log. The events in the log are delivered next.
    pub fn forget(&mut self, retracted: &Retracted) {
        self.open.remove(&retracted.agent_id);
        if self
            .ended
            .as_ref()
            .is_some_and(|ended| ended.seq == Some(retracted.seq))
        {
            self.ended = None;
        }
    }

    fn is_prompt(&self, input: &InputId) -> bool {
        self.prompt.as_ref() == Some(input)
    }

    fn close(&mut self, agent: &AgentId, inputs: &[InputId], mut ended: WorkEnd) {
        self.open.remove(agent);
        if inputs.iter().any(|input| self.is_prompt(input))
            || (self.ended.is_some() && self.orchestrator.as_ref() == Some(agent))
        {
            // A later turn may have no text, for example if its only input reported that a worker
            // ended. In this case the earlier answer is kept.
            if let Some(before) = self.ended.take()
                && ended.outcome == WorkOutcome::Completed
                && ended.answer.is_none()
            {
                (ended.answer, ended.answered_at) = (before.answer, before.answered_at);
            }
            self.ended = Some(ended);
        }
    }

    /// Returns the end of the work, or `None` while a turn is open or before the prompt's turn has
    /// ended.
    pub fn at_rest(&self) -> Option<&WorkEnd> {
        self.ended.as_ref().filter(|_| self.open.is_empty())
    }

    /// Returns the end of the orchestrator's latest turn, even if other turns are open. If none has
    /// ended, the outcome is [`WorkOutcome::Lost`].
    pub fn into_ended(self) -> WorkEnd {
        self.ended.unwrap_or_else(WorkEnd::lost)
    }
}

#[cfg(test)]
mod tests {
    use planck_common::{
        NodeId, SessionId, TeamId, Timestamp,
        envelope::{EventPlace, RowPosition, Writer},
        event::{EventKind, TurnStart},
        usage::Usage,
    };

    use super::*;

    fn event(agent: &str, event: &Event) -> Envelope {
        let writer = Writer {
            agent_id: AgentId::parse(agent).unwrap(),
            session_id: SessionId::parse("s").unwrap(),
            team_id: TeamId::parse("t").unwrap(),
            node_id: NodeId::parse("n").unwrap(),
            epoch: 1,
        };
        let place = EventPlace {
            turn: 1,
            request: 1,
            at: Timestamp::from_millis(0),
        };
        let text = writer.durable(
            event.kind(),
            place,
            RowPosition {
                seq: 1,
                prev: 0,
                hidden_by: None,
            },
            &event.data(),
        );
        serde_json::from_str(&text).unwrap()
    }

    fn start(agent: &str, inputs: &[&str]) -> Envelope {
        let inputs = inputs.iter().map(|id| planck_common::event::TurnInput {
            id: InputId::parse(id).unwrap(),
            kind: planck_common::event::InputKind::Prompt,
            from: None,
            by: None,
        });
        event(
            agent,
            &Event::TurnStart(TurnStart {
                index: 1,
                inputs: inputs.collect(),
            }),
        )
    }

    fn end(agent: &str, outcome: TurnOutcome, inputs: &[&str]) -> Envelope {
        says(agent, outcome, None, inputs)
    }

    fn says(agent: &str, outcome: TurnOutcome, message: Option<&str>, inputs: &[&str]) -> Envelope {
        let inputs = inputs
            .iter()
            .map(|id| InputId::parse(id).unwrap())
            .collect();
        event(
            agent,
            &Event::TurnEnd(TurnEnd {
                outcome,
                message: message.map(Into::into),
                usage: Usage::default(),
                refused: false,
                limit: None,
                reason: None,
                inputs,
            }),
        )
    }

    fn apply_all(events: &[Envelope]) -> Option<WorkEnd> {
        let mut turns = OpenTurns::of(InputId::parse("p").ok());
        events.iter().for_each(|event| turns.apply(event));
        turns.at_rest().cloned()
    }

    #[test]
    fn a_prompt_is_complete_when_all_work_it_caused_has_ended() {
        let (done, failed) = (TurnOutcome::Completed, TurnOutcome::Aborted);
        let table: [(&[Envelope], Option<Exit>); 5] = [
            (&[start("lead", &["p"])], None),
            (
                &[start("lead", &["p"]), end("lead", done, &["p"])],
                Some(Exit::Done),
            ),
            (
                &[
                    start("lead", &["p"]),
                    start("worker", &["t"]),
                    end("lead", done, &["p"]),
                ],
                None,
            ),
            (
                &[
                    start("lead", &["p"]),
                    start("worker", &[]),
                    end("lead", done, &["p"]),
                    end("worker", failed, &[]),
                ],
                Some(Exit::Done),
            ),
            (
                &[
                    start("lead", &["p"]),
                    end("lead", done, &["p"]),
                    start("lead", &["r"]),
                    end("lead", failed, &["r"]),
                ],
                Some(Exit::Failed),
            ),
        ];
        for (events, expected) in table {
            assert_eq!(
                apply_all(events).map(|ended| ended.outcome.exit()),
                expected,
                "{events:?}"
            );
        }
        assert_eq!(EventKind::TurnEnd.name(), "turn_end");
    }

    #[test]
    fn the_answer_is_the_last_text_of_the_orchestrators_turns() {
        let (done, cut) = (TurnOutcome::Completed, TurnOutcome::Truncated);
        let delegates = || says("lead", done, Some("I asked the coder."), &["p"]);
        let table: [(&[Envelope], Option<&str>); 4] = [
            (
                &[start("lead", &["p"]), delegates()],
                Some("I asked the coder."),
            ),
            (
                &[delegates(), says("coder", done, Some("Built."), &["t"])],
                Some("I asked the coder."),
            ),
            (
                &[
                    start("lead", &["p"]),
                    delegates(),
                    says("lead", done, Some("It is built."), &["r"]),
                ],
                Some("It is built."),
            ),
            (
                &[
                    start("lead", &["p"]),
                    delegates(),
                    says("lead", cut, None, &["r"]),
                ],
                None,
            ),
        ];
        for (events, expected) in table {
            assert_eq!(
                apply_all(events).and_then(|ended| ended.answer).as_deref(),
                expected,
                "{events:?}"
            );
        }
    }

    #[test]
    fn a_refusal_is_no_success() {
        let end = TurnEnd {
            outcome: TurnOutcome::Completed,
            message: Some("I can't.".into()),
            usage: Usage::default(),
            refused: true,
            limit: None,
            reason: None,
            inputs: vec![InputId::parse("p").unwrap()],
        };
        let ended = apply_all(&[start("lead", &["p"]), event("lead", &Event::TurnEnd(end))]);
        let ended = ended.unwrap();
        assert_eq!(
            (ended.outcome, ended.outcome.exit(), ended.answer.as_deref()),
            (WorkOutcome::Refused, Exit::Failed, Some("I can't."))
        );
    }

    #[test]
    fn a_retracted_end_of_a_turn_does_not_count() {
        let mut turns = OpenTurns::of(InputId::parse("p").ok());
        turns.apply(&says(
            "lead",
            TurnOutcome::Completed,
            Some("forged"),
            &["p"],
        ));
        turns.forget(&Retracted {
            seq: 1,
            kind: "turn_end".into(),
            agent_id: AgentId::parse("lead").unwrap(),
        });
        assert!(turns.at_rest().is_none());
    }
}
