//! The commands `planck mcp …`.

mod add;
mod allow;
mod bridge;
mod serve;

use std::sync::Arc;

use clap::{Args, Subcommand};
use planck_mcp::{HeaderSource, Looked, Report, ServerUrl};

use crate::{args::GlobalArgs, exit::Exit, output::warn};

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  planck mcp add files --sandbox network -- npx -y @modelcontextprotocol/server-filesystem .
  planck mcp allow files
  planck mcp bridge github --env GITHUB_TOKEN -- github-mcp-server stdio
  claude mcp add planck -- planck mcp serve")]
pub enum McpCommand {
    /// Try an MCP server, and add it to the configuration
    Add(add::AddArgs),
    /// Show how the tools of a server have changed, and allow them
    Allow(allow::AllowArgs),
    /// Offer the tools of an MCP server to all agents of a cluster, as a sidecar
    Bridge(bridge::BridgeArgs),
    /// Offer teams of agents as tools to an MCP client, on standard input and output
    Serve(serve::ServeArgs),
}

impl McpCommand {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        match self {
            Self::Add(add) => Box::pin(add.perform(global)).await,
            Self::Allow(allow) => Box::pin(allow.perform(global)).await,
            Self::Bridge(bridge) => Box::pin(bridge.perform(global)).await,
            Self::Serve(serve) => Box::pin(serve.perform(global)).await,
        }
    }
}

/// The server that a command names by its address, or by the program that starts it.
#[derive(Debug, Args)]
struct ServerArgs {
    /// The address of a server that runs elsewhere
    #[arg(value_name = "URL", required_unless_present = "command", conflicts_with_all = ["command", "env"])]
    url: Option<ServerUrl>,
    /// A header for every request to the address; its value is a text, env:NAME or file:PATH, which
    /// are read again for each connection; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = header, requires = "url")]
    header: Vec<(String, String)>,
    /// An environment variable that the server gets; may be repeated
    #[arg(long, value_name = "VARIABLE")]
    env: Vec<String>,
    /// Believe the server which of its tools change nothing, or change nothing when repeated
    #[arg(long)]
    trust_hints: bool,
    /// Starts the server, which speaks MCP on its standard input and output
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl ServerArgs {
    fn headers(&self) -> Vec<(String, HeaderSource)> {
        let source = |text: &str| HeaderSource::parse(text);
        let headers = self.header.iter();
        headers
            .map(|(name, text)| (name.clone(), source(text)))
            .collect()
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or("expected NAME=VALUE, for example Authorization=env:KEY")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Returns what writes the lines about a server, and of its standard error, to standard error.
pub fn report(name: &str) -> Report {
    let name = name.to_owned();
    Arc::new(move |line: &str| warn(&format!("{name}: {line}")))
}

/// Describes the tools that a server offers, and those that are left out.
fn described(looked: &Looked) -> String {
    let offer = &looked.offer;
    let tools = offer.tools.iter().map(|tool| {
        let first = tool.description.lines().next().unwrap_or_default();
        format!("  {:<32} {:<10} {first}\n", tool.name, tool.effect.name())
    });
    let left_out = offer.left_out.iter().map(|line| format!("  {line}\n"));
    tools.chain(left_out).collect()
}
