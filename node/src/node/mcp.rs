//! The MCP servers of a node. Each is kept in use, and its tools are those of a sidecar that only the
//! agents of this node call.

mod per_session;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::Path,
    sync::{Arc, Weak},
};

use planck_common::{SidecarId, event::ToolEffect};
use planck_mcp::{
    HeaderSource, Looked, McpServer, Pins, Report, ServerCommand, ServerOptions, ServerTransport,
    ServerUrl, ToolRules,
};
use planck_toolbox::{Launcher, Sandbox, cgroup::Groups, minimal_environment};
use tokio::{sync::Semaphore, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use self::per_session::{PerSession, SessionServers};
use super::assemble::{limits, sandbox, sandbox_with};
use crate::{
    config::{
        Config, McpServer as McpSection, Network, ServerSandbox, ServerScope, ServerVariable,
    },
    services::Services,
    sidecar::{InProcessTool, OwnSidecar, Sidecars},
};

/// The folder below `node.data_dir` with the tools of each server that were allowed.
const PINS: &str = "mcp";

/// The maximum number of tools that are named of those that are left out.
const NAMED: usize = 3;

/// The sandboxes in which servers run.
#[derive(Clone)]
pub struct ServerSandboxes {
    pub confined: Sandbox,
    pub with_network: Sandbox,
}

impl ServerSandboxes {
    /// Finds the sandboxes. `of_tools` is that of tools, which is one of them. The other one is tried
    /// only if a server needs it.
    pub async fn beside(config: &Config, of_tools: impl Future<Output = Sandbox>) -> Self {
        let tools_have_network = config.tools.network == Network::On;
        let wanted = match tools_have_network {
            true => ServerSandbox::On,
            false => ServerSandbox::Network,
        };
        let mut servers = config.mcp.0.values();
        let is_used = servers.any(|server| server.url.is_none() && server.sandbox == wanted);
        let other = async {
            match is_used {
                true => sandbox_with(config, !tools_have_network).await,
                false => Sandbox::refused("no MCP server uses it"),
            }
        };
        let (of_tools, other) = tokio::join!(of_tools, other);
        let (confined, with_network) = match tools_have_network {
            true => (other, of_tools),
            false => (of_tools, other),
        };
        Self {
            confined,
            with_network,
        }
    }

    /// Returns the sandbox of tools.
    pub fn of_tools(&self, config: &Config) -> &Sandbox {
        match config.tools.network {
            Network::On => &self.with_network,
            Network::Off => &self.confined,
        }
    }
}

/// Returns the launcher of servers, which end with this process.
pub fn launcher(config: &Config, groups: Option<Groups>) -> Launcher {
    Launcher::of_this_binary(None)
        .limited(limits(config))
        .grouped(groups)
}

/// The servers of a node.
#[derive(Clone, Default)]
pub struct McpServers(Vec<ConfiguredServer>);

#[derive(Clone)]
struct ConfiguredServer {
    name: SidecarId,
    options: ServerOptions,
    launcher: Launcher,
    per_session: Option<PerSession>,
}

impl McpServers {
    /// Returns the configured servers. `launcher` starts those that are processes.
    pub fn of(config: &Config, launcher: &Launcher, sandboxes: &ServerSandboxes) -> Self {
        let places = Arc::new(Semaphore::new(per_session::MOST));
        let servers = config.mcp.0.iter().filter_map(|(name, section)| {
            // The names were checked when the configuration was read.
            let name = SidecarId::parse(name).ok()?;
            let options = options(config, &name, section, sandboxes)?;
            Some(ConfiguredServer {
                name,
                options,
                launcher: launcher.clone(),
                per_session: (section.per == ServerScope::Session).then(|| PerSession {
                    dir: section.dir.clone(),
                    stay: section.stay.0,
                    places: places.clone(),
                }),
            })
        });
        Self(servers.collect())
    }

    /// Returns the configured servers for a command that runs no node.
    pub async fn load(config: &Config) -> Self {
        let sandboxes = ServerSandboxes::beside(config, sandbox(config)).await;
        Self::of(config, &launcher(config, None), &sandboxes)
    }

    /// Connects to a server once.
    ///
    /// # Errors
    /// Returns why the server cannot be used.
    pub async fn look(&self, name: &str, report: &Report) -> Result<Looked, String> {
        let server = self.find(name)?;
        McpServer::look(&server.options, &server.launcher, report).await
    }

    /// Keeps a server in use until `stop` is cancelled.
    ///
    /// # Errors
    /// Returns an error if no server of this name is configured.
    pub fn start(
        &self,
        name: &str,
        report: Report,
        stop: CancellationToken,
    ) -> Result<(McpServer, JoinHandle<()>), String> {
        let ConfiguredServer {
            options, launcher, ..
        } = self.find(name)?.clone();
        Ok(McpServer::start(options, launcher, report, stop))
    }

    fn find(&self, name: &str) -> Result<&ConfiguredServer, String> {
        let mut servers = self.0.iter();
        servers
            .find(|server| server.name.as_str() == name)
            .ok_or_else(|| format!("no MCP server `{name}` is configured"))
    }

    pub fn names(&self) -> Vec<SidecarId> {
        self.0.iter().map(|server| server.name.clone()).collect()
    }

    /// Returns the tasks that keep the servers in use until `stop` is cancelled. Each calls `changed`
    /// when the tools of its server have changed.
    pub fn keep_in_use<C: Fn() + Clone + Send + Sync + 'static>(
        &self,
        services: &Arc<Services>,
        changed: C,
        stop: &CancellationToken,
    ) -> Vec<impl Future<Output = ()> + Send + use<C>> {
        let task = |server: &ConfiguredServer| {
            server.clone().keep_in_use(
                Arc::downgrade(services),
                services.sidecars.clone(),
                changed.clone(),
                stop.clone(),
            )
        };
        self.0.iter().map(task).collect()
    }
}

