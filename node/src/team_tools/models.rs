//! `list_models`: lists the models that a spawned agent can use.

use async_trait::async_trait;
use planck_common::{event::ToolEffect, reply::Refusal};

use super::{ServicesHandle, outcome, spec};
use crate::model::ToolSpec;
use planck_toolbox::{Invocation, Tool, ToolOutcome};

pub(super) struct ListModels {
    link: ServicesHandle,
    spec: ToolSpec,
}

impl ListModels {
    pub(super) fn new(link: ServicesHandle) -> Self {
        let spec = spec(
            "list_models",
            "List the models agents can use, with context window, output limit and prices in US dollars per million tokens.",
            ToolEffect::Pure,
            r#"{"type":"object","properties":{},"additionalProperties":false}"#,
        );
        Self { link, spec }
    }

    fn list(&self) -> Result<ToolOutcome, Refusal> {
        Ok(ToolOutcome::ok(planck_common::event::json(
            &self.link.services()?.models.list().models,
        )))
    }
}

#[async_trait]
impl Tool for ListModels {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, _call: Invocation) -> ToolOutcome {
        outcome(self.list())
    }
}
