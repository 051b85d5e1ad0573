//! `ask_agent`: asks a question and waits for the end of the turn that consumed it.

use std::time::Duration;

use async_trait::async_trait;
use planck_common::{
    InputId,
    event::{InputKind, ToolEffect, TurnOutcome},
    reply::{Code, Refusal},
};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::{CallerContext, Services, ServicesHandle, arguments, cycle_of, outcome, shape, spec};
use crate::{actor::Waiter, model::ToolSpec};
use planck_store::{AgentRecord, AskOutcome, InputOutcome, NewInput, StoredInput};
use planck_toolbox::{Invocation, Tool, ToolOutcome};

const TIMEOUT: Duration = Duration::from_secs(600);
/// How often the asker reads the question's row, because the notification of an answer may be lost.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
const MAX_DEPTH: u32 = 16;

pub(super) struct AskAgent {
    link: ServicesHandle,
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct AskArgs {
    agent: String,
    question: String,
    timeout_ms: Option<u64>,
    #[serde(default)]
    fresh: bool,
    output_schema: Option<Value>,
}

impl AskAgent {
    pub(super) fn new(link: ServicesHandle) -> Self {
        let spec = spec(
            "ask_agent",
            "Ask another agent of the team and wait for its answer, which is the text of the turn that takes the question up.",
            ToolEffect::Idempotent,
            r#"{"type":"object","properties":{
                "agent":{"type":"string","description":"An agent's id, or a name or type unique in the team"},
                "question":{"type":"string","minLength":1},
                "timeout_ms":{"type":"integer","minimum":1,"description":"How long to wait; 600000 unless said"},
                "fresh":{"type":"boolean","description":"The agent begins with an empty context"},
                "output_schema":{"type":"object","description":"A JSON Schema of the type object. The answer is an object that satisfies it"}},
              "required":["agent","question"],"additionalProperties":false}"#,
        );
        Self { link, spec }
    }

    async fn ask(&self, call: &Invocation) -> Result<ToolOutcome, Refusal> {
        let args: AskArgs = arguments(call)?;
        let caller = self.link.caller(call).await?;
        let target = &caller.other(&args.agent, "ask").await?;
        let mut question = caller.input(
            call.call_id.as_input(),
            &target.id,
            InputKind::Question,
            args.question,
        );
        question.fresh = args.fresh;
        question.output = shape(args.output_schema)?;
        // The waiter is registered before the question is stored, so that no notification is
        // missed.
        let waiter = caller
            .services
            .sessions
            .waiters()
            .register(question.id.clone());
        put(&caller, call, target, &question).await?;
        let asked = PendingQuestion {
            services: &caller.services,
            call,
            target,
            id: &question.id,
        };
        asked
            .wait(
                &waiter,
                args.timeout_ms.map_or(TIMEOUT, Duration::from_millis),
            )
            .await
    }
}

async fn put(
    caller: &CallerContext,
    call: &Invocation,
    target: &AgentRecord,
    question: &NewInput,
) -> Result<(), Refusal> {
    let depth = caller.session.limits.max_ask_depth.unwrap_or(MAX_DEPTH);
    match caller
        .services
        .handles
        .store
        .ask(&call.session_id, question.clone(), call.epoch, depth)
        .await?
    {
        AskOutcome::Asked { node } => caller
            .services
            .sessions
            .deliver(&call.session_id, node, question)
            .await
            .map(drop),
        AskOutcome::Known { .. } => {
            caller
                .services
                .sessions
                .wake(&call.session_id, &target.id)
                .await;
            Ok(())
        }
        AskOutcome::NotFound => Err(Refusal::not_found(format!(
            "{} is stopped",
            target.spec.name
        ))),
        AskOutcome::Cycle(ids) => {
            let path = cycle_of(
                &caller
                    .services
                    .handles
                    .lookup
                    .members(&call.session_id)
                    .await?,
                &ids,
            );
            Err(Refusal::bad_request(format!(
                "asking would never end: {path} wait for each other"
            )))
        }
        AskOutcome::TooDeep(depth) => Err(Refusal::new(
            Code::Limit,
            format!("questions in questions are {depth} deep; answer without asking"),
        )),
        AskOutcome::StaleEpoch => Err(Refusal::unavailable("this agent moved to another node")),
    }
}

