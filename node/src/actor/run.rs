//! Runs one agent on this node. The actor handles one event after another until the agent is
//! parked or stopped, or cannot continue on this node. Its end decides what happens to its lease.

mod change;
mod perform;

use std::sync::{Arc, atomic::Ordering};

use perform::Performed;
use planck_common::{
    SessionId, Timestamp,
    command::{AgentInfo, AgentState},
    event::Event,
    wait::{WaitAnswer, WaitDecision},
};
use planck_providers::Clients;
use planck_store::{SessionRule, SessionStore, StoreError};
use planck_toolbox::{Runner, Toolbox};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    ActorContext, ActorIdentity,
    host::{ActorMessage, ActorPause, AnswerSender, DeliveryOutcome, StopAck, TaskEnd},
    model_call::Encoding,
    saving::{ActorLost, Saves},
    spans::Spans,
    work::ActorWork,
};
use crate::agent::{
    Agent, Command, Effect, Input, NewInput, StoredInput,
    permission::{self, Match},
};

pub(super) use change::ToolsDiffer;

pub(super) struct Actor {
    pub(super) context: Arc<ActorContext>,
    pub(super) identity: ActorIdentity,
    pub(super) clients: Clients,
    pub(super) agent: Agent,
    pub(super) toolbox: Arc<Toolbox>,
    pub(super) runner: Runner,
    pub(super) encoding: Encoding,
    pub(super) saves: Saves,
    pub(super) work: ActorWork,
    pub(super) spans: Spans,
    pub(super) acks: PendingAcks,
    /// Whether the waits of the agent are to be checked before the next event.
    pub(super) checks_waits: bool,
}

/// Requests to abort turns or to stop the agent, and the callers that wait for their completion.
pub(super) struct PendingAcks {
    /// Cancelled when the agent must end on this node without writing anything.
    pub(super) dropped: CancellationToken,
    /// The callers that wait for the abort of a turn.
    aborting: Vec<AnswerSender<AgentState>>,
    /// The requested stop of the agent, with the callers that wait for it.
    stopping: Option<PendingStop>,
}

impl PendingAcks {
    pub(super) fn new(dropped: CancellationToken) -> Self {
        Self {
            dropped,
            aborting: Vec::new(),
            stopping: None,
        }
    }
}

#[derive(Default)]
struct PendingStop {
    for_good: bool,
    done: Vec<AnswerSender<AgentState>>,
}

/// Why the actor's task ended without an error.
pub(super) enum Leave {
    /// The agent was idle for so long that it is unloaded, or it only waits for answers from
    /// outside.
    Parked,
    Stopped,
}

/// The next event for the actor.
enum ActorEvent {
    Saved(Result<Input, ActorLost>),
    Answer(Input),
    Message(Option<Box<ActorMessage>>),
    /// The agent was idle, or only waited, for `park_after`.
    Quiet,
    Dropped,
}

impl Actor {
    pub(super) async fn run(
        &mut self,
        resumed: Vec<Effect>,
        opening: Vec<Event>,
        mailbox: &mut mpsc::Receiver<Box<ActorMessage>>,
    ) -> Result<Leave, ActorLost> {
        let record = |event| {
            self.agent
                .step(Input::Command(Command::Record(event)), Timestamp::now())
        };
        let mut begun: Vec<Effect> = opening.into_iter().flat_map(record).collect();
        begun.extend(resumed);
        self.checks_waits = !self.agent.waits().is_empty();
        let mut performed = self.perform(begun).await?;
        while performed == Performed::GoOn {
            if std::mem::take(&mut self.checks_waits) {
                performed = Box::pin(self.check_waits()).await?;
                continue;
            }
            performed = match self.next(mailbox).await {
                ActorEvent::Saved(saved) => self.step(saved?).await?,
                ActorEvent::Answer(input) => self.step(input).await?,
                ActorEvent::Message(Some(message)) => Box::pin(self.read(*message)).await?,
                ActorEvent::Message(None) | ActorEvent::Quiet => return Ok(Leave::Parked),
                ActorEvent::Dropped => return Err(ActorLost::Dropped),
            };
            self.tell_aborted();
        }
        Ok(Leave::Stopped)
    }

