//! Performs the effects that an agent decides on, in their order: the save, then events, then work.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use bytes::Bytes;
use planck_common::{
    Timestamp,
    envelope::EventPlace,
    event::{self, Event, EventKind},
    permission::Permissions,
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::Actor;
use crate::{
    actor::{
        model_call::PreparedCall,
        saving::ActorLost,
        spans::record_outcome,
        work::{Answers, FinishedWork, WorkKind},
    },
    agent::{Command, Effect, Input, Save, Ticket, effect::ToolRun, input::CompactionResult},
    bus::Published,
    compact,
    model::{Failure, FailureKind},
};
use planck_cluster::permit::Permit;
use planck_telemetry::{content, metrics};
use planck_toolbox::{CallProgress, Invocation, SecondJudgement};

/// The result of performing effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::actor) enum Performed {
    GoOn,
    Stopped,
}

impl Actor {
    /// Passes an input to the agent and performs the resulting effects.
    pub(in crate::actor) async fn step(&mut self, input: Input) -> Result<Performed, ActorLost> {
        let effects = self.decide(input);
        self.perform(effects).await
    }

    /// Passes an input to the agent and returns the resulting effects.
    pub(in crate::actor) fn decide(&mut self, input: Input) -> Vec<Effect> {
        let effects = self.agent.step(input, Timestamp::now());
        self.note_queue(self.agent.queued());
        effects
    }

    pub(in crate::actor) async fn perform(
        &mut self,
        effects: Vec<Effect>,
    ) -> Result<Performed, ActorLost> {
        let mut todo = VecDeque::from(effects);
        while let Some(effect) = todo.pop_front() {
            match effect {
                Effect::Save(save) => {
                    // If a save follows that is awaited, both are awaited together.
                    let beside = save.beside
                        || matches!(todo.front(), Some(Effect::Save(next)) if !next.beside);
                    todo.extend(Box::pin(self.save(save, beside)).await?);
                }
                Effect::Publish { place, event } => {
                    // A model may answer before the results that it read are committed. Readers get
                    // the events of an agent in order.
                    todo.extend(self.settle_saves().await?);
                    self.publish(event.kind(), place, &event.data())
                }
                Effect::CallModel { ticket } => self.call_model(ticket),
                Effect::RecordSpec => self.record_spec().await,
                Effect::CheckWaits => self.checks_waits = true,
                Effect::RunTool(run) => self.run_tool(run),
                Effect::Compact { ticket } => self.compact(ticket),
                Effect::StartTimer { ticket, delay } => self.wait(ticket, delay),
                Effect::CancelModel { ticket }
                | Effect::CancelTool { ticket }
                | Effect::CancelCompact { ticket }
                | Effect::CancelTimer { ticket } => self.work.cancel(ticket),
                Effect::Settled { inputs } => self.context.notifier.settled(&self.identity, inputs),
                Effect::Wake { agents } => self.context.notifier.wake(&self.identity, agents),
                Effect::Turn { open } => self.turn(open),
                Effect::Stopped => return Ok(Performed::Stopped),
            }
        }
        Ok(Performed::GoOn)
    }

    /// Submits a save. Unless `beside` is set, waits for the commit and returns the effects that
    /// the agent decides on after the commit.
    async fn save(&mut self, save: Save, beside: bool) -> Result<Vec<Effect>, ActorLost> {
        self.spans.saved(&save.entries);
        self.saves.begin(save).await;
        if beside {
            Ok(Vec::new())
        } else {
            self.settle_saves().await
        }
    }

    /// Waits until all submitted saves are committed. Returns the effects that the agent decides on
    /// after the commits.
    pub(in crate::actor) async fn settle_saves(&mut self) -> Result<Vec<Effect>, ActorLost> {
        let mut decided = Vec::new();
        while !self.saves.is_idle() {
            let settled = tokio::select! {
                biased;
                settled = self.saves.next(&*self.context.bus) => settled?,
                () = self.acks.dropped.cancelled() => return Err(ActorLost::Dropped),
            };
            decided.extend(self.decide(settled));
        }
        Ok(decided)
    }

    fn note_queue(&mut self, now: usize) {
        let before = std::mem::replace(&mut self.spans.queued, now);
        if now != before {
            self.context.activity.queue(before, now);
        }
    }