impl ConfiguredServer {
    async fn keep_in_use(
        self,
        services: Weak<Services>,
        sidecars: Sidecars,
        changed: impl Fn() + Sync,
        stop: CancellationToken,
    ) {
        let per_session = self.per_session.clone();
        let sessions = per_session.map(|per_session| {
            SessionServers::new(self.clone(), per_session, services, stop.clone())
        });
        let show = |server: &McpServer| {
            if let Some(sidecar) = state(server, sessions.as_ref())
                && sidecars.set_own(self.name.clone(), sidecar)
            {
                changed();
            }
        };
        let Some(sessions) = &sessions else {
            self.keep(show, |_| false, &stop).await;
            return;
        };
        // If the allowed tools cannot be read, the start tells why.
        let known = McpServer::known(&self.options).ok().flatten();
        let first = match known {
            Some(server) => server,
            None => self.keep(show, McpServer::is_up, &stop).await,
        };
        sessions.show(&first, show).await;
    }

    /// Keeps a process or connection in use until `stop` is cancelled or `is_enough` holds.
    async fn keep(
        &self,
        show: impl Fn(&McpServer),
        is_enough: impl Fn(&McpServer) -> bool,
        stop: &CancellationToken,
    ) -> McpServer {
        let (stop, launcher) = (stop.child_token(), self.launcher.clone());
        let (mut server, supervising) = McpServer::start(
            self.options.clone(),
            launcher,
            report(&self.name),
            stop.clone(),
        );
        loop {
            show(&server);
            if is_enough(&server) {
                stop.cancel();
            }
            if !server.changed().await {
                break;
            }
        }
        if let Err(panic) = supervising.await {
            let name = &self.name;
            tracing::error!(server = %name, %panic, "an MCP server is not kept in use any more");
        }
        server
    }
}

fn report(name: &SidecarId) -> Report {
    let name = name.clone();
    Arc::new(move |line: &str| tracing::info!(server = %name, "{line}"))
}

