//! The commands `planck sidecar …`.

mod new;

use std::{
    collections::BTreeSet,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use clap::{Args, Subcommand};
use planck_bus::{Bus, BusError};
use planck_common::{
    AgentId, CallId, SessionId, SidecarId, TeamId,
    command::SidecarRow,
    service::{ServiceEndpoint, ServiceInfo},
    sidecar::{ToolAnswer, ToolQuestion, metadata},
    similar::did_you_mean,
    subject::NODE_SERVICE,
    wait::WaitDecision,
};
use planck_node::{
    config::{Config, Period},
    node::{self, mcp::McpServers, prefix},
    sidecar::{self, InProcessTool},
};
use planck_sidecar::{
    Connection,
    conform::{self, CaseVerdict, CheckPlan, Finding},
};
use planck_toolbox::{ABORTED, CallProgress, Invocation, Tool as _, ToolOutcome};
use serde_json::{Value, value::RawValue};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{
    args::GlobalArgs,
    connect::{ConnectedClient, to_nats},
    exit::{Exit, NotFound, UsageError},
    mcp::report,
    output::{Format, Output, data, json, question, say, warn},
    project,
    waits::value_of,
};

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  planck sidecar new --lang python weather
  planck sidecar ls
  planck sidecar call calculator add '{\"a\": 2, \"b\": 3}'
  planck sidecar conform calculator -- python calculator.py")]
pub enum SidecarCommand {
    /// Write a starter project for a sidecar
    New(new::NewSidecar),
    /// List the sidecars that nodes have found
    #[command(after_help = "Examples:\n  planck sidecar ls")]
    Ls {
        #[command(flatten)]
        output: Output,
    },
    /// Call a sidecar's tool as an agent would, and print its answer
    Call(CallArgs),
    /// Check a sidecar against the protocol
    Conform(Conform),
}

/// Calls the sidecar's pure and idempotent tools with arguments made from their schemas, cancels
/// and repeats calls, sends malformed requests, and reports for each case whether it passed. A tool
/// with a number `seconds` is assumed to run that long, and one with a number `times` to return an
/// answer that grows with it; name others with --slow and --large.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  planck sidecar conform calculator -- python calculator.py")]
pub struct Conform {
    /// The sidecar's name
    name: String,
    /// Arguments for valid calls of a tool; a mutating tool is called only if it is named here
    #[arg(long, value_name = "TOOL=JSON", value_parser = call)]
    args: Vec<(String, Value)>,
    /// A call that runs at least three times as long as the patience
    #[arg(long, value_name = "TOOL=JSON", value_parser = call)]
    slow: Option<(String, Value)>,
    /// A call whose answer is larger than NATS allows
    #[arg(long, value_name = "TOOL=JSON", value_parser = call)]
    large: Option<(String, Value)>,
    /// How long an expected answer may take
    #[arg(long, value_name = "TIME", default_value = "5s")]
    patience: Period,
    /// How long the command may take until the sidecar answers on `$SRV.INFO`
    #[arg(long, value_name = "TIME", default_value = "10s")]
    start_within: Period,
    /// Run only this case; may be repeated
    #[arg(long, value_name = "CASE", value_parser = case)]
    only: Vec<String>,
    #[command(flatten)]
    output: Output,
    /// Starts the sidecar; with it, starts, crashes, drains and two instances are tried as well
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl SidecarCommand {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        match self {
            Self::New(new) => new.perform(),
            Self::Ls { output } => list(output, global).await,
            Self::Call(call) => call.perform(global).await,
            Self::Conform(conform) => conform.perform(global).await,
        }
    }
}

async fn list(output: Output, global: &GlobalArgs) -> anyhow::Result<Exit> {
    let config = global.config()?;
    if config.nats.url.is_none() {
        return Err(UsageError("there are no sidecars without NATS; set NATS_URL".into()).into());
    }
    let link = ConnectedClient::open(&config).await?;
    let sidecars = link.client.sidecars().await;
    link.close().await;
    let sidecars = sidecars?.sidecars;
    let rows = sidecars.iter().map(row).collect();
    output.list(
        &sidecars,
        &[
            "name",
            "version",
            "instances",
            "tools",
            "compactors",
            "problem",
        ],
        rows,
    )?;
    Ok(Exit::Done)
}

fn row(sidecar: &SidecarRow) -> Vec<String> {
    let SidecarRow {
        name,
        version,
        instances,
        tools,
        compactors,
        problem,
    } = sidecar;
    vec![
        name.clone(),
        version.clone(),
        instances.to_string(),
        tools.join(" "),
        compactors.join(" "),
        problem.clone().unwrap_or_default(),
    ]
}

impl Conform {
    async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let output = self.output.output;
        let plan = self.plan(global)?;
        let findings = conform::run(plan, |finding| {
            if output == Format::Table {
                let _nobody_reads = say(&line(finding));
            }
        });
        let findings = Box::pin(findings).await?;
        let count = |verdict| {
            findings
                .iter()
                .filter(|finding| finding.verdict == verdict)
                .count()
        };
        let failed = count(CaseVerdict::Failed);
        match output {
            Format::Json => json(&findings)?,
            Format::Table => say(&format!(
                "{} passed, {failed} failed, {} skipped\n",
                count(CaseVerdict::Passed),
                count(CaseVerdict::Skipped)
            ))?,
        }
        Ok(if failed == 0 {
            Exit::Done
        } else {
            Exit::Failed
        })
    }

    fn plan(self, global: &GlobalArgs) -> anyhow::Result<CheckPlan> {
        let connection = connection(global)?;
        let name = SidecarId::parse(&self.name).map_err(|error| UsageError(error.to_string()))?;
        let Self {
            args,
            slow,
            large,
            command,
            only,
            patience,
            start_within,
            ..
        } = self;
        let (patience, start_within) = (patience.0, start_within.0);
        Ok(CheckPlan {
            name,
            connection,
            args,
            slow,
            large,
            command,
            patience,
            start_within,
            only,
        })
    }
}