    async fn next(&mut self, mailbox: &mut mpsc::Receiver<Box<ActorMessage>>) -> ActorEvent {
        let rests = self.agent.is_idle() || self.agent.is_waiting();
        let idle = rests && self.work.is_empty() && self.saves.is_idle();
        let bus = Arc::clone(&self.context.bus);
        let event = async {
            tokio::select! {
                biased;
                saved = self.saves.next(&*bus) => ActorEvent::Saved(saved),
                // An abort must not wait until a fast model has sent its whole answer.
                message = mailbox.recv() => ActorEvent::Message(message),
                input = self.work.next() => ActorEvent::Answer(input),
                () = tokio::time::sleep(self.context.park_after), if idle => ActorEvent::Quiet,
            }
        };
        // The mailbox of a dropped agent closes at about the same time, and must not park the agent.
        tokio::select! {
            biased;
            () = self.acks.dropped.cancelled() => ActorEvent::Dropped,
            event = event => event,
        }
    }

    async fn read(&mut self, message: ActorMessage) -> Result<Performed, ActorLost> {
        match message {
            ActorMessage::Deliver {
                input,
                outcome,
                cause,
            } => {
                self.spans.cause = Some(cause);
                let performed = self.deliver(input, outcome).await;
                self.spans.cause = None;
                performed
            }
            ActorMessage::Withdrawn(input) => self.step(Input::Withdrawn(input)).await,
            ActorMessage::Look(is_due) => {
                is_due.store(false, Ordering::SeqCst);
                self.look().await
            }
            ActorMessage::Command { command, done } => self.command(command, done).await,
            ActorMessage::Change { change, done } => {
                let changed = self.change(change).await;
                let (performed, changed) = match changed {
                    Ok(changed) => (
                        self.step(Input::Command(changed.command)).await?,
                        Ok(changed.now),
                    ),
                    Err(refusal) => (Performed::GoOn, Err(refusal)),
                };
                let _ = done.send(changed);
                Ok(performed)
            }
            ActorMessage::ToolsMayDiffer => match self.refit() {
                Some(command) => self.step(Input::Command(command)).await,
                None => Ok(Performed::GoOn),
            },
            ActorMessage::Leave(answer) => {
                let may_leave = !self.work.is_bound() && self.saves.is_idle();
                if answer.send(may_leave).is_ok() && may_leave {
                    // The agent must not begin work now, because it is about to be dropped.
                    self.acks.dropped.cancelled().await;
                    return Err(ActorLost::Dropped);
                }
                Ok(Performed::GoOn)
            }
            ActorMessage::Pause(pause) => self.pause(pause).await,
            ActorMessage::Info(answer) => {
                let _ = answer.send(self.info());
                Ok(Performed::GoOn)
            }
            ActorMessage::Spec(answer) => {
                let _ = answer.send(self.agent.spec().clone());
                Ok(Performed::GoOn)
            }
            ActorMessage::Snapshot(answer) => {
                let _ = answer.send((self.info(), self.agent.snapshot(Timestamp::now())));
                Ok(Performed::GoOn)
            }
        }
    }

    /// Pauses the agent once all its saves are committed. The effects that follow from these saves
    /// are performed after the pause, unless the agent is dropped during the pause.
    async fn pause(&mut self, pause: ActorPause) -> Result<Performed, ActorLost> {
        let decided = self.settle_saves().await?;
        let _ = pause.paused.send(());
        tokio::select! {
            biased;
            () = self.acks.dropped.cancelled() => Err(ActorLost::Dropped),
            _ = pause.released => self.perform(decided).await,
        }
    }

    /// Delivers an input to the agent. Without a permit the input stays in the inbox, and the sweep
    /// that begins when the permit returns makes the agent read its inbox.
    async fn deliver(
        &mut self,
        input: NewInput,
        outcome: AnswerSender<DeliveryOutcome>,
    ) -> Result<Performed, ActorLost> {
        if !self.context.permit.is_given() {
            let _ = outcome.send(DeliveryOutcome::Taken);
            return Ok(Performed::GoOn);
        }
        let id = input.id.clone();
        let effects = self.decide(Input::Delivered(input));
        let refused = effects
            .iter()
            .any(|effect| matches!(effect, Effect::Save(save) if save.ends(&id)));
        let performed = self.perform(effects).await?;
        let _ = outcome.send(if refused {
            DeliveryOutcome::Busy
        } else {
            DeliveryOutcome::Taken
        });
        Ok(performed)
    }

