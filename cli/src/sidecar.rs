//! The commands `planck sidecar …`.

mod call;
mod new;
mod own_sdk;

use clap::{Args, Subcommand};
use planck_common::{SidecarId, command::SidecarRow};
use planck_sidecar::{
    Connection,
    conform::{self, CheckPlan, Finding, Verdict},
};
use serde_json::Value;

use super::{
    args::GlobalArgs,
    connect::ConnectedClient,
    exit::{Exit, UsageError},
    output::{Format, Output, json, say},
};
use planck_node::config::Period;
use planck_node::node;

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
    Call(call::CallArgs),
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
        &["name", "version", "instances", "tools", "compactors"],
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
    } = sidecar;
    vec![
        name.clone(),
        version.clone(),
        instances.to_string(),
        tools.join(" "),
        compactors.join(" "),
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
        let failed = count(Verdict::Failed);
        match output {
            Format::Json => json(&findings)?,
            Format::Table => say(&format!(
                "{} passed, {failed} failed, {} skipped\n",
                count(Verdict::Passed),
                count(Verdict::Skipped)
            ))?,
        }
        Ok(if failed == 0 {
            Exit::Done
        } else {
            Exit::Failed
        })
    }

    fn plan(self, global: &GlobalArgs) -> anyhow::Result<CheckPlan> {
        let nats = node::nats(&global.config_to_act(None)?)?
            .ok_or_else(|| UsageError("sidecars are on NATS; set NATS_URL".into()))?;
        let connection = Connection {
            url: Some(nats.url),
            creds: nats.creds,
            nkey: nats.nkey,
            tls_ca: nats.tls.ca,
            tls_certificate: nats.tls.certificate,
            prefix: nats.prefix,
            inbox_prefix: nats.inbox_prefix,
            reply_prefixes: nats.reply_prefixes,
        };
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
        Verdict::Passed => "passed",
        Verdict::Failed => "FAILED",
        Verdict::Skipped => "skipped",
    };
    let line = format!(
        "{verdict:<8} {:<17} {:<16} {}",
        finding.case, finding.on, finding.why
    );
    format!("{}\n", line.trim_end())
}
