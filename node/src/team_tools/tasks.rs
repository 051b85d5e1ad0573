//! The tools for tasks. `delegate_task` gives another agent a task without waiting for its result,
//! and `send_response` sends the result to the agent that gave the task.

use async_trait::async_trait;
use planck_common::{
    event::{InputKind, ToolEffect},
    message::Sender,
    reply::Refusal,
};
use planck_store::{PutResult, TaskRecord};
use planck_toolbox::{Invocation, Tool, ToolOutcome};
use serde::Deserialize;
use serde_json::Value;

use super::{ServicesHandle, arguments, outcome, shape, spec};
use crate::model::ToolSpec;

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
    output_schema: Option<Value>,
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
                "fresh":{"type":"boolean","description":"The agent begins with an empty context"},
                "output_schema":{"type":"object","description":"A JSON Schema of the type object. The response is an object that satisfies it"}},
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
        task.output = shape(args.output_schema)?;
        match caller
            .services
            .handles
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

pub(super) struct SendResponse {
    link: ServicesHandle,
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct RespondArgs {
    response: String,
    task_id: Option<String>,
}

impl SendResponse {
    pub(super) fn new(link: ServicesHandle) -> Self {
        let spec = spec(
            "send_response",
            "Respond to a task that another agent delegated to you. Without `task_id`: to the latest one you have not answered.",
            ToolEffect::Idempotent,
            r#"{"type":"object","properties":{
                "response":{"type":"string","minLength":1},
                "task_id":{"type":"string"}},
              "required":["response"],"additionalProperties":false}"#,
        );
        Self { link, spec }
    }

    async fn respond(&self, call: &Invocation) -> Result<ToolOutcome, Refusal> {
        let args: RespondArgs = arguments(call)?;
        let caller = self.link.caller(call).await?;
        let own = call.call_id.as_input();
        let store = &caller.services.handles.store;
        let tasks = store.tasks(&call.session_id, &call.agent_id).await?;
        let known = store.input(&call.session_id, &own).await?;
        let task = match &known {
            // A resumed turn repeats the call. The response that the first call stored names its
            // task.
            Some(sent) => tasks
                .iter()
                .find(|task| Some(&task.id) == sent.input.reply_to.as_ref()),
            None => choose(&tasks, args.task_id.as_deref()),
        };
        let Some(TaskRecord {
            id,
            from: Some(Sender {
                id: delegator,
                name,
            }),
            ..
        }) = task
        else {
            return Err(Refusal::not_found(none(&tasks, args.task_id.as_deref())));
        };
        let mut response = caller.input(own, delegator, InputKind::Response, args.response);
        response.reply_to = Some(id.clone());
        match store.put(&call.session_id, response.clone()).await? {
            PutResult::Put { node, .. } => {
                caller
                    .services
                    .sessions
                    .deliver(&call.session_id, node, &response)
                    .await?;
            }
            PutResult::Known(_) => {
                caller
                    .services
                    .sessions
                    .wake(&call.session_id, delegator)
                    .await
            }
            PutResult::NotFound => {
                return Err(Refusal::not_found(format!(
                    "{name}, who gave the task, is stopped"
                )));
            }
        }
        Ok(ToolOutcome {
            responded: Some(id.clone()),
            ..ToolOutcome::ok(format!("sent to {name}"))
        })
    }
}

fn choose<'a>(tasks: &'a [TaskRecord], wanted: Option<&str>) -> Option<&'a TaskRecord> {
    match wanted {
        Some(id) => tasks.iter().find(|task| *task.id == *id),
        None => tasks.iter().rfind(|task| task.consumed && !task.responded),
    }
}

fn none(tasks: &[TaskRecord], wanted: Option<&str>) -> String {
    let open: Vec<&str> = tasks
        .iter()
        .filter(|task| !task.responded)
        .map(|task| task.id.as_str())
        .collect();
    match (wanted, open.as_slice()) {
        (Some(id), []) => format!("no task `{id}`: there is no task to respond to"),
        (Some(id), open) => format!("no task `{id}`; unanswered are {}", open.join(", ")),
        (None, _) => "there is no task to respond to".into(),
    }
}

#[async_trait]
impl Tool for SendResponse {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        outcome(self.respond(&call).await)
    }
}