/// Returns the connection of a sidecar, from the configuration.
pub fn connection(global: &GlobalArgs) -> anyhow::Result<Connection> {
    let nats = node::nats_options(&global.config_to_act(None)?)?
        .ok_or_else(|| UsageError("sidecars are on NATS; set NATS_URL".into()))?;
    Ok(Connection {
        url: Some(nats.url),
        creds: nats.creds,
        nkey: nats.nkey,
        tls_ca: nats.tls.ca,
        tls_certificate: nats.tls.certificate,
        prefix: nats.prefix,
        inbox_prefix: nats.inbox_prefix,
        reply_prefixes: nats.reply_prefixes,
    })
}

fn call(text: &str) -> Result<(String, Value), String> {
    let (tool, args) = text
        .split_once('=')
        .ok_or("expected TOOL=JSON, as in add='{\"numbers\":[1]}'")?;
    let args = serde_json::from_str(args)
        .map_err(|error| format!("the arguments are not JSON: {error}"))?;
    Ok((tool.into(), args))
}

fn case(text: &str) -> Result<String, String> {
    let names: Vec<&str> = conform::CASES.iter().map(|(name, _)| *name).collect();
    if names.contains(&text) {
        Ok(text.into())
    } else {
        Err(format!("the cases are {}", names.join(", ")))
    }
}

fn line(finding: &Finding) -> String {
    let verdict = match finding.verdict {
        CaseVerdict::Passed => "passed",
        CaseVerdict::Failed => "FAILED",
        CaseVerdict::Skipped => "skipped",
    };
    let line = format!(
        "{verdict:<8} {:<17} {:<16} {}",
        finding.case, finding.on, finding.why
    );
    format!("{}\n", line.trim_end())
}

/// How long a call waits for an instance of its sidecar.
const START: Duration = Duration::from_secs(5);
/// How long no further instance has to answer before the answers count as complete.
const QUIET: Duration = Duration::from_millis(100);

/// Only the sidecar checks the arguments against the tool's schema. If the tool asks a question, the
/// answer is read from standard input.
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
    async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let config = global.config_to_act(None)?;
        let usage = |error: &dyn std::fmt::Display| UsageError(error.to_string());
        let sidecar = SidecarId::parse(&self.name).map_err(|error| usage(&error))?;
        if !planck_common::id::is_id(&self.tool) {
            return Err(UsageError(format!("`{}` names no tool", self.tool)).into());
        }
        let args = RawValue::from_string(self.args)
            .map_err(|error| usage(&format!("the arguments are not JSON: {error}")))?;
        if config.mcp.0.contains_key(&self.name) {
            return call_here(&config, &self.name, &self.tool, args).await;
        }
        let bus = to_nats(&config, "planck client")
            .await?
            .ok_or_else(|| UsageError("sidecars are on NATS; set NATS_URL".into()))?;
        if let Ok(found) = wait_for(&bus, &self.name).await {
            check_offered(&bus, &found, &self.name, &self.tool).await?;
        }
        let prefix = prefix(&config)?;
        let call = |invocation| {
            let (tool, timeout) = (&self.tool, self.timeout.0);
            sidecar::call_tool(&bus, &prefix, &sidecar, tool, timeout, invocation)
        };
        let outcome = until_answered(args, call).await?;
        let _late = bus.flush(Duration::from_secs(1)).await;
        tell(&outcome)
    }
}

