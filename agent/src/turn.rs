//! Opens and ends turns, and decides what the agent does after a turn.

use std::{sync::Arc, time::Duration};

use planck_common::{
    AgentId, InputId, Seq, Timestamp,
    command::{AgentState, InputMode},
    envelope::EventPlace,
    event::{
        Checkpoint, Event, InputKind, MessageQueued, OutputDue, TurnEnd, TurnError, TurnInput,
        TurnOutcome, TurnStart, Warning, json,
    },
    message::{MessageBody, MessageRole, Part},
};

use super::{
    Agent, Effect, InputOutcome, NewInput, StepEffects,
    effect::Change,
    output::TurnOutput,
    phase::{Phase, Turn, TurnEnding},
    saves::{OnCommit, Rows},
    speech,
};

/// The line that tells other agents of a refusal.
const REFUSED: &str = "[the model refused to answer]";

impl Agent {
    pub(super) fn deliver(&mut self, input: NewInput, step: &mut StepEffects) {
        let is_working = matches!(self.phase, Phase::Working(..));
        if is_working && input.mode == InputMode::Reject && !self.is_in_turn(&input.id) {
            // An agent that was loaded after the input was put has it in its queue already.
            self.inbox.remove(std::slice::from_ref(&input.id));
            return self.refuse(input, step);
        }
        if self.inbox.holds(&input.id) || self.is_in_turn(&input.id) {
            return;
        }
        match &self.phase {
            Phase::Idle => {
                self.inbox.push(input);
                self.settle_down(step);
            }
            Phase::Working(..) => self.queue(input, step),
            Phase::Stopping(_) | Phase::Stopped => {}
        }
    }

    fn is_in_turn(&self, id: &InputId) -> bool {
        let turn = self.phase.turn();
        turn.is_some_and(|turn| turn.inputs.iter().any(|input| input.id == *id))
    }

    fn queue(&mut self, input: NewInput, step: &mut StepEffects) {
        let TurnInput { id, kind, from, by } = speech::turn_input(&input);
        self.inbox.push(input);
        let queued = self.inbox.len();
        step.publish(
            self.place(step.now),
            Event::MessageQueued(MessageQueued {
                id,
                kind,
                from,
                by,
                queued,
            }),
        );
    }

    fn refuse(&mut self, input: NewInput, step: &mut StepEffects) {
        let mut rows = Rows::at(self.place(step.now));
        let message = format!("input {} was refused: the agent is busy", input.id);
        rows.event(&Event::Warning(Warning {
            inputs: vec![input.id.clone()],
            ..Warning::new("input_rejected", message)
        }));
        rows.end(&input.id, InputOutcome::Busy, None);
        self.save_then(rows, self.phase.state(), OnCommit::Refuse(input), step);
    }

    /// Decides what an agent without a turn does next: it does postponed work, or opens a turn for
    /// the waiting inputs.
    pub(super) fn settle_down(&mut self, step: &mut StepEffects) {
        if !matches!(self.phase, Phase::Idle) {
            return;
        }
        if let Some(stopping) = self.deferred.stop.take() {
            return self.stop_now(stopping, step);
        }
        if let Some(summary) = self.deferred.checkpoint.take() {
            return self.checkpoint(&summary, step);
        }
        if self.deferred.is_lost {
            return;
        }
        let inputs = self.inbox.take_next();
        if !inputs.is_empty() {
            let messages = inputs.iter().map(speech::message).collect();
            self.open(inputs, messages, step);
        }
    }

    /// Saves the start of a turn with these inputs. The turn opens after the commit.
    pub(super) fn open(
        &mut self,
        inputs: Vec<NewInput>,
        messages: Vec<MessageBody>,
        step: &mut StepEffects,
    ) {
        let turn = self.counters.turn + 1;
        let mut rows = Rows::at(EventPlace {
            turn,
            request: 0,
            at: step.now,
        });
        let listed = inputs.iter().map(speech::turn_input).collect();
        let output = self.output_of(&inputs);
        rows.event(&Event::TurnStart(TurnStart {
            index: turn,
            inputs: listed,
            output: output.clone(),
        }));
        if inputs.iter().any(|input| input.fresh) {
            rows.event(&Event::Checkpoint(Checkpoint {
                covers: self.transcript.last_id(),
            }));
        }
        rows.messages(messages);
        inputs
            .iter()
            .for_each(|input| rows.mark(&input.id, Change::Consumed { turn }));
        let opening = OnCommit::Open(inputs, output);
        self.save_then(rows, AgentState::Streaming, opening, step);
    }

