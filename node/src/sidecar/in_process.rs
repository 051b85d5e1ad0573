//! Tools of the sidecar SDK that run in the node's process: those of a program that embeds the
//! runtime, and those of the node's MCP servers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use planck_common::SidecarId;
use planck_sidecar::local::{LocalCall, LocalEnd, LocalTool};
use planck_telemetry::metrics;
use planck_toolbox::{BadTool, CallProgress, Invocation, Tool, ToolOutcome};
use serde_json::value::RawValue;

use crate::model::ToolSpec;

/// A tool of this process, as an entry in the node's catalogue.
#[derive(Clone)]
pub struct InProcessTool {
    spec: ToolSpec,
    tool: Arc<LocalTool>,
}

impl InProcessTool {
    pub fn new(tool: planck_sidecar::Tool) -> Result<Self, BadTool> {
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
            is_searched: false,
        };
        Ok(Self {
            spec,
            tool: Arc::new(tool),
        })
    }

    /// Returns the tool under another name, as one of a sidecar.
    pub fn of_sidecar(&self, name: &str, sidecar: &SidecarId) -> Self {
        Self {
            spec: ToolSpec {
                name: name.into(),
                sidecar: Some(sidecar.as_str().into()),
                ..self.spec.clone()
            },
            tool: Arc::clone(&self.tool),
        }
    }
}

#[async_trait]
impl Tool for InProcessTool {
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
            answer: call.answer,
            cancel: call.cancel,
        };
        let since = Instant::now();
        let result = self.tool.run(call, |message, percent| {
            report(CallProgress { message, percent })
        });
        let result = result.await;
        if let Some(sidecar) = &self.spec.sidecar {
            metrics::meters().sidecar_called(sidecar, result.is_err(), since.elapsed());
        }
        match result {
            Ok(LocalEnd::Answer(text)) => ToolOutcome::ok(text),
            Ok(LocalEnd::Question(question)) => ToolOutcome::asks(question),
            Err(_) if cancel.is_cancelled() => ToolOutcome::stopped(""),
            Err(why) => ToolOutcome::error(why),
        }
    }
}
