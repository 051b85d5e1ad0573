//! `interrupt_agent`: aborts a worker's running turn. The worker can continue to work.

use async_trait::async_trait;
use planck_common::{event::ToolEffect, reply::Refusal};

use super::{ServicesHandle, arguments, destroy::DestroyArgs, outcome, spec};
use crate::model::ToolSpec;
use planck_toolbox::{Invocation, Tool, ToolOutcome};

pub(super) struct InterruptAgent {
    link: ServicesHandle,
    spec: ToolSpec,
}

impl InterruptAgent {
    pub(super) fn new(link: ServicesHandle) -> Self {
        let spec = spec(
            "interrupt_agent",
            "Abort the running turn of an agent of the team. The agent stays, and continues with the inputs in its inbox.",
            ToolEffect::Idempotent,
            r#"{"type":"object","properties":{
                "agent":{"type":"string","description":"An agent's id, or a name or type unique in the team"},
                "reason":{"type":"string"}},
              "required":["agent"],"additionalProperties":false}"#,
        );
        Self { link, spec }
    }

    async fn interrupt(&self, call: &Invocation) -> Result<ToolOutcome, Refusal> {
        let args: DestroyArgs = arguments(call)?;
        let caller = self.link.caller(call).await?;
        let target = caller
            .worker(&args.agent, "interrupt", "interrupts")
            .await?;
        caller
            .services
            .sessions
            .abort_agent(&target, args.reason)
            .await?;
        Ok(ToolOutcome::ok(format!(
            "{} is interrupted",
            target.spec.name
        )))
    }
}

#[async_trait]
impl Tool for InterruptAgent {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        outcome(self.interrupt(&call).await)
    }
}