    pub(super) fn opened(
        &mut self,
        inputs: Vec<NewInput>,
        output: Option<OutputDue>,
        messages: Vec<(usize, Arc<MessageBody>)>,
        ids: &[Seq],
        step: &mut StepEffects,
    ) {
        self.counters.turn += 1;
        self.counters.request = 0;
        if inputs.iter().any(|input| input.fresh) {
            self.transcript.forget(self.transcript.last_id());
        }
        self.show(messages, ids);
        let mut turn = Turn::new(inputs.iter().map(speech::turn_input).collect(), step.now);
        turn.output = output.map(TurnOutput::new);
        self.deferred.output = None;
        self.offer(&turn);
        step.act(Effect::Turn { open: true });
        self.set_deadline(&mut turn, step);
        self.go_on(Box::new(turn), Rows::at(self.place(step.now)), step);
    }

    /// Starts a timer that ends the turn after its maximum duration, if the agent's limits set one.
    pub(super) fn set_deadline(&mut self, turn: &mut Turn, step: &mut StepEffects) {
        let Some(seconds) = self.config.spec.limits.max_turn_seconds else {
            return;
        };
        let elapsed = Duration::from_millis(step.now.millis_since(turn.since));
        let ticket = self.counters.ticket();
        turn.deadline = Some(ticket);
        step.act(Effect::StartTimer {
            ticket,
            delay: Duration::from_secs(seconds).saturating_sub(elapsed),
        });
    }

    /// Ends the turn: saves its terminal event, the outcome of its inputs, and, unless it is
    /// [`TurnEnding::Closed`], notes to the agents whose tasks got no response. After the commit
    /// the agent decides what to do next.
    pub(super) fn end_turn(
        &mut self,
        turn: &Turn,
        mut rows: Rows,
        ending: TurnEnding,
        step: &mut StepEffects,
    ) {
        let (outcome, answer) = (ending.outcome(), ending.answer(turn));
        if let TurnEnding::Completed = ending {
            self.deferred.output = turn.output_due();
        }
        for input in &turn.inputs {
            let answer = answer.clone().filter(|_| input.kind == InputKind::Question);
            rows.end(&input.id, outcome.clone(), answer);
        }
        let unanswered: Vec<_> = turn
            .unanswered()
            .filter(|_| !matches!(ending, TurnEnding::Closed))
            .collect();
        for (task, delegator) in &unanswered {
            let (kind, text) = match (&ending, turn.answer()) {
                (TurnEnding::Completed, Some(answer)) => {
                    (InputKind::Response, answer.get().to_owned())
                }
                _ => (
                    InputKind::Note,
                    unanswered_text(task, &outcome, answer.as_deref()),
                ),
            };
            rows.put(self.report(task, delegator, (kind, text), step.now));
        }
        rows.event(&ending.into_event(turn));
        self.phase = Phase::Idle;
        self.save_close(rows, step);
        step.settled(
            turn.inputs
                .iter()
                .map(|input| (input.id.clone(), input.from.clone()))
                .collect(),
        );
        turn.deadline
            .into_iter()
            .for_each(|ticket| step.act(Effect::CancelTimer { ticket }));
        if !unanswered.is_empty() {
            step.act(Effect::Wake {
                agents: unanswered
                    .into_iter()
                    .map(|(_, agent)| agent.clone())
                    .collect(),
            });
        }
        step.act(Effect::Turn { open: false });
    }

    /// Returns what the sender of a task gets if the turn sent no response to it.
    fn report(
        &self,
        task: &InputId,
        delegator: &AgentId,
        (kind, text): (InputKind, String),
        at: Timestamp,
    ) -> NewInput {
        NewInput {
            id: task.unanswered(),
            agent: delegator.clone(),
            kind,
            mode: InputMode::Queue,
            sender: Some(self.config.sender(&self.identity.agent)),
            by: None,
            reply_to: Some(task.clone()),
            content: json(&[Part::text(text)]),
            fresh: false,
            output: None,
            at,
        }
    }