/// A question whose outcome the asker waits for.
struct PendingQuestion<'a> {
    services: &'a Services,
    call: &'a Invocation,
    target: &'a AgentRecord,
    id: &'a InputId,
}

impl PendingQuestion<'_> {
    async fn wait(
        &self,
        waiter: &Waiter<'_, InputId>,
        limit: Duration,
    ) -> Result<ToolOutcome, Refusal> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(answer) = self.answer().await? {
                return answer;
            }
            let given_up = tokio::select! {
                () = self.call.cancel.cancelled() => ToolOutcome::stopped(""),
                () = tokio::time::sleep_until(deadline) => {
                    ToolOutcome::error(format!("{} has not answered in time", self.target.spec.name))
                }
                () = waiter.news() => continue,
                () = tokio::time::sleep(LOOK_AGAIN) => continue,
            };
            if self.is_asker_here() {
                self.withdraw().await;
            }
            return Ok(given_up);
        }
    }

    /// Returns whether the asker still runs on this node under the same lease. If not, the asker
    /// may have moved to another node, where it waits for the same question.
    fn is_asker_here(&self) -> bool {
        let hosting = self.services.handles.host.hosting(&self.call.agent_id);
        hosting.is_some_and(|hosting| hosting.epoch == self.call.epoch)
    }

    async fn withdraw(&self) {
        match self
            .services
            .handles
            .store
            .withdraw(&self.call.session_id, self.id)
            .await
        {
            Ok(true) => {
                self.services
                    .sessions
                    .tell_withdrawn(self.target, self.id)
                    .await
            }
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(question = %self.id, %error, "cannot withdraw the question; its answer is ignored")
            }
        }
    }

    /// Returns the result of the tool call once the question has an outcome, or `None` while it has
    /// none.
    async fn answer(&self) -> Result<Option<Result<ToolOutcome, Refusal>>, Refusal> {
        let Some(StoredInput {
            input,
            outcome: Some(outcome),
            answer,
            ..
        }) = self
            .services
            .handles
            .store
            .input(&self.call.session_id, self.id)
            .await?
        else {
            return Ok(None);
        };
        let name = &self.target.spec.name;
        let nothing = || format!("{name} did not answer: its turn ended with `{outcome}`");
        Ok(Some(
            match (&outcome, answer.filter(|text| !text.is_empty())) {
                (InputOutcome::Turn(TurnOutcome::Completed), Some(text)) => {
                    let note = match input.output {
                        Some(_) => "\n[this satisfies the output schema]",
                        None => "",
                    };
                    Ok(ToolOutcome::ok(text + note))
                }
                (InputOutcome::Turn(TurnOutcome::Completed), None) => Ok(ToolOutcome::ok(format!(
                    "({name} ended its turn without text)"
                ))),
                (InputOutcome::Turn(TurnOutcome::Truncated | TurnOutcome::Limit), Some(text)) => {
                    Ok(ToolOutcome::ok(format!(
                        "{text}\n[the answer was cut: {outcome}]"
                    )))
                }
                (InputOutcome::Failed, Some(why)) => {
                    Err(Refusal::unavailable(format!("{}: {why}", nothing())))
                }
                (_, Some(_) | None) => Err(Refusal::unavailable(nothing())),
            },
        ))
    }
}

#[async_trait]
impl Tool for AskAgent {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn timeout(&self, _usual: Duration) -> Option<Duration> {
        None
    }

    fn waits(&self) -> bool {
        true
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        outcome(self.ask(&call).await)
    }
}
