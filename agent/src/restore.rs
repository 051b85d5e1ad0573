//! Restores an agent from its log: its view, and the work that was interrupted.

use std::{collections::HashMap, sync::Arc};

use planck_common::{
    InputId, Seq, Timestamp,
    event::{Event, EventKind, InputKind, TurnInput, TurnStart, Warning},
    message::{Custom, MessageBody, MessageMetadata, MessageRole},
};

use super::{
    Agent, Effect, Memory, NewInput, OpenTurn, Setup, StepEffects, StoredInput, Totals,
    answer::DEVIATING,
    calls::RequestedCall,
    effect::Change,
    guard::LoopVerdict,
    open_work::{OpenCalls, OpenWork},
    phase::Turn,
    round::{OpenWait, Round},
    saves::Rows,
    setup::Unstorable,
    speech,
    turn::TurnEnding,
    waiting::{Admission, withdraw, withdrawn},
};
use crate::log::LogRow;

const INTERRUPTED: &str = "interrupted; it may or may not have taken effect";
const NOT_ANSWERED: &str = "not run: the turn ended before anybody answered";

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
            Event::TurnStart(TurnStart { inputs, .. }) => {
                *open = OpenWork {
                    turn: Some(Box::new(Turn::new(inputs, row.place.at))),
                    ..OpenWork::default()
                };
            }
            // Open calls are kept: they must be answered again if a rewind hid their results.
            Event::TurnEnd(_) | Event::Error(_) => open.turn = None,
            Event::UsageDelta(usage) => {
                self.transcript.correct(usage.context_tokens);
                open.turn
                    .iter_mut()
                    .for_each(|turn| turn.usage += usage.delta);
            }
            Event::ToolStart(start) => open.call_started(start),
            Event::ToolEnd(end) => open.call_ended(end),
            Event::WaitOpened(wait) => open.wait_opened(wait, row.place.at),
            Event::WaitClosed(wait) => open.wait_closed(&wait.id, row.place.at),
            Event::Checkpoint(checkpoint) => self.transcript.forget(checkpoint.covers),
            Event::Warning(Warning { code, message, .. }) if code == DEVIATING => {
                self.deferred.deviations.insert(message);
            }
            Event::Message(_)
            | Event::Retry(_)
            | Event::Compacted(_)
            | Event::WorkerSpawned(_)
            | Event::WorkerExit(_)
            | Event::AgentStarted(_)
            | Event::AgentStopped(_)
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
            return self.transcript.summarise(row.seq, body);
        }
        self.transcript.replay(row.seq, body.clone());
        match body.role {
            MessageRole::Assistant => self.replay_answer(body, open),
            MessageRole::ToolResult => open.calls = None,
            MessageRole::User | MessageRole::Custom => open
                .turn
                .iter_mut()
                .for_each(|turn| join(turn, &body.metadata, inputs)),
        }
    }

    fn replay_answer(&mut self, answer: Arc<MessageBody>, open: &mut OpenWork) {
        let Some(turn) = &mut open.turn else { return };
        turn.keep_text(&answer.content);
        let mut remarks = HashMap::new();
        for wanted in answer.content.iter().filter_map(RequestedCall::read) {
            let verdict = wanted.judge(&mut turn.guard, self.settings.loop_guard);
            if let LoopVerdict::Remark(remark) = verdict {
                remarks.insert(wanted.call.call_id, remark);
            }
        }
        if answer
            .content
            .iter()
            .any(|part| RequestedCall::read(part).is_some())
        {
            open.calls = Some(OpenCalls::new(answer, remarks));
        }
    }

    fn resume(&mut self, mut open: OpenWork, memory: &Memory, step: &mut StepEffects) {
        if let OpenTurn::Refused(unstorable) = &memory.open_turn {
            return self.go_on_without(open, unstorable, memory, step);
        }
        let Some(mut turn) = open.turn.take() else {
            return match open.calls {
                Some(calls) => self.answer_rewound(&calls, step),
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
                None => self.take_up(turn, open.calls, step),
            },
            OpenTurn::Resume | OpenTurn::Close => {
                turn.inputs.retain(|input| is_open(&input.id));
                let ending = TurnEnding::Aborted { reason: None };
                self.shut(&turn, &open, ending, step);
            }
            OpenTurn::Lost => {
                let reason = "the node that ran this turn is gone".to_owned();
                let ending = TurnEnding::Failed {
                    for_agents: reason.clone(),
                    reason,
                    code: "node_lost",
                    retryable: true,
                };
                self.shut(&turn, &open, ending, step);
            }
            OpenTurn::Refused(unstorable) => self.shut(&turn, &open, unstorable.ending(), step),
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
            return self.shut(&turn, &open, unstorable.ending(), step);
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

    /// Continues the turn. Runs the calls that have no result yet, but gives a call that has
    /// started and may not run again an error as its result. Without open calls, decides what the
    /// turn does next.
    fn take_up(&mut self, mut turn: Box<Turn>, calls: Option<OpenCalls>, step: &mut StepEffects) {
        step.act(Effect::Turn { open: true });
        if turn.paused_at.is_none() {
            self.set_deadline(&mut turn, step);
        }
        let mut rows = Rows::at(self.place(step.now));
        let Some(calls) = calls else {
            return self.go_on(turn, rows, step);
        };
        let mut round = Round::new(calls.fault());
        let mut runs = Vec::new();
        for wanted in calls.answer.content.iter().filter_map(RequestedCall::read) {
            let id = wanted.call.call_id.clone();
            let remark = calls.remarks.get(&id).cloned();
            if let Some((text, error)) = calls.ended.get(&id) {
                round.settle(wanted.call, text.clone(), *error);
            } else if let Some(logged) = calls.waits.get(&id) {
                // A call that changed protected files has started, and waits afterwards.
                let started = calls.started.get(&id).map(|(_, args)| &**args);
                let wait = OpenWait {
                    id: logged.id.clone(),
                    kind: logged.kind,
                    digest: logged.digest.clone(),
                    args: started.unwrap_or(wanted.args).to_owned(),
                    remark,
                    result: logged.result.clone(),
                };
                round.wait(wanted.call, wait);
            } else if let Some((effect, args)) = calls.started.get(&id) {
                match effect.may_run_again() {
                    true => {
                        let started = RequestedCall { args, ..wanted };
                        runs.push(self.run_again(&mut round, started, remark, step));
                    }
                    false => interrupted(&mut round, wanted, &mut rows),
                }
            } else {
                match self.admit(&mut round, wanted, remark, &mut rows, step) {
                    Admission::Runs(run) => runs.push(run),
                    Admission::Refused(end) => rows.event(&Event::ToolEnd(end)),
                    Admission::Waits => {}
                }
            }
        }
        self.run(turn, round, runs, rows, step);
    }

    /// Gives each open call a result after its turn has ended. The calls are open because a rewind
    /// hid their results, and providers refuse a history with open calls.
    fn answer_rewound(&mut self, calls: &OpenCalls, step: &mut StepEffects) {
        let mut round = Round::new(None);
        for wanted in calls.answer.content.iter().filter_map(RequestedCall::read) {
            let (text, error) = calls
                .ended
                .get(&wanted.call.call_id)
                .cloned()
                .unwrap_or_else(|| (INTERRUPTED.into(), true));
            round.settle(wanted.call, text, error);
        }
        let mut rows = Rows::at(self.place(step.now));
        rows.message(round.results());
        self.save_close(rows, step);
    }

    /// Ends a turn that does not continue, and gives every open call a result.
    fn shut(&mut self, turn: &Turn, open: &OpenWork, ending: TurnEnding, step: &mut StepEffects) {
        let mut rows = Rows::at(self.place(step.now));
        if let Some(wait) = open.limit_wait.clone() {
            rows.event(&withdrawn(wait, None, NOT_ANSWERED));
        }
        if let Some(calls) = &open.calls {
            let mut round = Round::new(None);
            for wanted in calls.answer.content.iter().filter_map(RequestedCall::read) {
                let id = &wanted.call.call_id;
                match (calls.ended.get(id), calls.waits.get(id)) {
                    (Some((text, error)), _) => round.settle(wanted.call, text.clone(), *error),
                    (None, Some(wait)) => {
                        let result = wait.result.clone();
                        let id = wait.id.clone();
                        withdraw(&mut round, wanted.call, id, result, NOT_ANSWERED, &mut rows);
                    }
                    (None, None) => interrupted(&mut round, wanted, &mut rows),
                }
            }
            rows.message(round.results());
        }
        self.end_turn(turn, rows, ending, step);
    }
}

fn interrupted(round: &mut Round, wanted: RequestedCall<'_>, rows: &mut Rows) {
    rows.event(&Event::ToolEnd(wanted.call.end(
        INTERRUPTED.into(),
        true,
        0,
    )));
    round.settle(wanted.call, INTERRUPTED.into(), true);
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
    }
}
