//! The command `planck mcp add`.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::Path,
};

use anyhow::{Context as _, anyhow};
use clap::{Args, builder::PossibleValuesParser};
use planck_common::id::is_id;
use planck_host::whole_file;
use planck_node::{
    config::{
        Choice as _, ConfiguredUrl, HeaderText, McpServer, NamedSettings, Secret, ServerSandbox,
        ServerVariable, is_secret_name,
    },
    node::mcp::McpServers,
};
use toml::{Table, Value};

use super::{ServerArgs, described, report};
use crate::{
    args::GlobalArgs,
    exit::{Exit, UsageError},
    output::say,
};

/// Starts the server as a node would, shows its tools, allows them, and adds the server to
/// ~/.planck/config.toml. If the server cannot be used, nothing is written. Nodes that start
/// afterwards have its tools, named NAME__TOOL; agents that name no tools get them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck mcp add time -- mcp-server-time
  planck mcp add files --sandbox network -- npx -y @modelcontextprotocol/server-filesystem .
  planck mcp add issues https://mcp.example.com/mcp --header 'Authorization=env:ISSUES_KEY'")]
pub struct AddArgs {
    /// The server's name, which becomes that of a sidecar
    name: String,
    /// Whether the server is confined to this folder without a network (`on`), with one
    /// (`network`), or not at all (`off`)
    #[arg(long, default_value = "on", value_parser = sandboxes())]
    sandbox: String,
    #[command(flatten)]
    server: ServerArgs,
}

impl AddArgs {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let name = self.name.clone();
        if !is_id(&name) {
            let why = format!("`{name}` cannot name a server; use 1 to 64 of A-Z a-z 0-9 _ -");
            return Err(UsageError(why).into());
        }
        self.check_keys()?;
        let sources = global.sources(Vec::new())?;
        let folder = sources
            .user_folder()
            .context("HOME is not set, so there is no ~/.planck to write to")?;
        let file = folder.join("config.toml");
        let mut config = global.config_to_act(None)?;
        if config.mcp.0.contains_key(&name) {
            let why =
                format!("there is an MCP server `{name}` already; take `[mcp.{name}]` out first");
            return Err(UsageError(why).into());
        }
        let written = read(&file)?;
        config.mcp.0.insert(name.clone(), self.section()?);
        let servers = McpServers::load(&config).await;
        let looked = servers.look(&name, &report(&name)).await;
        let looked = looked
            .map_err(|why| anyhow!("nothing was written: the MCP server cannot be used: {why}"))?;
        say(&described(&looked))?;
        looked.allow().map_err(|why| anyhow!(why))?;
        write(&folder, &file, &format!("{written}{}", self.entry()?))?;
        say(&format!("wrote `[mcp.{name}]` to {}\n", file.display()))?;
        Ok(Exit::Done)
    }

    /// Refuses a key that would stand in the file.
    fn check_keys(&self) -> Result<(), UsageError> {
        let mut variables = self.server.env.iter().map(|text| ServerVariable::of(text));
        let is_key =
            |variable: &ServerVariable| variable.value.is_some() && is_secret_name(&variable.name);
        if let Some(ServerVariable { name, .. }) = variables.find(is_key) {
            return Err(UsageError(format!(
                "a key does not stand in a file; set the variable, and write `--env {name}`"
            )));
        }
        let is_reference = |text: &str| text.starts_with("env:") || text.starts_with("file:");
        let mut headers = self.server.header.iter();
        match headers.find(|(name, text)| is_secret_name(name) && !is_reference(text)) {
            Some((name, _)) => Err(UsageError(format!(
                "a key does not stand in a file; write `--header {name}=env:VARIABLE` or `{name}=file:PATH`"
            ))),
            None => Ok(()),
        }
    }

    fn section(&self) -> anyhow::Result<McpServer> {
        let header = |text: &String| HeaderText {
            value: Secret::new(""),
            source: Secret::new(text.clone()),
        };
        let headers = self.server.header.iter();
        Ok(McpServer {
            command: self.server.command.clone(),
            url: self.url().map(ConfiguredUrl::new),
            headers: NamedSettings(
                headers
                    .map(|(name, text)| (name.clone(), header(text)))
                    .collect(),
            ),
            env: self
                .server
                .env
                .iter()
                .map(|text| ServerVariable::of(text))
                .collect(),
            dir: std::env::current_dir()?,
            sandbox: ServerSandbox::find(&self.sandbox).unwrap_or(ServerSandbox::On),
            trust_hints: self.server.trust_hints,
            ..McpServer::default()
        })
    }

    fn url(&self) -> Option<String> {
        self.server.url.as_ref().map(|url| url.url.to_string())
    }

    /// Returns the entry as it stands in the file.
    fn entry(&self) -> anyhow::Result<String> {
        let mut entry = Table::new();
        let mut set = |key: &str, value: Value| drop(entry.insert(key.into(), value));
        match self.url() {
            Some(url) => set("url", url.into()),
            None => {
                set("command", self.server.command.clone().into());
                set("sandbox", self.sandbox.clone().into());
            }
        }
        if !self.server.env.is_empty() {
            set("env", self.server.env.clone().into());
        }
        if self.server.trust_hints {
            set("trust_hints", true.into());
        }
        if !self.server.header.is_empty() {
            let headers = self.server.header.iter();
            let headers: Table = headers
                .map(|(name, text)| (name.clone(), text.clone().into()))
                .collect();
            set("headers", headers.into());
        }
        let named = Table::from_iter([(self.name.clone(), entry.into())]);
        let whole = Table::from_iter([("mcp".to_owned(), Value::from(named))]);
        Ok(format!("\n{}", toml::to_string(&whole)?))
    }
}

fn sandboxes() -> PossibleValuesParser {
    PossibleValuesParser::new(ServerSandbox::ALL.iter().map(|(name, _)| *name))
}

fn read(file: &Path) -> anyhow::Result<String> {
    match fs::read_to_string(file) {
        Ok(text) if text.is_empty() || text.ends_with('\n') => Ok(text),
        Ok(text) => Ok(format!("{text}\n")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

fn write(folder: &Path, file: &Path, text: &str) -> anyhow::Result<()> {
    let written = || {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        // The file may be a link into a folder of settings that the user keeps elsewhere.
        let target = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        let mode = fs::metadata(&target).map_or(0o644, |known| known.permissions().mode() & 0o777);
        whole_file::replace(&target, text.as_bytes(), mode)
    };
    written().map_err(|error: io::Error| anyhow!("cannot write {}: {error}", file.display()))
}
