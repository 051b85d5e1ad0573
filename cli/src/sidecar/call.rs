//! `planck sidecar call`: calls a tool once, without an agent.

use std::time::Duration;

use clap::Args;
use planck_common::{AgentId, CallId, SessionId, SidecarId, TeamId};
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::{
    exit::{Exit, UsageError},
    link::to_nats,
    output::{data, warn},
    place::ConfigPlace,
};
use planck_node::config::Period;
use planck_node::node::prefix;
use planck_node::sidecar;
use planck_toolbox::{ABORTED, CallProgress, Invocation};

/// Only the sidecar checks the arguments against the tool's schema.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  planck sidecar call calculator add '{\"a\": 2, \"b\": 3}'")]
pub struct CallArgs {
    /// The sidecar's name
    name: String,
    /// The tool's name
    tool: String,
    /// The arguments
    #[arg(value_name = "JSON", default_value = "{}")]
    args: String,
    /// How long the sidecar may be silent
    #[arg(long, value_name = "TIME", default_value = "5m")]
    timeout: Period,
}

impl CallArgs {
    pub async fn perform(self, place: &ConfigPlace) -> anyhow::Result<Exit> {
        let config = place.config_to_act(None)?;
        let usage = |error: &dyn std::fmt::Display| UsageError(error.to_string());
        let sidecar = SidecarId::parse(&self.name).map_err(|error| usage(&error))?;
        if !planck_common::id::is_id(&self.tool) {
            return Err(UsageError(format!("`{}` names no tool", self.tool)).into());
        }
        let args = RawValue::from_string(self.args)
            .map_err(|error| usage(&format!("the arguments are not JSON: {error}")))?;
        let bus = to_nats(&config, "planck client")
            .await?
            .ok_or_else(|| UsageError("sidecars are on NATS; set NATS_URL".into()))?;
        let (prefix, cancel) = (prefix(&config)?, CancellationToken::new());
        let called = sidecar::call_tool(
            &bus,
            &prefix,
            &sidecar,
            &self.tool,
            self.timeout.0,
            invocation(args, &cancel),
        );
        let mut called = std::pin::pin!(called);
        let outcome = tokio::select! {
            outcome = &mut called => outcome,
            _ = tokio::signal::ctrl_c() => {
                cancel.cancel();
                called.await
            }
        };
        let _late = bus.flush(Duration::from_secs(1)).await;
        if outcome.is_error() {
            warn(&format!("planck: {}", outcome.text_for_model(ABORTED)));
            return Ok(Exit::Failed);
        }
        data(&format!("{}\n", outcome.text))?;
        Ok(Exit::Done)
    }
}

/// Builds a tool call that does not belong to an agent.
fn invocation(args: Box<RawValue>, cancel: &CancellationToken) -> Invocation {
    Invocation {
        session_id: SessionId::mint(),
        team_id: TeamId::mint(),
        agent_id: AgentId::mint(),
        epoch: 1,
        call_id: CallId::mint(),
        is_repeat: false,
        args: args.into(),
        dir: std::path::PathBuf::new(),
        second_judgement: None,
        cancel: cancel.clone(),
        progress: std::sync::Arc::new(|progress: CallProgress| {
            warn(&format!("planck: {}", progress.message))
        }),
    }
}
