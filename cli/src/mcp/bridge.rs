//! The command `planck mcp bridge`.

use clap::Args;
use planck_host::environment;
use planck_mcp::{Bridge, ServerCommand, ServerOptions, ServerTransport, ServerUrl, ToolRules};
use planck_node::config::Period;
use planck_toolbox::{Launcher, Sandbox, minimal_environment};
use tokio_util::sync::CancellationToken;

use super::{ServerArgs, report};
use crate::{
    args::GlobalArgs,
    exit::{Exit, UsageError},
    log::Logs,
    node::Signals,
    sidecar::connection,
};

/// Starts the server as a child process, and starts it again when it ends. With an address, connects
/// to it by streamable HTTP. While the server is away, its tools stay and answer with an error. A
/// child gets only PATH, HOME, LANG, TMPDIR and the variables that --env names, and it ends with this
/// command. It does not run in the sandbox.
///
/// A tool counts as mutating, so that no node calls it twice, unless --trust-hints is given and the
/// server says otherwise. A tool whose schema a node would refuse is left out with a warning.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck mcp bridge time -- uvx mcp-server-time
  planck mcp bridge issues https://mcp.example.com/mcp --header 'Authorization=env:ISSUES_KEY'
  planck mcp bridge files --trust-hints -- npx -y @modelcontextprotocol/server-filesystem .")]
pub struct BridgeArgs {
    /// The name of the sidecar
    name: String,
    /// How long the server may take to answer after it was started
    #[arg(long, value_name = "TIME", default_value = "30s")]
    start_within: Period,
    #[command(flatten)]
    server: ServerArgs,
}

impl BridgeArgs {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let connection = connection(global)?;
        let report = report(&self.name);
        let bridge = Bridge::new(
            self.name.clone(),
            self.options()?,
            Launcher::of_this_binary(None),
            report,
        );
        let logs = Logs::start_if_asked(&global.config()?)?;
        let mut signals = Signals::listen()?;
        let stop = CancellationToken::new();
        let running = bridge.run(connection, stop.clone());
        let Some(done) = signals.until_done(running, &stop).await else {
            return Ok(Exit::Failed);
        };
        logs.end().await;
        done?;
        Ok(Exit::Done)
    }

    fn options(self) -> anyhow::Result<ServerOptions> {
        let server = self.server;
        let is_missing = |name: &&String| environment::variable(name).is_none();
        if let Some(name) = server.env.iter().find(is_missing) {
            return Err(UsageError(format!("the variable `{name}` of --env is not set")).into());
        }
        let headers = server.headers();
        let mut command = server.command.into_iter().map(Into::into);
        let transport = match (server.url, command.next()) {
            (Some(url), _) => ServerTransport::Http(ServerUrl { headers, ..url }),
            (None, Some(program)) => ServerTransport::Stdio(ServerCommand {
                program,
                args: command.collect(),
                dir: std::env::current_dir()?,
                env: minimal_environment(&server.env),
                sandbox: Sandbox::off(),
            }),
            (None, None) => {
                return Err(UsageError("give an address, or a command behind `--`".into()).into());
            }
        };
        Ok(ServerOptions {
            transport,
            start_within: self.start_within.0,
            timeout: None,
            rules: ToolRules {
                trusts_hints: server.trust_hints,
                ..ToolRules::default()
            },
            pins: None,
        })
    }
}
