//! `delegate_task`: gives another agent a task without waiting for its result.

use async_trait::async_trait;
use planck_common::{
    event::{InputKind, ToolEffect},
    reply::Refusal,
};
use serde::Deserialize;

use super::{ServicesHandle, arguments, outcome, spec};
use crate::model::ToolSpec;
use planck_store::PutResult;
use planck_toolbox::{Invocation, Tool, ToolOutcome};

pub(super) struct DelegateTask {
    link: ServicesHandle,
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct DelegateArgs {
    agent: String,
    task: String,
    #[serde(default)]
    fresh: bool,
}

impl DelegateTask {
    pub(super) fn new(link: ServicesHandle) -> Self {
        let spec = spec(
            "delegate_task",
            "Give another agent of the team a task and go on at once. Its response comes as a message with the task's id.",
            ToolEffect::Idempotent,
            r#"{"type":"object","properties":{
                "agent":{"type":"string","description":"An agent's id, or a name or type unique in the team"},
                "task":{"type":"string","minLength":1},
                "fresh":{"type":"boolean","description":"The agent begins with an empty context"}},
              "required":["agent","task"],"additionalProperties":false}"#,
        );
        Self { link, spec }
    }

    async fn delegate(&self, call: &Invocation) -> Result<ToolOutcome, Refusal> {
        let args: DelegateArgs = arguments(call)?;
        let caller = self.link.caller(call).await?;
        let target = caller.other(&args.agent, "delegate to").await?;
        let mut task = caller.input(
            call.call_id.as_input(),
            &target.id,
            InputKind::Task,
            args.task,
        );
        task.fresh = args.fresh;
        match caller
            .services
            .base
            .store
            .put(&call.session_id, task.clone())
            .await?
        {
            PutResult::Put { node, .. } => {
                caller
                    .services
                    .sessions
                    .deliver(&call.session_id, node, &task)
                    .await?;
            }
            PutResult::Known(_) => {
                caller
                    .services
                    .sessions
                    .wake(&call.session_id, &target.id)
                    .await
            }
            PutResult::NotFound => {
                return Err(Refusal::not_found(format!(
                    "{} is stopped",
                    target.spec.name
                )));
            }
        }
        Ok(ToolOutcome::ok(
            serde_json::json!({ "task_id": task.id }).to_string(),
        ))
    }
}

#[async_trait]
impl Tool for DelegateTask {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        outcome(self.delegate(&call).await)
    }
}
