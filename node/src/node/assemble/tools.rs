//! Builds the tools of a node: built-in tools, external tools, and plain subjects as tools. Also
//! loads the skills, and lists all of them without a running node.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use planck_toolbox::{
    BadTool, CallBounds, Caps, Files, Launcher, ReaperHeartbeat, Roots, Sandbox, Shell, Tool,
    ToolCatalogue, Toolchain, Unsandboxed, Wall, built_in, built_in_names,
    cgroup::Groups,
    external, file_tools,
    project::{NameClash, ProjectSource, SourcePart},
    reap::CommandLimits,
    sandbox::{self, Demand},
    skill::{self, Skills},
};

use super::AssemblyError;
use crate::{
    agent::search::TOOL_SEARCH,
    bus::Bus,
    config::{Config, Network, Sandbox as Wanted, Unsandboxed as UnsandboxedWanted},
    node::mcp::{self, McpServers, ServerSandboxes},
    sidecar::{self, DefaultTimeouts},
    team,
};

/// The tools and skills that are available to the agents of this node.
pub(super) struct NodeTools {
    pub(super) catalogue: ToolCatalogue,
    pub(super) skills: Skills,
    /// The sender of heartbeats to the reapers, or `None` without a cluster.
    pub(super) heartbeat: Option<ReaperHeartbeat>,
    /// The names that both the user and the project use for a tool or a skill.
    pub(super) clashes: Vec<NameClash>,
    pub(super) mcp: McpServers,
    /// Whether the processes of tools have the network.
    pub(super) have_network: bool,
}

/// The control groups and the sandbox that this machine offers for processes.
pub(super) struct Launching {
    groups: Option<Groups>,
    sandboxes: ServerSandboxes,
}

/// Tries which control groups and which sandbox this machine offers.
pub(super) async fn try_launching(config: &Config) -> Launching {
    let sandboxes = ServerSandboxes::beside(config, sandbox(config));
    let (groups, sandboxes) = tokio::join!(groups(config), sandboxes);
    Launching { groups, sandboxes }
}

pub(super) fn build(
    config: &Config,
    bus: &Arc<dyn Bus>,
    Launching { groups, sandboxes }: Launching,
    wall: Wall,
    is_attended: bool,
) -> Result<NodeTools, AssemblyError> {
    let (skills, of_skills) = skills(config);
    let files = Files::new(roots(config), caps(config));
    let heartbeat = heartbeat(config);
    let launcher = Launcher::of_this_binary(heartbeat.clone())
        .limited(limits(config))
        .grouped(groups.clone());
    let mcp = McpServers::of(config, &mcp::launcher(config, groups), &sandboxes);
    let sandbox = sandboxes.of_tools(config).clone();
    check(&sandbox)?;
    let wall = (!sandbox.is_off()).then_some(wall);
    let have_network = sandbox.has_network();
    let unsandboxed = unsandboxed(config, &sandbox, is_attended);
    let shell = Shell::new(
        launcher,
        sandbox,
        wall,
        &config.tools.pass_environment,
        caps(config),
    );
    let catalogue = ToolCatalogue::default();
    let built_in = built_in(&files, &shell, config.tools.bash_timeout.0, unsandboxed);
    let (external, of_tools) = external(config, &files, &shell);
    let clashes = external::clashes(&of_tools)
        .chain(skill::clashes(&of_skills))
        .cloned()
        .collect();
    for tool in built_in
        .into_iter()
        .chain(external)
        .chain(sidecar::plain_tools(config, bus))
    {
        if let Err(error) = catalogue.add(tool) {
            tracing::warn!(%error, "left out a tool");
        }
    }
    Ok(NodeTools {
        catalogue,
        skills,
        heartbeat,
        clashes,
        mcp,
        have_network,
    })
}

/// Returns whether a call can ask a person to let it out of the sandbox.
fn unsandboxed(config: &Config, sandbox: &Sandbox, is_attended: bool) -> Unsandboxed {
    match config.tools.unsandboxed {
        UnsandboxedWanted::Ask if sandbox.is_open() => Unsandboxed::Off,
        UnsandboxedWanted::Ask if is_attended => Unsandboxed::Ask,
        UnsandboxedWanted::Ask => Unsandboxed::Unattended,
        UnsandboxedWanted::Off => Unsandboxed::Off,
    }
}