    /// Passes the unread inputs of the inbox to the agent, which ignores inputs that it already
    /// has, and the answers to its waits. Does nothing without a permit.
    async fn look(&mut self) -> Result<Performed, ActorLost> {
        if !self.context.permit.is_given() {
            return Ok(Performed::GoOn);
        }
        let ActorIdentity { session, agent, .. } = &self.identity;
        let rows = match self.context.store.open_inputs(&session.id, agent).await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::warn!(%agent, %error, "cannot read the inbox; the next sweep requests another check");
                return Ok(Performed::GoOn);
            }
        };
        for row in rows.into_iter().filter(StoredInput::is_unread) {
            if self.step(Input::Delivered(row.input)).await? == Performed::Stopped {
                return Ok(Performed::Stopped);
            }
        }
        if self.agent.waits().is_empty() {
            return Ok(Performed::GoOn);
        }
        self.read_answers().await
    }

    async fn command(
        &mut self,
        command: Command,
        done: AnswerSender<AgentState>,
    ) -> Result<Performed, ActorLost> {
        match &command {
            Command::Stop { for_good, .. } => {
                let stopping = self.acks.stopping.get_or_insert_default();
                stopping.for_good |= for_good;
                stopping.done.push(done);
                self.step(Input::Command(command)).await
            }
            Command::Abort { .. } => {
                self.acks.aborting.push(done);
                self.step(Input::Command(command)).await
            }
            Command::Nudge
            | Command::Checkpoint { .. }
            | Command::Tools { .. }
            | Command::Model { .. }
            | Command::Record(_) => {
                let performed = self.step(Input::Command(command)).await?;
                let _ = done.send(self.agent.state());
                Ok(performed)
            }
        }
    }

    /// Answers the callers that wait for an abort if the abort is complete. An abort is complete
    /// when all calls of the turn, and the processes that they started, have ended.
    fn tell_aborted(&mut self) {
        if !self.agent.is_winding_down() {
            let state = self.agent.state();
            for done in self.acks.aborting.drain(..) {
                let _ = done.send(state);
            }
        }
    }

    fn info(&self) -> AgentInfo {
        let (spec, identity) = (self.agent.spec(), &self.identity);
        AgentInfo {
            id: identity.agent.clone(),
            name: spec.name.clone(),
            r#type: spec.r#type.clone(),
            role: spec.role,
            session_id: identity.session.id.clone(),
            team_id: identity.session.team.clone(),
            node_id: Some(self.context.node.clone()),
            epoch: identity.epoch,
            state: self.agent.state(),
            turn: self.agent.turn(),
            model: spec.model.clone(),
            tools: names(&self.toolbox),
            skills: spec.skills.clone(),
            usage: self.agent.totals(),
            context_tokens: self.agent.context_tokens(),
            context_window: self.agent.card().context_window,
            queued: self.agent.queued(),
            permissions: spec.permissions.clone(),
            system_prompt: AgentInfo::shown_prompt(&spec.system_prompt),
        }
    }
}

pub(super) fn names(toolbox: &Toolbox) -> Vec<String> {
    toolbox.names().map(Into::into).collect()
}

impl Actor {
    /// Ends the actor's task once all of its work has ended, including the processes of tools. The
    /// agent's next task on this node must not begin beside them. Releases the agent's lease if the
    /// agent was stopped, or is given up because the store refused its data again.
    pub(super) async fn end(
        mut self: Box<Self>,
        ended: Result<Leave, ActorLost>,
        was_refused: bool,
        mut mailbox: mpsc::Receiver<Box<ActorMessage>>,
    ) -> TaskEnd {
        self.work.wind_up().await;
        match ended {
            Ok(Leave::Parked) => TaskEnd::Parked {
                unread: unread(&mut mailbox),
                had: self.had(),
            },
            Ok(Leave::Stopped) => TaskEnd::Gone(self.release().await),
            Err(ActorLost::Dropped) => TaskEnd::Gone(StopAck::to_nobody()),
            // A lost lease is normal: another node took the agent over, rewound or stopped it.
            Err(ActorLost::StaleEpoch) => {
                let ActorIdentity { agent, epoch, .. } = &self.identity;
                tracing::info!(%agent, epoch, "another node holds the agent's lease");
                TaskEnd::Gone(StopAck::to_nobody())
            }
            Err(ActorLost::Unstorable(unstorable)) => {
                // If the store refused data of this agent before, and this save consumed no input
                // that could be refused, loading the agent again could fail in the same way
                // forever.
                match was_refused && unstorable.inputs.is_empty() {
                    true => TaskEnd::Gone(self.give_up(&unstorable.why).await),
                    false => {
                        let why = &*unstorable.why;
                        tracing::warn!(agent = %self.identity.agent, why, "ended a turn: the store refuses its data");
                        TaskEnd::Refused {
                            unread: unread(&mut mailbox),
                            unstorable,
                        }
                    }
                }
            }
            Err(lost @ ActorLost::Unsaved(_)) => {
                let ActorIdentity { agent, epoch, .. } = &self.identity;
                tracing::warn!(%agent, epoch, %lost, "dropped the agent: it cannot continue on this node");
                TaskEnd::Gone(StopAck::to_nobody())
            }
        }
    }

