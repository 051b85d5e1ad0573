//! Restores an agent from its log: its view, and the work that was interrupted.

use std::{collections::HashMap, sync::Arc};

use planck_common::{
    CallId, InputId, Seq, Timestamp,
    event::{
        Effect as ToolEffect, Event, EventKind, InputKind, ToolEnd, TurnInput, TurnStart, Warning,
    },
    message::{Body, Custom, Metadata, Role},
};

use super::{
    Agent, Effect, Memory, Moment, NewInput, OpenTurn, Setup, StoredInput, Totals,
    answer::{DEVIATING, is_cut},
    calls::Wanted,
    effect::Change,
    guard::Verdict,
    phase::Turn,
    round::Round,
    saves::Rows,
    setup::Unstorable,
    speech,
    turn::Ending,
};
use crate::log::LogRow;

const INTERRUPTED: &str = "interrupted; it may or may not have taken effect";

/// A row that this version cannot read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read row {seq} of the log: {source}")]
pub struct Unreadable {
    pub seq: Seq,
    source: serde_json::Error,
}

/// The work that the rows left open.
#[derive(Default)]
struct Open {
    turn: Option<Box<Turn>>,
    calls: Option<Calls>,
}

/// An answer whose calls have no message of results yet.
struct Calls {
    answer: Arc<Body>,
    started: HashMap<CallId, ToolEffect>,
    ended: HashMap<CallId, (String, bool)>,
    remarks: HashMap<CallId, String>,
}

impl Agent {
    /// Restores an agent from its log, and returns the effects to perform first.
    pub fn restore(
        setup: Setup,
        memory: Memory,
        now: Timestamp,
    ) -> Result<(Self, Vec<Effect>), Unreadable> {
        let mut agent = Self::new(setup);
        let mut moment = Moment::new(now);
        agent.totals = Totals {
            agent: memory.totals,
            session: memory.session,
        };
        let mut open = Open::default();
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
        agent.resume(open, &memory, &mut moment);
        Ok((agent, moment.effects))
    }