/// Returns the tools of a node in the process of another program: the program's own and, if the
/// program wants them, the tools for files. None of these starts a process.
pub(super) fn embedded(
    config: &Config,
    own: Vec<Arc<dyn Tool>>,
    with_files: bool,
) -> Result<NodeTools, BadTool> {
    let (skills, of_skills) = skills(config);
    let catalogue = ToolCatalogue::default();
    let files = with_files.then(|| file_tools(&Files::new(roots(config), caps(config))));
    for tool in files.into_iter().flatten().chain(own) {
        catalogue.add(tool)?;
    }
    Ok(NodeTools {
        catalogue,
        skills,
        heartbeat: heartbeat(config),
        clashes: skill::clashes(&of_skills).cloned().collect(),
        mcp: McpServers::default(),
        have_network: true,
    })
}

fn skills(config: &Config) -> (Skills, Vec<skill::InvalidSkill>) {
    let (skills, problems) = Skills::load(&config.sources(SourcePart::Skills));
    for problem in &problems {
        tracing::warn!("{problem}");
    }
    (skills, problems)
}

/// Returns the sender of heartbeats to the reapers, or `None` without a cluster. In a cluster,
/// another node may have taken the session over when this process is stopped (SIGSTOP). The reapers
/// therefore kill their processes when the heartbeats cease.
fn heartbeat(config: &Config) -> Option<ReaperHeartbeat> {
    let in_cluster = config.nats.url.is_some();
    in_cluster.then(|| ReaperHeartbeat::new(config.cluster.times().reap_after))
}

/// Returns the settings for discovering sidecars and for waiting for their answers.
pub(super) fn sidecars(config: &Config) -> Result<sidecar::SidecarSettings, AssemblyError> {
    Ok(sidecar::SidecarSettings {
        prefix: super::prefix(config)?,
        allow: config.sidecars.allow.clone(),
        patience: DefaultTimeouts {
            tool: config.sidecars.tool_timeout.0,
            ..DefaultTimeouts::default()
        },
        own: Vec::new(),
    })
}

/// Returns the external tools, except those that have the name of a tool between agents, of a tool
/// that reads skills or of `tool_search`. Also returns the problems of the files that describe external tools.
fn external(
    config: &Config,
    files: &Files,
    shell: &Shell,
) -> (Vec<Arc<dyn Tool>>, Vec<external::InvalidTool>) {
    let (tools, problems) = external::load(&config.sources(SourcePart::Tools), files, shell);
    for problem in &problems {
        tracing::warn!("{problem}");
    }
    let (taken, tools): (Vec<_>, Vec<_>) = tools.into_iter().partition(|tool| {
        let name = tool.spec().name.as_str();
        team::SESSION_TOOLS.contains(&name) || name == TOOL_SEARCH
    });
    for tool in taken {
        tracing::warn!(
            "an external tool is left out: agents have a tool `{}` already",
            tool.spec().name
        );
    }
    (tools, problems)
}

fn roots(config: &Config) -> Roots {
    let workspaces = config.workspaces.0.values().cloned().collect();
    let skills = config
        .sources(SourcePart::Skills)
        .iter()
        // The repository chose these folders, and tools see the repository anyway.
        .filter(|source| !source.is_offered())
        .map(ProjectSource::dir)
        .collect::<Vec<_>>();
    Roots::confined(workspaces, folders(&config.tools.workspace_roots)).with_readable(skills)
}

/// Returns the folders of a setting without duplicates. Two folders are duplicates if their
/// absolute paths are equal.
fn folders(dirs: &[PathBuf]) -> Vec<PathBuf> {
    let mut known = BTreeSet::new();
    let is_new = |dir: &&PathBuf| {
        known.insert(std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf()))
    };
    dirs.iter().filter(is_new).cloned().collect()
}

/// Chooses the sandbox for tool processes by trying which one works on this machine.
pub async fn sandbox(config: &Config) -> Sandbox {
    sandbox_with(config, config.tools.network == Network::On).await
}

pub async fn sandbox_with(config: &Config, network: bool) -> Sandbox {
    let section = &config.tools;
    let demand = match section.sandbox {
        Wanted::Auto => Demand::Available,
        Wanted::Required => Demand::Required,
        Wanted::Off => Demand::Off,
    };
    // The names were checked when the configuration was read.
    let toolchains = section.toolchains.iter();
    let toolchains = toolchains.filter_map(|name| Toolchain::find(name));
    Sandbox::probe(sandbox::SandboxSettings {
        demand,
        network,
        readable: folders(&section.readable),
        toolchains: toolchains.collect(),
        bubblewrap: section.bubblewrap.clone(),
        tmp: section.limits.tmp.0,
        planck: None,
    })
    .await
}