    /// Opens a turn without new inputs, unless the history is empty. Adds the message "Continue."
    /// if the history ends with the model's own message.
    pub(super) fn nudge(&mut self, step: &mut StepEffects) {
        let Some(last) = self.transcript.lines().last() else {
            return;
        };
        let messages = match last.body.role {
            MessageRole::Assistant => vec![speech::user("Continue.")],
            MessageRole::User | MessageRole::ToolResult | MessageRole::Custom => Vec::new(),
        };
        self.open(Vec::new(), messages, step);
    }
}

fn unanswered_text(task: &InputId, outcome: &InputOutcome, text: Option<&str>) -> String {
    let text = text.unwrap_or("(no text)");
    format!(
        "task_unanswered {task}: the turn ended ({outcome}) without a response. Its text:\n\n{text}"
    )
}

impl TurnEnding {
    /// Returns the outcome for the inputs of the turn.
    fn outcome(&self) -> InputOutcome {
        match self {
            Self::Completed | Self::Refused => InputOutcome::Turn(TurnOutcome::Completed),
            Self::Aborted { .. } | Self::Closed => InputOutcome::Turn(TurnOutcome::Aborted),
            Self::Truncated => InputOutcome::Turn(TurnOutcome::Truncated),
            Self::Limit(_) => InputOutcome::Turn(TurnOutcome::Limit),
            Self::Failed { .. } => InputOutcome::Failed,
        }
    }

    /// Returns the text that the askers of questions get, and the senders of unanswered tasks:
    /// `for_agents` of a failed turn, or else the turn's text, which may be missing. The text of a
    /// refusal says that it is one, because it may be a text from before the refusal.
    fn answer(&self, turn: &Turn) -> Option<String> {
        match self {
            Self::Failed { for_agents, .. } => Some(for_agents.clone()),
            Self::Refused => Some(match &turn.text {
                Some(text) => format!("{text}\n{REFUSED}"),
                None => REFUSED.to_owned(),
            }),
            Self::Completed => {
                let answer = turn.answer().map(|answer| answer.get().to_owned());
                answer.or_else(|| turn.text.clone())
            }
            Self::Aborted { .. } | Self::Closed | Self::Truncated | Self::Limit(_) => {
                turn.text.clone()
            }
        }
    }

    fn into_event(self, turn: &Turn) -> Event {
        let inputs = turn.inputs.iter().map(|input| input.id.clone()).collect();
        let end = |outcome, inputs| TurnEnd {
            outcome,
            message: turn.text.clone(),
            usage: turn.usage,
            refused: false,
            limit: None,
            reason: None,
            output: None,
            output_repairs: turn.output.as_ref().map_or(0, |output| output.repairs),
            output_due: None,
            inputs,
        };
        match self {
            Self::Completed => Event::TurnEnd(TurnEnd {
                output: turn.answer().map(ToOwned::to_owned),
                output_due: turn.output_due(),
                ..end(TurnOutcome::Completed, inputs)
            }),
            Self::Refused => Event::TurnEnd(TurnEnd {
                refused: true,
                ..end(TurnOutcome::Completed, inputs)
            }),
            Self::Aborted { reason } => Event::TurnEnd(TurnEnd {
                reason,
                ..end(TurnOutcome::Aborted, inputs)
            }),
            Self::Closed => Event::TurnEnd(end(TurnOutcome::Aborted, inputs)),
            Self::Truncated => Event::TurnEnd(end(TurnOutcome::Truncated, inputs)),
            Self::Limit(limit) => Event::TurnEnd(TurnEnd {
                limit: Some(limit.to_owned()),
                ..end(TurnOutcome::Limit, inputs)
            }),
            Self::Failed {
                reason,
                code,
                retryable,
                for_agents: _,
            } => Event::Error(TurnError {
                reason,
                code: code.into(),
                retryable,
                inputs,
            }),
        }
    }
}