    fn replay(
        &mut self,
        row: &LogRow,
        open: &mut Open,
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

    fn replay_event(&mut self, event: Event, row: &LogRow, open: &mut Open) {
        match event {
            Event::TurnStart(TurnStart { inputs, .. }) => {
                *open = Open {
                    turn: Some(Box::new(Turn::new(inputs, row.place.at))),
                    calls: None,
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
            Event::ToolStart(start) => {
                open.calls.iter_mut().for_each(|calls| {
                    calls
                        .started
                        .extend([(start.call_id.clone(), start.effect)])
                });
            }
            Event::ToolEnd(ToolEnd {
                call_id,
                result,
                error,
                ..
            }) => {
                open.calls.iter_mut().for_each(|calls| {
                    calls
                        .ended
                        .extend([(call_id.clone(), (result.clone(), error))])
                });
            }
            Event::Checkpoint(checkpoint) => self.transcript.forget(checkpoint.covers),
            Event::Warning(Warning { code, message }) if code == DEVIATING => {
                self.plans.deviations.insert(message);
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
        body: Arc<Body>,
        open: &mut Open,
        inputs: &[StoredInput],
    ) {
        if body.custom == Some(Custom::Summary) {
            return self.transcript.summarise(row.seq, body);
        }
        self.transcript.replay(row.seq, body.clone());
        match body.role {
            Role::Assistant => self.replay_answer(body, open),
            Role::ToolResult => open.calls = None,
            Role::User | Role::Custom => open
                .turn
                .iter_mut()
                .for_each(|turn| join(turn, &body.metadata, inputs)),
        }
    }

    fn replay_answer(&mut self, answer: Arc<Body>, open: &mut Open) {
        let Some(turn) = &mut open.turn else { return };
        turn.heard(&answer.content);
        let mut remarks = HashMap::new();
        for wanted in answer.content.iter().filter_map(Wanted::read) {
            let verdict = wanted.judge(&mut turn.guard, self.settings.loop_guard);
            if let Verdict::Remark(remark) = verdict {
                remarks.insert(wanted.call.call_id, remark);
            }
        }
        if answer
            .content
            .iter()
            .any(|part| Wanted::read(part).is_some())
        {
            open.calls = Some(Calls {
                answer,
                started: HashMap::new(),
                ended: HashMap::new(),
                remarks,
            });
        }
    }

    fn resume(&mut self, open: Open, memory: &Memory, moment: &mut Moment) {
        if let OpenTurn::Refused(unstorable) = &memory.open_turn {
            return self.go_on_without(open, unstorable, memory, moment);
        }
        let Some(mut turn) = open.turn else {
            return match open.calls {
                Some(calls) => self.answer_rewound(&calls, moment),
                None => self.settle_down(moment),
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
            OpenTurn::Resume if !was_rewound => self.take_up(turn, open.calls, moment),
            OpenTurn::Resume | OpenTurn::Close => {
                turn.inputs.retain(|input| is_open(&input.id));
                self.shut(&turn, open.calls, Ending::Aborted, moment);
            }
            OpenTurn::Lost => {
                let reason = "the node that ran this turn is gone".to_owned();
                let for_agents = reason.clone();
                self.shut(
                    &turn,
                    open.calls,
                    Ending::Failed {
                        reason,
                        for_agents,
                        code: "node_lost",
                        retryable: true,
                    },
                    moment,
                );
            }
            OpenTurn::Refused(unstorable) => {
                self.shut(&turn, open.calls, unstorable.ending(), moment)
            }
        }
    }

    /// Continues after the store refused a save. A turn that is open in the log ends. Inputs that
    /// were about to open a turn or join one get a turn each from now on. A single input must be
    /// the one that cannot be stored, and is refused.
    fn go_on_without(
        &mut self,
        open: Open,
        unstorable: &Unstorable,
        memory: &Memory,
        moment: &mut Moment,
    ) {
        if let Some(mut turn) = open.turn {
            turn.inputs
                .retain(|input| memory.inputs.iter().any(|row| row.input.id == input.id));
            self.inbox.suspect(&unstorable.inputs);
            return self.shut(&turn, open.calls, unstorable.ending(), moment);
        }
        match unstorable.inputs.as_slice() {
            [input] => match self.inbox.take(input) {
                Some(arrival) => self.turn_away(&arrival, unstorable, moment),
                None => self.settle_down(moment),
            },
            several => {
                self.inbox.suspect(several);
                self.settle_down(moment);
            }
        }
    }

    /// Ends an input in a turn of its own, without any of the input's content.
    fn turn_away(&mut self, arrival: &NewInput, unstorable: &Unstorable, moment: &mut Moment) {
        self.counters.turn += 1;
        self.counters.request = 0;
        let (index, input) = (self.counters.turn, speech::turn_input(arrival));
        let mut rows = Rows::at(self.place(moment.now));
        rows.event(&Event::TurnStart(TurnStart {
            index,
            inputs: vec![input.clone()],
        }));
        rows.mark(&arrival.id, Change::Consumed { turn: index });
        moment.act(Effect::Turn { open: true });
        self.end_turn(
            &Turn::new(vec![input], moment.now),
            rows,
            unstorable.ending(),
            moment,
        );
    }

    /// Continues the turn, with the calls that have no result yet or else with the next request.
    fn take_up(&mut self, mut turn: Box<Turn>, calls: Option<Calls>, moment: &mut Moment) {
        moment.act(Effect::Turn { open: true });
        self.set_deadline(&mut turn, moment);
        let mut rows = Rows::at(self.place(moment.now));
        let Some(calls) = calls else {
            return self.go_on(turn, rows, moment);
        };
        let mut round = Round::new(calls.is_cut());
        let mut runs = Vec::new();
        for wanted in calls.answer.content.iter().filter_map(Wanted::read) {
            let id = wanted.call.call_id.clone();
            let remark = calls.remarks.get(&id).cloned();
            match (calls.ended.get(&id), calls.started.get(&id)) {
                (Some((text, error)), _) => round.settle(wanted.call, text.clone(), *error),
                (None, Some(effect)) if effect.may_run_again() => {
                    runs.push(self.run_again(&mut round, wanted.call, wanted.args, remark, moment));
                }
                (None, Some(_)) => interrupted(&mut round, wanted, &mut rows),
                (None, None) => {
                    runs.push(self.start(&mut round, wanted, remark, &mut rows, moment))
                }
            }
        }
        self.run(turn, round, runs, rows, moment);
    }

    /// Answers the calls of a turn that has ended but whose results were rewound, because providers
    /// refuse a history with open calls.
    fn answer_rewound(&mut self, calls: &Calls, moment: &mut Moment) {
        let mut round = Round::new(false);
        for wanted in calls.answer.content.iter().filter_map(Wanted::read) {
            let (text, error) = calls
                .ended
                .get(&wanted.call.call_id)
                .cloned()
                .unwrap_or_else(|| (INTERRUPTED.into(), true));
            round.settle(wanted.call, text, error);
        }
        let mut rows = Rows::at(self.place(moment.now));
        rows.message(round.results());
        self.save_close(rows, moment);
    }

    /// Ends a turn that does not continue, and gives every open call a result.
    fn shut(&mut self, turn: &Turn, calls: Option<Calls>, ending: Ending, moment: &mut Moment) {
        let mut rows = Rows::at(self.place(moment.now));
        if let Some(calls) = calls {
            let mut round = Round::new(false);
            for wanted in calls.answer.content.iter().filter_map(Wanted::read) {
                match calls.ended.get(&wanted.call.call_id) {
                    Some((text, error)) => round.settle(wanted.call, text.clone(), *error),
                    None => interrupted(&mut round, wanted, &mut rows),
                }
            }
            rows.message(round.results());
        }
        self.end_turn(turn, rows, ending, moment);
    }
}

impl Calls {
    fn is_cut(&self) -> bool {
        self.answer.metadata.stop.is_some_and(is_cut)
    }
}

fn interrupted(round: &mut Round, wanted: Wanted<'_>, rows: &mut Rows) {
    rows.event(&Event::ToolEnd(wanted.call.end(
        INTERRUPTED.into(),
        true,
        0,
    )));
    round.settle(wanted.call, INTERRUPTED.into(), true);
}

/// Adds the inputs of a message that joined the turn after it began.
fn join(turn: &mut Turn, metadata: &Metadata, inputs: &[StoredInput]) {
    for id in &metadata.inputs {
        if turn.inputs.iter().any(|input| input.id == *id) {
            continue;
        }
        let known = inputs.iter().find(|row| row.input.id == *id);
        let unknown = || TurnInput {
            id: id.clone(),
            kind: InputKind::Prompt,
            from: None,
        };
        turn.inputs
            .push(known.map_or_else(unknown, |row| speech::turn_input(&row.input)));
    }
}