/// Returns an error if the configuration requires a sandbox and this machine does not support a
/// complete one. Otherwise logs how tool processes are confined.
fn check(sandbox: &Sandbox) -> Result<(), AssemblyError> {
    let (reason, remedy) = (sandbox.reason(), sandbox.remedy());
    if sandbox.refuses() {
        return Err(AssemblyError::Config(format!(
            "`tools.sandbox` is required, and this machine does not support a complete sandbox: {reason} ({remedy})"
        )));
    }
    if sandbox.is_open() && nix::unistd::geteuid().is_root() {
        tracing::warn!(
            reason,
            remedy,
            "tool processes run as root without a sandbox, and can do anything here"
        );
    } else if sandbox.is_open() {
        tracing::warn!(
            reason,
            remedy,
            "tool processes run without a sandbox, with the rights of this node's user"
        );
    } else if !sandbox.gaps().is_empty() {
        tracing::warn!(gaps = ?sandbox.gaps(), reason, remedy, "this kernel's Landlock is old: tool processes are confined in part");
    } else if remedy.is_empty() {
        let reason = (!reason.is_empty()).then_some(reason);
        tracing::info!(
            sandbox = sandbox.tier(),
            reason,
            "tool processes are confined"
        );
    } else {
        tracing::info!(
            sandbox = sandbox.tier(),
            reason,
            remedy,
            "tool processes are confined, but not by bubblewrap, which confines more"
        );
    }
    Ok(())
}

/// Prepares the control groups for tool calls. Returns `None` if this machine does not support
/// them. Calls also work without them.
async fn groups(config: &Config) -> Option<Groups> {
    let limits = limits(config);
    match tokio::task::spawn_blocking(move || Groups::prepare(limits)).await {
        Ok(Ok(groups)) => {
            tracing::info!(folder = %groups.folder().display(), tasks = groups.tasks(), "each tool call has a control group");
            Some(groups)
        }
        Ok(Err(why)) => {
            tracing::info!(%why, "tool calls have no control groups");
            None
        }
        Err(why) => {
            tracing::warn!(%why, "tool calls have no control groups");
            None
        }
    }
}

/// Returns the resource limits for the processes of one tool call.
pub fn limits(config: &Config) -> CommandLimits {
    let limits = &config.tools.limits;
    CommandLimits {
        processes: limits.processes,
        memory: limits.memory.0,
        file_size: limits.file_size.0,
        open_files: limits.open_files,
        disk_free: limits.disk_free.0,
    }
}

/// Returns the limits on the tool calls of each agent.
pub(super) fn bounds(config: &Config) -> CallBounds {
    let section = &config.tools;
    CallBounds {
        at_once: section.concurrency as usize,
        caps: caps(config),
        timeout: section.timeout.0,
    }
}

fn caps(config: &Config) -> Caps {
    Caps {
        lines: config.tools.max_lines,
        bytes: config.tools.max_bytes,
    }
}

pub struct Inventory {
    /// The names of the built-in tools, the external tools, the tools between agents and the tools
    /// that read skills.
    pub tools: BTreeSet<String>,
    pub skills: Skills,
    /// The problems of the files, each with the file and what is wrong with it.
    pub problems: Vec<String>,
    pub clashes: Vec<NameClash>,
}

impl Inventory {
    pub fn of(config: &Config) -> Self {
        let (skills, of_skills) = Skills::load(&config.sources(SourcePart::Skills));
        let (found, of_tools) = external::names(&config.sources(SourcePart::Tools));
        let mut problems: Vec<String> = of_tools.iter().map(ToString::to_string).collect();
        problems.extend(of_skills.iter().map(ToString::to_string));
        let clashes = external::clashes(&of_tools)
            .chain(skill::clashes(&of_skills))
            .cloned()
            .collect();
        let mut tools: BTreeSet<String> = built_in_names()
            .into_iter()
            .chain(team::SESSION_TOOLS)
            .chain([planck_toolbox::outside::ASK_USER])
            .map(Into::into)
            .collect();
        for (name, file) in found {
            if !tools.insert(name.clone()) {
                problems.push(format!(
                    "{}: there is a tool `{name}` already; rename this one",
                    file.display()
                ));
            }
        }
        Self {
            tools,
            skills,
            problems,
            clashes,
        }
    }
}
