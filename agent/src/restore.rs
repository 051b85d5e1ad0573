//! Restores an agent from its log: its context, and the work that was interrupted.

use std::sync::Arc;

use planck_common::{
    CallId, InputId, Seq, Timestamp,
    event::{Event, EventKind, InputKind, TurnInput, TurnStart, Warning},
    message::{Custom, MessageBody, MessageMetadata, MessageRole},
    wait::{WaitKind, WaitOpened},
};

use super::{
    Agent, Effect, LogRow, Memory, NewInput, OpenTurn, Setup, StepEffects, StoredInput, Totals,
    answer::{DEVIATING, INTERRUPTED},
    effect::Change,
    output::TurnOutput,
    phase::{Turn, TurnEnding},
    round::Round,
    saves::Rows,
    setup::Unstorable,
    speech,
    waiting::{withdraw, withdrawn},
};

const NOT_ANSWERED: &str = "not run: the turn ended before anybody answered";

/// The work that the rows of a log left open.
#[derive(Default)]
struct OpenWork {
    turn: Option<Box<Turn>>,
    /// The calls of the latest answer, if they have no message of results yet.
    round: Option<Round>,
    /// The wait for a decision about a limit.
    limit_wait: Option<CallId>,
}

/// A row that this version cannot read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read row {seq} of the log: {source}")]
pub struct Unreadable {
    pub seq: Seq,
    source: serde_json::Error,
}

impl Agent {
    /// Restores an agent from its log, and returns the effects to perform first.
    pub fn restore(
        setup: Setup,
        memory: Memory,
        now: Timestamp,
    ) -> Result<(Self, Vec<Effect>), Unreadable> {
        let mut agent = Self::new(setup);
        let mut step = StepEffects::new(now);
        agent.totals = Totals {
            agent: memory.totals,
            session: memory.session,
        };
        let mut open = OpenWork::default();
        for row in &memory.rows {
            agent
                .replay(row, &mut open, &memory.inputs)
                .map_err(|source| Unreadable {
                    seq: row.seq,
                    source,
                })?;
        }
        let unread = memory.inputs.iter().filter(|row| row.turn.is_none());
        unread.for_each(|row| agent.inbox.push(row.input.clone()));
        agent.resume(open, &memory, &mut step);
        Ok((agent, step.effects))
    }

    fn replay(
        &mut self,
        row: &LogRow,
        open: &mut OpenWork,
        inputs: &[StoredInput],
    ) -> Result<(), serde_json::Error> {
        self.counters.turn = self.counters.turn.max(row.place.turn);
        if self.counters.turn == row.place.turn {
            self.counters.request = row.place.request;
        }
        if row.kind == EventKind::Message {
            self.replay_message(
                row,
                Arc::new(serde_json::from_str(&row.body)?),
                open,
                inputs,
            );
        } else {
            self.replay_event(Event::parse(row.kind, &row.body)?, row, open);
        }
        Ok(())
    }

    fn replay_event(&mut self, event: Event, row: &LogRow, open: &mut OpenWork) {
        match event {
            Event::TurnStart(TurnStart { inputs, output, .. }) => {
                let mut turn = Turn::new(inputs, row.place.at);
                turn.output = output.map(TurnOutput::new);
                self.deferred.output = None;
                *open = OpenWork {
                    turn: Some(Box::new(turn)),
                    ..OpenWork::default()
                };
            }
            // Open calls are kept: they must be answered again if a rewind hid their results.
            Event::TurnEnd(end) => {
                open.turn = None;
                self.deferred.output = end.output_due;
            }
            Event::Error(_) => open.turn = None,
            // The agent's unread inputs ended with it, and perhaps the tasks too whose responses
            // the next turn would have read.
            Event::AgentStopped(_) => self.deferred.output = None,
            Event::UsageDelta(usage) => {
                self.transcript.correct(usage.context_tokens);
                open.turn
                    .iter_mut()
                    .for_each(|turn| turn.usage += usage.delta);
            }
            Event::ToolStart(start) => open.in_round(|round| round.replay_start(start)),
            Event::ToolEnd(end) => open.in_round(|round| round.replay_end(end)),
            Event::WaitOpened(wait) => open.wait_opened(&wait, row.place.at),
            Event::WaitClosed(wait) => open.wait_closed(&wait.id, row.place.at),
            Event::Checkpoint(checkpoint) => {
                self.transcript.forget(checkpoint.covers);
                self.list_tools();
            }
            Event::Warning(Warning { code, message, .. }) if code == DEVIATING => {
                self.deferred.deviations.insert(message);
            }
            Event::Message(_)
            | Event::Retry(_)
            | Event::Compacted(_)
            | Event::WorkerSpawned(_)
            | Event::WorkerExit(_)
            | Event::AgentStarted(_)
            | Event::SessionStarted(_)
            | Event::SessionResumed(_)
            | Event::SessionClosed(_)
            | Event::Rewound(_)
            | Event::ToolsChanged(_)
            | Event::ModelChanged(_)
            | Event::Warning(_)
            | Event::TextDelta(_)
            | Event::ThinkingDelta(_)
            | Event::ToolProgress(_)
            | Event::MessageQueued(_)
            | Event::Compacting(_) => {}
        }
    }

