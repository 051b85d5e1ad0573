//! Makes a program's tool available to agents.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use planck_sidecar::local::{LocalCall, LocalTool};
use serde_json::value::RawValue;

use crate::model::ToolSpec;
use planck_toolbox::{BadTool, CallProgress, Invocation, Tool, ToolOutcome};

/// A tool of the program, as an entry in the runtime's catalogue.
pub(super) struct ProgramTool {
    spec: ToolSpec,
    tool: LocalTool,
}

impl ProgramTool {
    pub(super) fn new(tool: planck_sidecar::Tool) -> Result<Self, BadTool> {
        let tool = LocalTool::new(tool);
        let parameters =
            RawValue::from_string(tool.parameters().to_owned()).map_err(|why| BadTool::Schema {
                name: tool.name().to_owned(),
                why: why.to_string(),
            })?;
        let spec = ToolSpec {
            name: tool.name().to_owned(),
            description: tool.description().to_owned(),
            parameters: parameters.into(),
            effect: tool.effect(),
            sidecar: None,
            wait: None,
        };
        Ok(Self { spec, tool })
    }
}

#[async_trait]
impl Tool for ProgramTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn timeout(&self, _: Duration) -> Option<Duration> {
        // The tool has its own timeout, which starts again with each progress report.
        None
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        let report = Arc::clone(&call.progress);
        let cancel = call.cancel.clone();
        let call = LocalCall {
            call_id: call.call_id,
            agent_id: call.agent_id,
            session_id: call.session_id,
            team_id: call.team_id,
            epoch: call.epoch,
            args: call.args,
            cancel: call.cancel,
        };
        let result = self.tool.run(call, |message, percent| {
            report(CallProgress { message, percent })
        });
        match result.await {
            Ok(text) => ToolOutcome::ok(text),
            Err(_) if cancel.is_cancelled() => ToolOutcome::stopped(""),
            Err(why) => ToolOutcome::error(why),
        }
    }
}
