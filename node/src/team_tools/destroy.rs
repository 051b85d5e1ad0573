//! `destroy_agent`: stops a worker permanently.

use async_trait::async_trait;
use planck_common::{event::ToolEffect, reply::Refusal};
use serde::Deserialize;

use super::{CallerContext, ServicesHandle, arguments, outcome, roster, spec};
use crate::model::ToolSpec;
use planck_store::AgentRecord;
use planck_toolbox::{Invocation, Tool, ToolOutcome};

pub(super) struct DestroyAgent {
    link: ServicesHandle,
    spec: ToolSpec,
}

#[derive(Deserialize)]
pub(super) struct DestroyArgs {
    pub(super) agent: String,
    pub(super) reason: Option<String>,
}

impl DestroyAgent {
    pub(super) fn new(link: ServicesHandle) -> Self {
        let spec = spec(
            "destroy_agent",
            "End an agent of the team for good, with its running turn and its processes.",
            ToolEffect::Idempotent,
            r#"{"type":"object","properties":{
                "agent":{"type":"string","description":"An agent's id, or a name or type unique in the team"},
                "reason":{"type":"string"}},
              "required":["agent"],"additionalProperties":false}"#,
        );
        Self { link, spec }
    }

    async fn destroy(&self, call: &Invocation) -> Result<ToolOutcome, Refusal> {
        let args: DestroyArgs = arguments(call)?;
        let caller = self.link.caller(call).await?;
        if is_stopped(&caller, &args.agent).await? {
            return Ok(ToolOutcome::ok(format!(
                "{} was stopped before",
                args.agent
            )));
        }
        let target = caller.worker(&args.agent, "destroy", "destroys").await?;
        let reason = args.reason.unwrap_or_else(|| "destroyed".into());
        caller
            .services
            .sessions
            .stop_agent(&target, &reason)
            .await?;
        Ok(ToolOutcome::ok(format!("{} is stopped", target.spec.name)))
    }
}

/// Returns whether the text refers to an agent that is already stopped, and to no other. A resumed
/// turn repeats the call and must find that it succeeded.
async fn is_stopped(caller: &CallerContext, wanted: &str) -> Result<bool, Refusal> {
    let meant = caller
        .services
        .base
        .store
        .agents_matching(&caller.session.id, wanted)
        .await?;
    let (there, ended): (Vec<_>, Vec<_>) = meant.into_iter().partition(AgentRecord::is_there);
    Ok(roster::find(&there, wanted).is_err() && roster::find(&ended, wanted).is_ok())
}

#[async_trait]
impl Tool for DestroyAgent {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        outcome(self.destroy(&call).await)
    }
}