/// Returns what a server offers now, or `None` if this is not known while it is being started.
/// `sessions` has the processes that take the calls, unless it is the server itself.
fn state(server: &McpServer, sessions: Option<&SessionServers>) -> Option<OwnSidecar> {
    let Some(offer) = server.offer() else {
        return server.away().map(|why| OwnSidecar {
            is_settled: server.unusable().is_some(),
            problem: Some(why),
            ..OwnSidecar::starting()
        });
    };
    let tools = server.tools(&offer);
    let tools = tools.into_iter().filter_map(|tool| {
        let tool = InProcessTool::new(tool);
        let tool = tool.inspect_err(|why| tracing::warn!("{why}")).ok()?;
        Some(tool.found_by(sessions.map(SessionServers::finder)))
    });
    Some(OwnSidecar {
        version: offer.version.clone(),
        tools: tools.collect(),
        is_running: sessions.map_or_else(|| server.is_up(), SessionServers::are_running),
        is_settled: true,
        problem: server.away().or_else(|| problem(&offer.left_out)),
    })
}

fn problem(left_out: &[String]) -> Option<String> {
    let named = left_out.iter().take(NAMED).cloned();
    let mut lines: Vec<String> = named.collect();
    if left_out.len() > NAMED {
        lines.push(format!("and {} more", left_out.len() - NAMED));
    }
    (!lines.is_empty()).then(|| lines.join("; "))
}

/// Returns the options of a server, or `None` if it has neither a command nor an address, which was
/// reported when the configuration was read.
fn options(
    config: &Config,
    name: &SidecarId,
    section: &McpSection,
    sandboxes: &ServerSandboxes,
) -> Option<ServerOptions> {
    let mut command = section.command.iter().map(Into::into);
    let transport = match (&section.url, command.next()) {
        (Some(url), _) => ServerTransport::Http(ServerUrl {
            headers: headers(section),
            ..url.reveal().parse().ok()?
        }),
        (None, Some(program)) => ServerTransport::Stdio(ServerCommand {
            program,
            args: command.collect(),
            dir: absolute(&section.dir),
            env: environment(&section.env),
            sandbox: match section.sandbox {
                ServerSandbox::On => sandboxes.confined.clone(),
                ServerSandbox::Network => sandboxes.with_network.clone(),
                ServerSandbox::Off => Sandbox::off(),
            },
        }),
        (None, None) => return None,
    };
    let folder = config.node.data_dir.join(PINS);
    let pins = Pins::new(&folder, name.as_str(), &transport);
    let effects = section.effects.0.iter();
    let effects =
        effects.filter_map(|(tool, effect)| Some((tool.clone(), ToolEffect::find(effect)?)));
    Some(ServerOptions {
        transport,
        start_within: section.start_within.0,
        timeout: Some(
            section
                .timeout
                .as_ref()
                .map_or(config.sidecars.tool_timeout.0, |period| period.0),
        ),
        rules: ToolRules {
            allow: section.allow.clone(),
            deny: section.deny.clone(),
            effects: effects.collect(),
            trusts_hints: section.trust_hints,
        },
        pins: Some(pins),
    })
}

/// Returns the environment of a server. A variable with a value replaces the one of the node.
fn environment(variables: &[ServerVariable]) -> Vec<(OsString, OsString)> {
    let names: Vec<String> = variables
        .iter()
        .map(|variable| variable.name.clone())
        .collect();
    let mut environment: BTreeMap<_, _> = minimal_environment(&names).into_iter().collect();
    let with_value = variables
        .iter()
        .filter_map(|variable| Some((&variable.name, variable.value.as_ref()?.reveal())));
    environment.extend(with_value.map(|(name, value)| (name.into(), value.into())));
    environment.into_iter().collect()
}

fn headers(section: &McpSection) -> Vec<(String, HeaderSource)> {
    let headers = section.headers.0.iter();
    let source = |text: &str| HeaderSource::parse(text);
    headers
        .map(|(name, text)| (name.clone(), source(text.source.reveal())))
        .collect()
}

/// Returns an absolute path. A relative one begins where the node was started.
fn absolute(dir: &Path) -> std::path::PathBuf {
    // A process starts in the folder without links, which the sandbox needs.
    dir.canonicalize().unwrap_or_else(|_| dir.to_owned())
}
