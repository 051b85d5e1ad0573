//! `planck sidecar call`: calls a tool once, without an agent.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use planck_bus::{Bus, BusError};
use planck_common::{
    AgentId, CallId, SessionId, SidecarId, TeamId,
    service::{ServiceEndpoint, ServiceInfo},
    sidecar::metadata,
    similar::did_you_mean,
    subject::NODE_SERVICE,
};
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::{
    connect::to_nats,
    exit::{Exit, NotFound, UsageError},
    output::{data, warn},
    place::ConfigPlace,
};
use planck_node::config::Period;
use planck_node::node::prefix;
use planck_node::sidecar;
use planck_toolbox::{ABORTED, CallProgress, Invocation};

/// How long a call waits for an instance of its sidecar.
const START: Duration = Duration::from_secs(5);
/// How long no further instance has to answer before the answers count as complete.
const QUIET: Duration = Duration::from_millis(100);

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
        if let Ok(found) = wait_for(&bus, &self.name).await {
            check_offered(&bus, &found, &self.name, &self.tool).await?;
        }
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

/// Waits for a limited time until an instance of a sidecar answers, because it may have been started
/// just before. Returns the descriptions of its instances, or none if the time is over.
async fn wait_for(bus: &Arc<dyn Bus>, sidecar: &str) -> Result<Vec<ServiceInfo>, BusError> {
    let until = Instant::now() + START;
    let mut has_told = false;
    loop {
        let found = services(bus, Some(sidecar)).await?;
        if !found.is_empty() || Instant::now() >= until {
            return Ok(found);
        }
        if !std::mem::replace(&mut has_told, true) {
            warn(&format!(
                "planck: waiting {} s for an instance of `{sidecar}`",
                START.as_secs()
            ));
        }
    }
}

/// Returns the descriptions of services. A description that cannot be read is left out.
async fn services(bus: &Arc<dyn Bus>, name: Option<&str>) -> Result<Vec<ServiceInfo>, BusError> {
    let answers = bus.services(name, QUIET).await?;
    let read = answers.iter().map(|answer| serde_json::from_slice(answer));
    Ok(read.filter_map(Result::ok).collect())
}

/// Returns an error with a similar name if no instance answers or none has the tool.
async fn check_offered(
    bus: &Arc<dyn Bus>,
    found: &[ServiceInfo],
    sidecar: &str,
    tool: &str,
) -> Result<(), NotFound> {
    if found.is_empty() {
        let all = services(bus, None).await.unwrap_or_default();
        let others = all.iter().map(|info| info.name.as_str());
        let others = others.filter(|name| *name != NODE_SERVICE);
        let way_out = did_you_mean(sidecar, others)
            .unwrap_or_else(|| "`planck sidecar ls` lists the sidecars".to_owned());
        let what = format!("no instance of the sidecar `{sidecar}` answers; {way_out}");
        return Err(NotFound(what));
    }
    let endpoints = found.iter().flat_map(|info| &info.endpoints);
    let is_tool = |endpoint: &&ServiceEndpoint| {
        let kind = endpoint.metadata.get(metadata::KIND);
        kind.is_some_and(|kind| kind == metadata::TOOL)
    };
    let tools: BTreeSet<&str> = endpoints
        .filter(is_tool)
        .filter_map(|endpoint| endpoint.subject.rsplit('.').next())
        .collect();
    if tools.contains(tool) {
        return Ok(());
    }
    let known: Vec<&str> = tools.iter().copied().collect();
    let known = format!("it has {}", known.join(", "));
    let way_out = did_you_mean(tool, tools).unwrap_or(known);
    Err(NotFound(format!(
        "the sidecar `{sidecar}` has no tool `{tool}`; {way_out}"
    )))
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
