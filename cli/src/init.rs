//! The command `planck init`.

use std::{
    fs::{DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::Args;
use planck_common::spec::ModelRef;

use super::{
    args::GlobalArgs,
    exit::{Exit, UsageError},
    output::say,
    project,
};
use planck_node::config::{self, Sources};
use planck_node::node;
use planck_toolbox::{
    Toolchain,
    project::{ProjectStanding, ProjectUse},
};

/// Writes ~/.planck/config.toml, or with --project the .planck/config.toml of this folder. It names
/// the model that agents use by default: the standard model of the first provider whose key is set.
/// An existing file is not changed.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  planck init               # for you, in ~/.planck\n  \
                        planck init --project     # for this folder, and trust it"
)]
pub struct Init {
    /// Write it for this folder, and trust what was written
    #[arg(long)]
    project: bool,
}

impl Init {
    pub fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let sources = global.sources(Vec::new())?;
        let model = node::default_model(&config::load(&sources)?.config);
        let is_home = sources
            .home
            .as_ref()
            .is_some_and(|home| home.canonicalize().ok() == sources.folder.canonicalize().ok());
        if self.project && !is_home {
            of_project(&sources, model.as_ref())
        } else {
            of_user(&sources, model.as_ref())
        }
    }
}

fn of_user(sources: &Sources, model: Option<&ModelRef>) -> anyhow::Result<Exit> {
    let folder = sources
        .user_folder()
        .context("HOME is not set, so there is no ~/.planck to write to")?;
    let file = write(&folder, 0o700, &text(model, &toolchains()))?;
    report(&file, model)
}

/// Writes the configuration of a project and trusts it. The project must not have a `.planck/` with
/// other content, because such content can be trusted only with `planck trust`, which shows it
/// first.
fn of_project(sources: &Sources, model: Option<&ModelRef>) -> anyhow::Result<Exit> {
    let before = project::find(sources, ProjectUse::Everything)?;
    let has_planck = |found: &project::FoundProject| match &found.standing {
        ProjectStanding::Nothing => false,
        ProjectStanding::Offered(offered) => !offered.snapshot.is_empty(),
        ProjectStanding::Trusted(_)
        | ProjectStanding::Unknown(_)
        | ProjectStanding::Changed(_)
        | ProjectStanding::Untrustable(_) => true,
    };
    if let Some(found) = before.filter(has_planck) {
        return Err(UsageError(format!(
            "{}; edit its config.toml, and run `{}`",
            project::describe(&found),
            found.command()
        ))
        .into());
    }
    let folder = sources.folder.join(planck_toolbox::project::FOLDER);
    // Others who use the project have other toolchains.
    let text = text(model, NO_TOOLCHAINS);
    let file = write(&folder, 0o755, &text)?;
    let found = project::find(sources, ProjectUse::Everything)?
        .context("the folder that was just written is gone")?;
    match &found.standing {
        // The user has not seen the skills for other programs.
        ProjectStanding::Unknown(snapshot) if snapshot.is_only(&text) => {
            found.trust(snapshot.clone().without_offered())?
        }
        ProjectStanding::Nothing
        | ProjectStanding::Trusted(_)
        | ProjectStanding::Offered(_)
        | ProjectStanding::Unknown(_)
        | ProjectStanding::Changed(_)
        | ProjectStanding::Untrustable(_) => {
            anyhow::bail!(
                "{} holds something else by now, so it is not trusted; read it, and run `{}`",
                folder.display(),
                found.command()
            )
        }
    };
    report(&file, model)
}

fn report(file: &Path, model: Option<&ModelRef>) -> anyhow::Result<Exit> {
    let said = match model {
        Some(ModelRef { provider, id, .. }) => format!("agents use {provider}:{id} where they name no model"),
        None => "no provider has a key, so it names no model yet; set ANTHROPIC_API_KEY or another, and edit it".into(),
    };
    say(&format!(
        "wrote {}: {said}\n`planck doctor` checks the rest\n",
        file.display()
    ))?;
    Ok(Exit::Done)
}

/// Creates `config.toml` in a folder, and the folder if it is missing. Fails if the file exists,
/// even as a symbolic link.
fn write(folder: &Path, mode: u32, text: &str) -> anyhow::Result<PathBuf> {
    match DirBuilder::new().mode(mode).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {}", folder.display()));
        }
        Ok(()) | Err(_) => {}
    }
    let file = folder.join("config.toml");
    match OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&file)
    {
        Ok(mut open) => open
            .write_all(text.as_bytes())
            .with_context(|| format!("cannot write {}", file.display()))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let what = format!(
                "{} is there already, and stays as it is; edit it, or move it away",
                file.display()
            );
            return Err(UsageError(what).into());
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot write {}", file.display()));
        }
    }
    Ok(file)
}

const NO_TOOLCHAINS: &str = "# toolchains = [\"rustup\", \"nvm\"]";

/// Returns the setting that admits the toolchains of this home folder.
fn toolchains() -> String {
    let names: Vec<String> = Toolchain::installed()
        .iter()
        .map(|toolchain| format!("{:?}", toolchain.name))
        .collect();
    match names.as_slice() {
        [] => NO_TOOLCHAINS.into(),
        names => format!("toolchains = [{}]", names.join(", ")),
    }
}

fn text(model: Option<&ModelRef>, toolchains: &str) -> String {
    let default = match model {
        Some(ModelRef { provider, id, .. }) => format!("default = \"{provider}:{id}\""),
        None => "# default = \"anthropic:claude-sonnet-5-5\"".into(),
    };
    format!(
        "# Planck's settings. `planck config show --origin` prints all that are in force, and docs/configuration.md lists every key.
# Keys stand in the environment (ANTHROPIC_API_KEY, OPENAI_API_KEY, …), never here.

[models]
# The model of agents that name none; `planck model ls` lists models and prices.
{default}

[tools]
# Toolchains in your home folder that tools may use. Everything else there stays hidden from them.
{toolchains}
# network = \"on\"              # tools may open connections, to this machine and its network as well

# [limits]
# session.max_cost_usd = 5.0  # US dollars of all agents of a session

# [providers.house]           # a server of your own, used as house:MODEL
# wire = \"chat\"
# base_url = \"https://llm.example.com/v1\"
# api_key = \"env:HOUSE_KEY\"
"
    )
}