    /// Returns the agent's tools if they may change before the agent is loaded again, otherwise
    /// `None`.
    pub(super) fn had(&self) -> Option<Arc<Toolbox>> {
        self.context
            .tools
            .may_change(self.agent.spec())
            .then(|| Arc::clone(&self.toolbox))
    }

    /// Stops the agent permanently, because the store would refuse its data again. No row about the
    /// end is written to the agent's log. The agent's inputs get the outcome `stopped`, and the
    /// agents that wait for an answer are notified.
    async fn give_up(&mut self, why: &str) -> StopAck {
        let ActorIdentity { session, agent, .. } = &self.identity;
        tracing::error!(%agent, why, "stopped the agent: the store refused its data again after its turn was ended");
        let waiting_inputs = self
            .context
            .store
            .open_inputs(&session.id, agent)
            .await
            .unwrap_or_default();
        let ack = self.release().await;
        let waiting = waiting_inputs
            .into_iter()
            .map(|row| row.input)
            .map(|input| (input.id, input.sender.map(|sender| sender.id)));
        self.context
            .notifier
            .settled(&self.identity, waiting.collect());
        self.context.notifier.gave_up(&self.identity.session.id);
        ack
    }

    async fn release(&mut self) -> StopAck {
        let stopping = self.acks.stopping.take();
        let for_good = stopping.as_ref().is_none_or(|stopping| stopping.for_good);
        if let Err(error) = self.saves.release(for_good).await {
            let agent = &self.identity.agent;
            tracing::warn!(%agent, %error, "cannot release the lease; the next sweep releases it");
        }
        let state = if for_good {
            AgentState::Stopped
        } else {
            AgentState::Idle
        };
        StopAck {
            done: stopping.map(|stopping| stopping.done).unwrap_or_default(),
            state,
        }
    }
}

/// Closes the mailbox, and returns the messages that the actor did not read.
fn unread(mailbox: &mut mpsc::Receiver<Box<ActorMessage>>) -> Vec<ActorMessage> {
    mailbox.close();
    std::iter::from_fn(|| mailbox.try_recv().ok())
        .map(|message| *message)
        .collect()
}

impl Actor {
    /// Answers the approvals that a rule of the session covers, and passes all answers to the agent.
    /// Only a person can answer an approval whose rule could not be read now.
    async fn check_waits(&mut self) -> Result<Performed, ActorLost> {
        let session = &self.identity.session.id;
        let applied = apply_session_rules(&self.agent, &*self.context.store, session).await;
        if let Err(error) = applied {
            let agent = &self.identity.agent;
            tracing::warn!(%agent, %error, "cannot read the rules of the session; its open waits stay open");
        }
        self.read_answers().await
    }

    /// Passes the answers that the agent has not read yet to the agent. If the store cannot be read
    /// now, the next sweep has the agent read them.
    async fn read_answers(&mut self) -> Result<Performed, ActorLost> {
        let (session, agent) = (&self.identity.session.id, &self.identity.agent);
        let answers = match self.context.store.answers(session, agent).await {
            Ok(answers) => answers,
            Err(error) => {
                tracing::warn!(%agent, %error, "cannot read the answers to waits; the next sweep requests another check");
                return Ok(Performed::GoOn);
            }
        };
        for (wait, answer) in answers {
            if self.step(Input::Decided { wait, answer }).await? == Performed::Stopped {
                return Ok(Performed::Stopped);
            }
        }
        Ok(Performed::GoOn)
    }
}

/// Allows the calls that a rule of the session covers.
async fn apply_session_rules(
    agent: &Agent,
    store: &dyn SessionStore,
    session: &SessionId,
) -> Result<(), StoreError> {
    let approvals = agent.approvals();
    if approvals.is_empty() {
        return Ok(());
    }
    let rules = store.session_rules(session).await?;
    for (wait, digest, call) in approvals {
        let allows =
            |rule: &&SessionRule| matches!(permission::matches(&rule.rule, &call), Match::Yes);
        let Some(rule) = rules.iter().find(allows) else {
            continue;
        };
        let answer = WaitAnswer {
            decision: WaitDecision::Allow,
            args: None,
            value: None,
            reason: Some(format!(
                "the answer to {} allows calls like this one",
                rule.wait
            )),
            scope: None,
            by: rule.by.clone(),
            at: Timestamp::now(),
        };
        store.answer(session, &wait, &digest, &answer).await?;
    }
    Ok(())
}
