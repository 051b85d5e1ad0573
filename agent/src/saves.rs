//! Saves: rows that are committed together, and what follows their commit.

use std::{collections::VecDeque, sync::Arc};

use planck_common::{
    AgentId, InputId, Seq,
    command::AgentState,
    envelope::EventPlace,
    event::{Event, EventKind, OutputDue, json},
    message::MessageBody,
    usage::Usage,
};

use super::{
    Agent, Effect, Entry, InputOutcome, Mark, NewInput, Save, StepEffects, Ticket, effect::Change,
    input::Saved,
};
use crate::compact;

/// The rows and marks of one save, with the messages among them.
#[derive(Debug)]
pub(super) struct Rows {
    place: EventPlace,
    entries: Vec<Entry>,
    /// Messages, each with the index of its entry.
    messages: Vec<(usize, Arc<MessageBody>)>,
    marks: Vec<Mark>,
    puts: Vec<NewInput>,
    usage: Usage,
}

/// A save that is not committed yet.
#[derive(Debug)]
pub(super) struct PendingSave {
    ticket: Ticket,
    messages: Vec<(usize, Arc<MessageBody>)>,
    on_commit: OnCommit,
}

/// The work that follows the commit of a save.
#[derive(Debug)]
pub(super) enum OnCommit {
    /// The messages, which are already in the model's context, get the numbers of their rows as ids.
    Settle,
    /// The agent has no turn any more, and decides what to do next.
    Close,
    /// A turn with these inputs is open, and answers in this shape.
    Open(Vec<NewInput>, Option<OutputDue>),
    /// These inputs are in the running turn.
    Join(Vec<NewInput>),
    /// This input was refused.
    Refuse(NewInput),
    /// A summary replaces the messages that it covers.
    Summarise { tokens: Option<u64> },
    /// These unread inputs have their outcome, and the agent has ended.
    Stop(Vec<NewInput>),
}

impl Rows {
    pub(super) fn at(place: EventPlace) -> Self {
        Self {
            place,
            entries: Vec::new(),
            messages: Vec::new(),
            marks: Vec::new(),
            puts: Vec::new(),
            usage: Usage::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a durable event. Ignores live events and messages.
    pub(super) fn event(&mut self, event: &Event) {
        let kind = event.kind();
        if kind.is_durable() && kind != EventKind::Message {
            self.entries.push(Entry {
                kind,
                place: self.place,
                body: event.data(),
            });
        }
    }

    pub(super) fn message(&mut self, body: MessageBody) -> Arc<MessageBody> {
        let text = json(&body);
        let body = Arc::new(body);
        self.messages.push((self.entries.len(), body.clone()));
        self.entries.push(Entry {
            kind: EventKind::Message,
            place: self.place,
            body: text,
        });
        body
    }

    pub(super) fn messages(&mut self, bodies: Vec<MessageBody>) {
        for body in bodies {
            self.message(body);
        }
    }

    /// Returns whether the rows open a wait.
    pub(super) fn opens_wait(&self) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.kind == EventKind::WaitOpened)
    }

    /// Returns the estimated number of tokens in the messages.
    pub(super) fn tokens(&self) -> u64 {
        self.messages
            .iter()
            .map(|(_, body)| compact::tokens_of(body))
            .sum()
    }

    pub(super) fn mark(&mut self, input: &InputId, change: Change) {
        self.marks.push(Mark {
            input: input.clone(),
            change,
        });
    }

    pub(super) fn end(&mut self, input: &InputId, outcome: InputOutcome, answer: Option<String>) {
        self.mark(input, Change::Ended { outcome, answer });
    }

    pub(super) fn put(&mut self, put: NewInput) {
        self.puts.push(put);
    }

    pub(super) fn consume(&mut self, usage: Usage) {
        self.usage += usage;
    }

    fn into_save(self, ticket: Ticket, state: AgentState, beside: bool) -> Save {
        let Self {
            entries,
            marks,
            puts,
            usage,
            ..
        } = self;
        Save {
            ticket,
            entries,
            marks,
            puts,
            usage,
            state,
            beside,
        }
    }
}

impl Agent {
    /// Saves rows, if there are any, and adds their messages to the context at once. The following
    /// effects wait for the commit.
    pub(super) fn save(&mut self, rows: Rows, state: AgentState, step: &mut StepEffects) {
        if !rows.is_empty() {
            self.write(rows, state, false, OnCommit::Settle, step);
        }
    }

