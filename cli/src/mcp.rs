//! The commands `planck mcp …`.

use std::{ffi::OsString, sync::Arc};

use clap::{Args, Subcommand};
use planck_host::environment;
use planck_mcp::{Bridge, BridgeOptions, Report, ServerCommand};
use planck_node::config::Period;
use planck_toolbox::{Launcher, minimal_environment};
use tokio_util::sync::CancellationToken;

use crate::{
    args::GlobalArgs,
    exit::{Exit, UsageError},
    log::Logs,
    node::Signals,
    output::warn,
    sidecar::connection,
};

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  planck mcp bridge time -- uvx mcp-server-time
  planck mcp bridge github --env GITHUB_TOKEN -- github-mcp-server stdio")]
pub enum McpCommand {
    /// Run an MCP server, and offer its tools to agents as a sidecar
    Bridge(BridgeArgs),
}

/// Starts the server as a child process, and starts it again when it ends. While it is away, its
/// tools stay and answer with an error. The server gets only PATH, HOME, LANG, TMPDIR and the
/// variables that --env names, and it ends with this command. It does not run in the sandbox.
///
/// A tool counts as mutating, so that no node calls it twice, unless --trust-hints is given and the
/// server says otherwise. A tool whose schema a node would refuse is left out with a warning.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck mcp bridge time -- uvx mcp-server-time
  planck mcp bridge files --trust-hints -- npx -y @modelcontextprotocol/server-filesystem .")]
pub struct BridgeArgs {
    /// The name of the sidecar
    name: String,
    /// An environment variable that the server gets; may be repeated
    #[arg(long, value_name = "VARIABLE")]
    env: Vec<String>,
    /// Believe the server which of its tools change nothing, or change nothing when repeated
    #[arg(long)]
    trust_hints: bool,
    /// How long the server may take to answer after it was started
    #[arg(long, value_name = "TIME", default_value = "30s")]
    start_within: Period,
    /// Starts the server, which speaks MCP on its standard input and output
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl McpCommand {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        match self {
            Self::Bridge(bridge) => Box::pin(bridge.perform(global)).await,
        }
    }
}

impl BridgeArgs {
    async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let connection = connection(global)?;
        let name = self.name.clone();
        let report: Report = Arc::new(move |line: &str| warn(&format!("{name}: {line}")));
        let bridge = Bridge::new(self.options()?, Launcher::of_this_binary(None), report);
        let logs = Logs::start_if_asked(&global.config()?)?;
        let mut signals = Signals::listen()?;
        let stop = CancellationToken::new();
        let mut running = std::pin::pin!(bridge.run(connection, stop.clone()));
        let done = tokio::select! {
            done = &mut running => done,
            () = signals.next() => {
                stop.cancel();
                tokio::select! {
                    done = &mut running => done,
                    () = signals.next() => return Ok(Exit::Failed),
                }
            }
        };
        logs.end().await;
        done?;
        Ok(Exit::Done)
    }

    fn options(self) -> anyhow::Result<BridgeOptions> {
        let is_missing = |name: &&String| environment::variable(name).is_none();
        if let Some(name) = self.env.iter().find(is_missing) {
            return Err(UsageError(format!("the variable `{name}` of --env is not set")).into());
        }
        let mut command = self.command.into_iter();
        let program = command
            .next()
            .ok_or_else(|| UsageError("no command".into()))?;
        Ok(BridgeOptions {
            name: self.name,
            command: ServerCommand {
                program,
                args: command.collect(),
                dir: std::env::current_dir()?,
                env: minimal_environment(&self.env),
            },
            start_within: self.start_within.0,
            trusts_hints: self.trust_hints,
        })
    }
}
