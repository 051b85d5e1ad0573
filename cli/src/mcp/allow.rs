//! The command `planck mcp allow`.

use anyhow::anyhow;
use clap::Args;
use planck_mcp::{Looked, PinnedTools};
use planck_node::node::mcp::McpServers;

use super::{described, report};
use crate::{
    args::GlobalArgs,
    exit::{Exit, NotFound},
    output::say,
};

/// Starts a server of the configuration, shows how its tools differ from those that were allowed, and
/// allows them. A node allows the tools that a server has at its first use. Later it leaves out new
/// tools, and those whose description, arguments or hints have changed, until this command has allowed
/// them. A running node sees that within a minute.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck mcp allow files --dry-run
  planck mcp allow files")]
pub struct AllowArgs {
    /// The server's name in the configuration
    name: String,
    /// Show the differences, and allow nothing
    #[arg(long)]
    dry_run: bool,
}

impl AllowArgs {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let config = global.config_to_act(None)?;
        let name = &self.name;
        if !config.mcp.0.contains_key(name) {
            let names: Vec<&str> = config.mcp.0.keys().map(String::as_str).collect();
            let known = match names.is_empty() {
                true => "there is none; `planck mcp add` adds one".into(),
                false => format!("there are {}", names.join(", ")),
            };
            return Err(NotFound(format!(
                "no MCP server `{name}` in the configuration; {known}"
            ))
            .into());
        }
        let looked = McpServers::load(&config)
            .await
            .look(name, &report(name))
            .await;
        let looked =
            looked.map_err(|why| anyhow!("the MCP server `{name}` cannot be used: {why}"))?;
        say(&differences(&looked))?;
        if !self.dry_run {
            looked.allow().map_err(|why| anyhow!(why))?;
            say(&format!(
                "the {} tools of `{name}` are allowed as they are\n",
                looked.listed.tools.len()
            ))?;
        }
        Ok(Exit::Done)
    }
}

fn differences(looked: &Looked) -> String {
    let Some(allowed) = &looked.allowed else {
        return format!("nothing was allowed yet; it offers\n{}", described(looked));
    };
    let new_or_changed = looked.listed.tools.iter().filter_map(|tool| {
        let why = allowed.refusal(tool)?;
        let text = tool.description.as_deref().unwrap_or_default();
        Some(format!("{}: {why}\n{}\n", tool.name, indented(text)))
    });
    let gone = |now: &PinnedTools, name: &str| !now.tools.iter().any(|tool| tool.name == name);
    let removed = allowed
        .tools
        .iter()
        .filter(|tool| gone(&looked.listed, &tool.name))
        .map(|tool| format!("{}: it is gone\n", tool.name));
    let text: String = new_or_changed.chain(removed).collect();
    match text.is_empty() {
        true => "nothing has changed\n".into(),
        false => text,
    }
}

fn indented(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
    lines.join("\n")
}