    fn replay_message(
        &mut self,
        row: &LogRow,
        body: Arc<MessageBody>,
        open: &mut OpenWork,
        inputs: &[StoredInput],
    ) {
        if body.custom == Some(Custom::Summary) {
            self.transcript.summarise(row.seq, body);
            return self.list_tools();
        }
        if self.transcript.replay(row.seq, body.clone()) {
            self.list_tools();
        }
        match body.role {
            MessageRole::Assistant => self.replay_answer(&body, open),
            MessageRole::ToolResult => open.close_round(),
            MessageRole::User | MessageRole::Custom => open
                .turn
                .iter_mut()
                .for_each(|turn| join(turn, &body.metadata, inputs)),
        }
    }

    fn replay_answer(&mut self, answer: &MessageBody, open: &mut OpenWork) {
        let Some(turn) = &mut open.turn else { return };
        turn.keep_text(&answer.content);
        let (stop, limits) = (answer.metadata.stop, self.settings.loop_guard);
        let round = Round::read(&answer.content, stop, &mut turn.guard, limits);
        match (round, &mut turn.output) {
            (None, Some(output)) => output.is_demanded = true,
            (None, None) => {}
            (round @ Some(_), _) => open.round = round,
        }
    }

    fn resume(&mut self, mut open: OpenWork, memory: &Memory, step: &mut StepEffects) {
        if let OpenTurn::Refused(unstorable) = &memory.open_turn {
            return self.go_on_without(open, unstorable, memory, step);
        }
        self.deferred.is_lost = memory.open_turn == OpenTurn::Lost;
        let Some(mut turn) = open.turn.take() else {
            return match open.round {
                Some(round) => self.answer_rewound(round, step),
                None => self.settle_down(step),
            };
        };
        let is_open = |id: &InputId| memory.inputs.iter().any(|row| row.input.id == *id);
        let was_rewound =
            !turn.inputs.is_empty() && !turn.inputs.iter().any(|input| is_open(&input.id));
        turn.responded = memory
            .responded
            .iter()
            .filter(|task| turn.inputs.iter().any(|input| input.id == **task))
            .cloned()
            .collect();
        match &memory.open_turn {
            OpenTurn::Resume if !was_rewound => match open.limit_wait {
                Some(wait) => self.wait_at_limit(turn, wait, step),
                None => self.take_up(turn, open.round, step),
            },
            OpenTurn::Resume | OpenTurn::Close => {
                turn.inputs.retain(|input| is_open(&input.id));
                let ending = TurnEnding::Aborted { reason: None };
                self.shut(&turn, open, ending, step);
            }
            OpenTurn::Lost => {
                let reason = "the node that ran this turn is gone".to_owned();
                let ending = TurnEnding::Failed {
                    for_agents: reason.clone(),
                    reason,
                    code: "node_lost",
                    retryable: true,
                };
                self.shut(&turn, open, ending, step);
            }
            OpenTurn::Refused(unstorable) => self.shut(&turn, open, unstorable.ending(), step),
        }
    }

    /// Continues after the store refused a save. A turn that is open in the log ends. The inputs
    /// that the save consumed get a turn each from now on. If the save was to open a turn for a
    /// single input, that input cannot be stored, and is refused.
    fn go_on_without(
        &mut self,
        mut open: OpenWork,
        unstorable: &Unstorable,
        memory: &Memory,
        step: &mut StepEffects,
    ) {
        if let Some(mut turn) = open.turn.take() {
            turn.inputs
                .retain(|input| memory.inputs.iter().any(|row| row.input.id == input.id));
            self.inbox.isolate(&unstorable.inputs);
            return self.shut(&turn, open, unstorable.ending(), step);
        }
        match unstorable.inputs.as_slice() {
            [input] => match self.inbox.take(input) {
                Some(input) => self.refuse_input(&input, unstorable, step),
                None => self.settle_down(step),
            },
            several => {
                self.inbox.isolate(several);
                self.settle_down(step);
            }
        }
    }