    /// Saves rows like [`Self::save`], but the following effects do not wait for the commit.
    pub(super) fn save_beside(&mut self, rows: Rows, state: AgentState, step: &mut StepEffects) {
        if !rows.is_empty() {
            self.write(rows, state, true, OnCommit::Settle, step);
        }
    }

    /// Saves rows after which the agent is idle. After the commit the agent decides what to do
    /// next.
    pub(super) fn save_close(&mut self, rows: Rows, step: &mut StepEffects) {
        self.write(rows, AgentState::Idle, false, OnCommit::Close, step);
    }

    fn write(
        &mut self,
        rows: Rows,
        state: AgentState,
        beside: bool,
        on_commit: OnCommit,
        step: &mut StepEffects,
    ) {
        for (_, body) in &rows.messages {
            if self.transcript.push(body.clone()) {
                self.list_tools();
            }
        }
        self.submit(rows, state, beside, on_commit, step);
    }

    /// Saves rows that the store may refuse because their inputs are no longer in the inbox, or
    /// whose messages are added to the context only after the commit. The save must be the last effect
    /// of a step.
    pub(super) fn save_then(
        &mut self,
        rows: Rows,
        state: AgentState,
        on_commit: OnCommit,
        step: &mut StepEffects,
    ) {
        self.submit(rows, state, false, on_commit, step);
    }

    fn submit(
        &mut self,
        mut rows: Rows,
        state: AgentState,
        beside: bool,
        on_commit: OnCommit,
        step: &mut StepEffects,
    ) {
        let ticket = self.counters.ticket();
        let messages = std::mem::take(&mut rows.messages);
        self.saves.push_back(PendingSave {
            ticket,
            messages,
            on_commit,
        });
        step.act(Effect::Save(rows.into_save(ticket, state, beside)));
    }

    pub(super) fn saved(&mut self, saved: Saved, step: &mut StepEffects) {
        let Some(PendingSave {
            messages,
            on_commit,
            ..
        }) = take(&mut self.saves, saved.save)
        else {
            return;
        };
        self.totals.session = saved.session;
        let ids: Vec<Seq> = messages
            .iter()
            .filter_map(|(at, _)| saved.seqs.get(*at).copied())
            .collect();
        match on_commit {
            OnCommit::Settle => self.transcript.settle(&ids),
            OnCommit::Close => {
                self.transcript.settle(&ids);
                self.settle_down(step);
            }
            OnCommit::Open(inputs, output) => self.opened(inputs, output, messages, &ids, step),
            OnCommit::Join(inputs) => self.joined(inputs, messages, &ids, step),
            OnCommit::Refuse(input) => step.settled(waiting_for(&[input])),
            OnCommit::Summarise { tokens } => {
                let message = messages
                    .into_iter()
                    .next()
                    .map(|(_, body)| body)
                    .zip(ids.first().copied());
                self.summarised(message, tokens, step);
            }
            OnCommit::Stop(inputs) => self.stopped(&inputs, step),
        }
    }

    pub(super) fn gone(&mut self, save: Ticket, gone: &[InputId], step: &mut StepEffects) {
        let Some(PendingSave { on_commit, .. }) = take(&mut self.saves, save) else {
            return;
        };
        match on_commit {
            OnCommit::Open(inputs, _) => {
                self.inbox.put_back(inputs, gone);
                self.settle_down(step);
            }
            OnCommit::Join(inputs) => {
                self.inbox.put_back(inputs, gone);
                self.rejoin(step);
            }
            OnCommit::Stop(inputs) => {
                self.inbox.put_back(inputs, gone);
                self.end(step);
            }
            OnCommit::Settle
            | OnCommit::Close
            | OnCommit::Refuse(_)
            | OnCommit::Summarise { .. } => {}
        }
    }

    /// Adds committed messages of inputs, which name no tools, to the context.
    pub(super) fn show(&mut self, messages: Vec<(usize, Arc<MessageBody>)>, ids: &[Seq]) {
        for ((_, body), id) in messages.into_iter().zip(ids) {
            self.transcript.replay(*id, body);
        }
    }
}

fn take(saves: &mut VecDeque<PendingSave>, save: Ticket) -> Option<PendingSave> {
    let at = saves.iter().position(|pending| pending.ticket == save)?;
    saves.remove(at)
}

/// Returns the ids of inputs, each with the agent that sent the input and may wait for its outcome.
pub(super) fn waiting_for(inputs: &[NewInput]) -> Vec<(InputId, Option<AgentId>)> {
    inputs
        .iter()
        .map(|input| {
            (
                input.id.clone(),
                input.sender.as_ref().map(|sender| sender.id.clone()),
            )
        })
        .collect()
}