/// Makes a call, and makes it again with the answer while the tool asks a question.
async fn until_answered<C: Future<Output = ToolOutcome>>(
    args: Box<RawValue>,
    call: impl Fn(Invocation) -> C,
) -> anyhow::Result<ToolOutcome> {
    let cancel = CancellationToken::new();
    let mut invocation = invocation(args, &cancel);
    loop {
        let outcome = until_interrupted(call(invocation.clone()), &cancel).await;
        match outcome.question {
            Some(question) if !cancel.is_cancelled() => {
                invocation.answer = Some(answer(*question).await?);
            }
            Some(_) | None => return Ok(outcome),
        }
    }
}

/// Reads the answer to a tool's question from standard input. A line without text declines it, and so
/// does Ctrl-C.
async fn answer(asked: ToolQuestion) -> anyhow::Result<ToolAnswer> {
    let schema = asked.schema.as_ref().map(|schema| format!("\n{schema}"));
    question(&format!(
        "the tool asks: {}{}\nanswer, or nothing to decline › ",
        asked.message,
        schema.unwrap_or_default()
    ))?;
    let (typed, read) = oneshot::channel();
    // The command does not wait for the thread when it ends.
    thread::spawn(move || typed.send(project::line()));
    let line = tokio::select! {
        line = read => line??.unwrap_or_default(),
        _ = tokio::signal::ctrl_c() => String::new(),
    };
    let value = match line.trim() {
        "" => None,
        text => Some(serde_json::from_str(
            value_of(text, asked.schema.is_some())?.get(),
        )?),
    };
    Ok(ToolAnswer {
        decision: match value {
            Some(_) => WaitDecision::Answer,
            None => WaitDecision::Deny,
        },
        value,
        reason: None,
        state: asked.state,
    })
}

/// Cancels a call when the user interrupts the command, and waits for its end.
async fn until_interrupted(
    called: impl Future<Output = ToolOutcome>,
    cancel: &CancellationToken,
) -> ToolOutcome {
    let mut called = std::pin::pin!(called);
    tokio::select! {
        outcome = &mut called => outcome,
        _ = tokio::signal::ctrl_c() => {
            cancel.cancel();
            called.await
        }
    }
}

fn tell(outcome: &ToolOutcome) -> anyhow::Result<Exit> {
    if outcome.is_error() {
        warn(&format!("planck: {}", outcome.text_for_model(ABORTED)));
        return Ok(Exit::Failed);
    }
    data(&format!("{}\n", outcome.text))?;
    Ok(Exit::Done)
}

/// Calls a tool of an MCP server of the configuration. Starts the server for this call, because a
/// node's server takes calls only from the node's agents.
async fn call_here(
    config: &Config,
    name: &str,
    tool: &str,
    args: Box<RawValue>,
) -> anyhow::Result<Exit> {
    let stop = CancellationToken::new();
    let servers = McpServers::load(config).await;
    let started = servers.start(name, report(name), stop.clone());
    let (mut server, supervising) = started.map_err(UsageError)?;
    let called = async {
        while server.offer().is_none() && server.failed_starts() == 0 {
            server.changed().await;
        }
        let Some(offer) = server.offer() else {
            let why = server.away().unwrap_or_default();
            return Err(anyhow::anyhow!(
                "the MCP server `{name}` cannot be used: {why}"
            ));
        };
        let names = offer.tools.iter().map(|tool| tool.name.as_str());
        let mut tools = server.tools(&offer).into_iter().zip(&offer.tools);
        let Some((called, _)) = tools.find(|(_, offered)| offered.name == tool) else {
            let all = names.clone().collect::<Vec<_>>().join(", ");
            let remedy = did_you_mean(tool, names).unwrap_or_else(|| format!("it offers {all}"));
            let why = format!("the MCP server `{name}` offers no tool `{tool}`; {remedy}");
            return Err(NotFound(why).into());
        };
        let called = InProcessTool::new(called)?;
        until_answered(args, |invocation| called.run(invocation)).await
    };
    let outcome = called.await;
    stop.cancel();
    supervising.await?;
    tell(&outcome?)
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
        answer: None,
        args: args.into(),
        dir: std::path::PathBuf::new(),
        second_judgement: None,
        cancel: cancel.clone(),
        progress: std::sync::Arc::new(|progress: CallProgress| {
            warn(&format!("planck: {}", progress.message))
        }),
    }
}