    /// Ends an input in a turn of its own, without any of the input's content.
    fn refuse_input(&mut self, input: &NewInput, unstorable: &Unstorable, step: &mut StepEffects) {
        self.counters.turn += 1;
        self.counters.request = 0;
        let (index, listed) = (self.counters.turn, speech::turn_input(input));
        let mut rows = Rows::at(self.place(step.now));
        rows.event(&Event::TurnStart(TurnStart {
            index,
            inputs: vec![listed.clone()],
            output: None,
        }));
        rows.mark(&input.id, Change::Consumed { turn: index });
        step.act(Effect::Turn { open: true });
        self.end_turn(
            &Turn::new(vec![listed], step.now),
            rows,
            unstorable.ending(),
            step,
        );
    }

    /// Continues the turn. Decides about the calls that have no result yet, or, without such calls,
    /// what the turn does next.
    fn take_up(&mut self, mut turn: Box<Turn>, round: Option<Round>, step: &mut StepEffects) {
        step.act(Effect::Turn { open: true });
        self.offer(&turn);
        if turn.paused_at.is_none() {
            self.set_deadline(&mut turn, step);
        }
        let rows = Rows::at(self.place(step.now));
        match round {
            Some(round) => self.admit_calls(turn, round, rows, step),
            None => self.go_on_after(turn, rows, step),
        }
    }

    /// Gives each open call a result after its turn has ended. The calls are open because a rewind
    /// hid their results, and providers refuse a history with open calls.
    fn answer_rewound(&mut self, mut round: Round, step: &mut StepEffects) {
        for call in round.calls().filter(|call| !call.is_done()) {
            call.settle(INTERRUPTED.into(), true);
        }
        let mut rows = Rows::at(self.place(step.now));
        rows.message(round.results());
        self.save_close(rows, step);
    }

    /// Ends a turn that does not continue, and gives every open call a result.
    fn shut(&mut self, turn: &Turn, open: OpenWork, ending: TurnEnding, step: &mut StepEffects) {
        let mut rows = Rows::at(self.place(step.now));
        if let Some(wait) = open.limit_wait {
            rows.event(&withdrawn(wait, None, NOT_ANSWERED));
        }
        if let Some(mut round) = open.round {
            for call in round.calls().filter(|call| !call.is_done()) {
                match call.take_wait() {
                    Some(wait) => withdraw(call, wait, NOT_ANSWERED, &mut rows),
                    None => rows.event(&Event::ToolEnd(call.end(INTERRUPTED.into(), true, 0))),
                }
            }
            rows.message(round.results());
        }
        self.end_turn(turn, rows, ending, step);
    }
}

impl OpenWork {
    fn in_round(&mut self, change: impl FnOnce(&mut Round)) {
        if let Some(round) = &mut self.round {
            change(round);
        }
    }

    /// Records that the calls of the latest answer have a message of results.
    fn close_round(&mut self) {
        let turn = self.turn.as_mut();
        if let (Some(round), Some(output)) = (
            self.round.take(),
            turn.and_then(|turn| turn.output.as_mut()),
        ) {
            output.close(&round);
        }
    }

    /// Records a wait. The turn's clock stands while a call waits.
    fn wait_opened(&mut self, wait: &WaitOpened, at: Timestamp) {
        self.turn.iter_mut().for_each(|turn| turn.pause(at));
        if wait.kind == WaitKind::Budget {
            self.limit_wait = Some(wait.id.clone());
        } else {
            self.in_round(|round| round.replay_wait(wait));
        }
    }

    fn wait_closed(&mut self, wait: &CallId, at: Timestamp) {
        self.limit_wait.take_if(|id| id == wait);
        self.in_round(|round| {
            round.take_wait(wait);
        });
        let waits = |round: &Round| round.waits().next().is_some();
        if !self.round.as_ref().is_some_and(waits) {
            self.turn.iter_mut().for_each(|turn| {
                turn.resume(at);
            });
        }
    }
}

/// Adds the inputs of a message to the turn, except those that the turn already has.
fn join(turn: &mut Turn, metadata: &MessageMetadata, inputs: &[StoredInput]) {
    for id in &metadata.inputs {
        if turn.inputs.iter().any(|input| input.id == *id) {
            continue;
        }
        let known = inputs.iter().find(|row| row.input.id == *id);
        let unknown = || TurnInput {
            id: id.clone(),
            kind: InputKind::Prompt,
            from: None,
            by: None,
        };
        turn.inputs
            .push(known.map_or_else(unknown, |row| speech::turn_input(&row.input)));
        let about = known.and_then(|row| row.input.reply_to.as_ref());
        if let (Some(output), Some(task)) = (&mut turn.output, about) {
            output.heard(task);
        }
    }
}
