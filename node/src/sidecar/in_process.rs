//! Tools of the sidecar SDK that run in the node's process: those of a program that embeds the
//! runtime, and those of the node's MCP servers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use planck_common::SidecarId;
use planck_sidecar::local::{LocalCall, LocalEnd, LocalTool};
use planck_telemetry::metrics;
use planck_toolbox::{BadTool, CallProgress, Invocation, Tool, ToolOutcome};
use serde_json::value::RawValue;

use crate::model::ToolSpec;

/// Finds the tool of this name that a call is for.
pub type FindTool = Arc<
    dyn Fn(String, &Invocation) -> BoxFuture<'static, Result<planck_sidecar::Tool, String>>
        + Send
        + Sync,
>;

/// A tool of this process, as an entry in the node's catalogue.
#[derive(Clone)]
pub struct InProcessTool {
    spec: ToolSpec,
    tool: Arc<LocalTool>,
    /// Set if each session has a tool of its own.
    find: Option<FindTool>,
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
            find: None,
        })
    }

    /// Returns an entry whose calls run the tool that `find` returns.
    pub fn found_by(self, find: Option<FindTool>) -> Self {
        Self { find, ..self }
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
            find: self.find.clone(),
        }
    }

    async fn tool(&self, call: &Invocation) -> Result<Arc<LocalTool>, String> {
        let Some(find) = &self.find else {
            return Ok(Arc::clone(&self.tool));
        };
        let found = find(self.tool.name().to_owned(), call);
        match call.cancel.run_until_cancelled(found).await {
            Some(Ok(tool)) => Ok(Arc::new(LocalTool::new(tool))),
            Some(Err(why)) if call.answer.is_some() => Err(format!(
                "{why} since the answer; before its question the call may have taken effect"
            )),
            Some(Err(why)) => Err(why),
            None => Err("cancelled before the MCP server had started".into()),
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
        let tool = self.tool(&call).await;
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
        let result = match tool {
            Ok(tool) => {
                let run = tool.run(call, |message, percent| {
                    report(CallProgress { message, percent })
                });
                run.await
            }
            Err(why) => Err(why),
        };
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