    fn publish(&self, kind: EventKind, place: EventPlace, data: &str) {
        let writer = &self.saves.writer;
        self.context.bus.publish_event(Published {
            session_id: writer.session_id.clone(),
            agent_id: writer.agent_id.clone(),
            seq: None,
            payload: Bytes::from(writer.live(kind, place, data)),
        });
    }

    fn call_model(&mut self, ticket: Ticket) {
        let cancel = CancellationToken::new();
        match self.context.models.provider(&self.agent.spec().model) {
            Ok(provider) => {
                let request = self.encoding.request(&self.agent, &provider);
                let model = &self.agent.spec().model;
                let span = self.spans.model_call(model, provider.server());
                content::request(
                    &span,
                    &self.agent.spec().system_prompt,
                    self.agent.context().iter().map(|line| &*line.body),
                );
                let call = PreparedCall {
                    ticket,
                    provider,
                    clients: self.clients.clone(),
                    model: model.id.clone(),
                    request,
                    span,
                };
                let (pieces, start) = (self.work.answers(), self.start());
                self.work
                    .start(ticket, WorkKind::Model, cancel, async move {
                        let bound = start.of_model().await;
                        FinishedWork::of(call.run(pieces).await, bound)
                    });
            }
            Err(error) => {
                let failure = Failure::new(FailureKind::Auth, error.to_string());
                let answer = Input::Answered {
                    ticket,
                    chunks: Vec::new(),
                    result: Err(failure),
                    jitter: 0.0,
                };
                self.work
                    .start(ticket, WorkKind::Model, cancel, async move { answer });
            }
        }
    }

    fn start(&self) -> StartConditions {
        StartConditions {
            permit: self.context.permit.clone(),
            draining: self.context.permit.draining().clone(),
            tools_from: self.identity.tools_from,
            binding: self.work.binding(),
        }
    }

    fn run_tool(&mut self, run: ToolRun) {
        let ToolRun {
            ticket,
            call_id,
            name,
            args,
            is_repeat,
            answer,
            output,
        } = run;
        let (cancel, since) = (CancellationToken::new(), Instant::now());
        let progress = progress_of(ticket, self.work.answers());
        let session = &self.identity.session;
        let invocation = Invocation {
            session_id: session.id.clone(),
            team_id: session.team.clone(),
            agent_id: self.identity.agent.clone(),
            epoch: self.identity.epoch,
            call_id,
            is_repeat,
            args: args.into(),
            answer,
            dir: session.dir.clone(),
            second_judgement: self.second_judgement(&name),
            cancel: cancel.clone(),
            progress: std::sync::Arc::new(progress),
        };
        let (runner, toolbox, start) = (self.runner.clone(), self.toolbox.clone(), self.start());
        let is_harmless = |effect| effect != event::ToolEffect::Mutating;
        let may_be_repeated = output.is_some() || toolbox.effect(&name).is_some_and(is_harmless);
        let bound = start.binding.upgrade().filter(|_| !may_be_repeated);
        let span = self.spans.tool_call(&name, &invocation.call_id);
        content::arguments(&span, invocation.args.get());
        self.work
            .start(ticket, WorkKind::Tool, cancel.clone(), async move {
                cancel.run_until_cancelled(start.of_tool()).await;
                let run = async {
                    match output {
                        Some(schema) => runner.take_output(&name, &schema, invocation).await,
                        None => runner.run(&toolbox, &name, invocation).await,
                    }
                };
                let outcome = run.instrument(span.clone()).await;
                record_outcome(&span, &outcome);
                let elapsed = since.elapsed();
                let known = toolbox.has(&name).then_some(&*name);
                metrics::meters().tool_called(known, outcome.is_error(), elapsed);
                let done = Input::ToolDone {
                    ticket,
                    outcome,
                    elapsed,
                };
                FinishedWork::of(done, bound)
            });
    }

    fn second_judgement(&self, tool: &str) -> Option<Arc<SecondJudgement>> {
        let layers = &self.agent.spec().permissions;
        if layers.iter().all(Permissions::allow_everything) {
            return None;
        }
        Some(Arc::new(SecondJudgement {
            layers: layers.clone(),
            tool: tool.into(),
            effect: self.toolbox.effect(tool).unwrap_or_default(),
        }))
    }

