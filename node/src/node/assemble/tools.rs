//! The tools of a node: built-in ones, external ones, and those that read skills.

use std::{io, sync::Arc};

use super::{AssemblyError, folders};
use crate::{
    config::{Config, Sandbox as Wanted},
    skill::Skills,
    tools::{
        Bounds, Caps, Catalogue, Files, Heart, Launcher, Roots, Sandbox, Shell, Tool, built_in, external,
        process::heart::Beating, sandbox::Demand,
    },
};

/// What agents of this node can be given.
pub(super) struct Workshop {
    pub(super) catalogue: Catalogue,
    pub(super) skills: Skills,
    /// Tells the reapers that this node lives, as long as it is kept.
    pub(super) heart: Option<Beating>,
}

pub(super) fn build(config: &Config) -> Result<Workshop, AssemblyError> {
    let (skills, problems) = Skills::load(&folders(&config.skills.dirs));
    for problem in problems {
        tracing::warn!("{problem}");
    }
    let files = Files::new(roots(config));
    let (launcher, heart) = launcher(config).map_err(AssemblyError::Threads)?;
    let shell = Shell::probing(launcher, demand(config), &config.tools.pass_environment);
    let catalogue = Catalogue::default();
    let built_in = built_in(&files, &shell, config.tools.bash_timeout.0);
    for tool in built_in.into_iter().chain(external(config, &files, &shell)) {
        if let Err(error) = catalogue.add(tool) {
            tracing::warn!(%error, "a tool is left out");
        }
    }
    Ok(Workshop { catalogue, skills, heart })
}

fn external(config: &Config, files: &Files, shell: &Shell) -> Vec<Arc<dyn Tool>> {
    let (tools, problems) = external::load(&folders(&config.tools.dirs), files, shell);
    for problem in problems {
        tracing::warn!("{problem}");
    }
    tools
}

fn roots(config: &Config) -> Roots {
    let workspaces = config.workspaces.0.values().cloned().collect();
    let shared = config.tools.workspace_roots.iter().chain(&config.skills.dirs).cloned().collect::<Vec<_>>();
    Roots::confined(workspaces, folders(&shared))
}

/// In a cluster a process also ends when its node was stopped: another one may have taken its session up.
fn launcher(config: &Config) -> io::Result<(Launcher, Option<Beating>)> {
    if config.nats.url.is_none() {
        return Ok((Launcher::of_this_binary(None), None));
    }
    let heart = Heart::default();
    let beating = heart.start()?;
    Ok((Launcher::of_this_binary(Some(heart)), Some(beating)))
}

/// What tool processes are confined by, for `doctor`.
pub(crate) async fn sandbox(config: &Config) -> Sandbox {
    Sandbox::probe(demand(config), true).await
}

fn demand(config: &Config) -> Demand {
    match config.tools.sandbox {
        Wanted::Auto => Demand::Available,
        Wanted::Required => Demand::Required,
        Wanted::Off => Demand::Off,
    }
}

/// What bounds the calls of each agent.
pub(super) fn bounds(config: &Config) -> Bounds {
    let section = &config.tools;
    let caps = Caps { lines: section.max_lines, bytes: section.max_bytes };
    Bounds { at_once: section.concurrency as usize, caps, timeout: section.timeout.0 }
}