    fn compact(&mut self, ticket: Ticket) {
        let cancel = CancellationToken::new();
        let Some(request) = self.agent.compaction() else {
            let result = CompactionResult::Skipped;
            self.work
                .start(ticket, WorkKind::Compaction, cancel, async move {
                    Input::Compacted { ticket, result }
                });
            return;
        };
        let model = self.agent.spec().model.clone();
        let (remote, answers) = (
            self.remote_compactor(request.context_window),
            self.work.answers(),
        );
        let local =
            move |models, clients, request| compact::summarise(models, clients, model, request);
        let (models, clients, start) = (
            self.context.models.clone(),
            self.clients.clone(),
            self.start(),
        );
        self.work
            .start(ticket, WorkKind::Compaction, cancel, async move {
                let bound = start.of_model().await;
                if let Some(remote) = remote {
                    match remote.run(&request).await {
                        Ok(result) => {
                            return FinishedWork::of(Input::Compacted { ticket, result }, bound);
                        }
                        Err(why) => warn(&answers, why).await,
                    }
                }
                FinishedWork::of(
                    Input::Compacted {
                        ticket,
                        result: local(models, clients, request).await,
                    },
                    bound,
                )
            });
    }

    fn remote_compactor(&self, context_window: u64) -> Option<compact::SummaryRequest> {
        let spec = self.agent.spec();
        Some(compact::SummaryRequest {
            sidecars: self.context.tools.sidecars.clone(),
            compactor: spec.compactor.clone()?,
            model: spec.model.id.clone(),
            agent: self.identity.agent.clone(),
            session: self.identity.session.id.clone(),
            threshold: self.context.settings.compaction.threshold(context_window),
        })
    }

    fn wait(&mut self, ticket: Ticket, delay: Duration) {
        self.work.start(
            ticket,
            WorkKind::Timer,
            CancellationToken::new(),
            async move {
                tokio::time::sleep(delay).await;
                Input::TimerEnded(ticket)
            },
        );
    }

    fn turn(&mut self, open: bool) {
        if open != self.spans.turn_is_open() {
            self.context.activity.turn(&self.identity.session.id, open);
            if open {
                self.spans
                    .open(&self.identity, &self.agent.spec().name, self.agent.totals());
            } else {
                self.spans.close(self.agent.totals());
            }
            self.context
                .bus
                .turn_open(&self.identity.session.id, &self.identity.agent, open);
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.spans.leave_open();
        self.turn(false);
        self.note_queue(0);
    }
}

/// Returns the function through which a tool call reports progress to the agent.
fn progress_of(ticket: Ticket, pieces: Answers) -> impl Fn(CallProgress) + Send + Sync {
    move |CallProgress { message, percent }| {
        let news = Input::ToolProgress {
            ticket,
            message,
            percent,
        };
        // Progress is dropped if the channel is full, because only the call's result matters.
        let _ = pieces.try_send(Box::new(news));
    }
}

/// Makes the agent record the warning that its compactor failed and that the node's own compactor
/// is used.
async fn warn(answers: &Answers, why: String) {
    let warning = Event::Warning(event::Warning::new(
        "compactor_failed",
        format!("{why}; the node's own is used"),
    ));
    // Sending fails only if the agent has ended. The warning is then not needed.
    let _ = answers
        .send(Box::new(Input::Command(Command::Record(warning))))
        .await;
}

/// The conditions for starting new work.
struct StartConditions {
    permit: Permit,
    draining: CancellationToken,
    /// When tools may start at the earliest. Until then, tools that a dead node started for this
    /// agent may still be running.
    tools_from: Option<tokio::time::Instant>,
    binding: Weak<()>,
}

impl StartConditions {
    /// Waits until a model may be called. Returns the guard that keeps the agent on this node
    /// during the call. Never returns while the node drains.
    async fn of_model(self) -> Option<Arc<()>> {
        self.permit.given().await;
        let bound = self.binding.upgrade();
        if self.draining.is_cancelled() {
            drop(bound);
            return std::future::pending().await;
        }
        bound
    }

    async fn of_tool(self) {
        if let Some(from) = self.tools_from {
            tokio::time::sleep_until(from).await;
        }
        self.permit.given().await;
    }
}
