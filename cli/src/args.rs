//! The flags that every command accepts, and the configuration that results from them.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use super::{output::warn, project};
use planck_host::terminal::clean_line;
use planck_node::config::{self, Config, Loaded, Problems, Sources};
use planck_toolbox::project::{Admitted, ProjectStanding, ProjectUse};

/// The heading under which the help of each command lists these flags.
const HEADING: &str = "Global options";

#[derive(Debug, Clone, Args)]
pub struct GlobalArgs {
    /// A configuration file to read in addition to the usual ones
    #[arg(long, global = true, help_heading = HEADING, value_name = "FILE")]
    config: Option<PathBuf>,
    /// NATS servers, separated by commas
    #[arg(long, global = true, help_heading = HEADING, value_name = "URL")]
    nats: Option<String>,
    /// `sqlite:DIR` or `postgres://…`
    #[arg(long, global = true, help_heading = HEADING, value_name = "URL")]
    store: Option<String>,
    /// Ignore this folder's `.planck/`, even if it is trusted
    #[arg(long, global = true, help_heading = HEADING)]
    no_project: bool,
}

/// A configuration key that a flag sets: the key, the value, and the name of the flag.
type Flag = (String, String, String);

impl GlobalArgs {
    pub fn sources(&self, more: Vec<Flag>) -> anyhow::Result<Sources> {
        let flag = |key: &str, value: &Option<String>, flag: &str| {
            Some((key.into(), value.clone()?, flag.into()))
        };
        let own = [
            flag("nats.url", &self.nats, "--nats"),
            flag("store.url", &self.store, "--store"),
        ];
        let flags = own.into_iter().flatten().chain(more).collect();
        Sources::of_process(self.config.clone(), flags).context("cannot find the working directory")
    }

    /// Returns the path of this folder's chat history, or `None` if the user has no home directory.
    pub fn history(&self) -> anyhow::Result<Option<PathBuf>> {
        Ok(self
            .sources(Vec::new())?
            .place()
            .map(|place| place.history()))
    }

    /// Returns the configuration file that the user named, if any.
    pub fn named_file(&self) -> Option<&PathBuf> {
        self.config.as_ref()
    }

    /// Loads the configuration for a command that only reads.
    pub fn config(&self) -> anyhow::Result<Config> {
        Ok(self.load()?.config)
    }

    /// Loads the configuration for a command that only reads, with the origin of every value.
    pub fn load(&self) -> anyhow::Result<Loaded> {
        self.look(None)
    }

    /// Loads the configuration for a command that only reads, including tools, teams and skills.
    pub fn whole(&self) -> anyhow::Result<Loaded> {
        self.look(Some(ProjectUse::Everything))
    }

    /// Loads the configuration for `doctor`, which itself reports whether the project is trusted.
    pub fn inspect(&self) -> anyhow::Result<(Loaded, Option<project::FoundProject>)> {
        let sources = self.sources(Vec::new())?;
        let found = if self.no_project {
            None
        } else {
            project::find(&sources, ProjectUse::Everything)?
        };
        let admitted = match found.as_ref().map(|found| &found.standing) {
            Some(ProjectStanding::Trusted(admitted)) => Some(admitted),
            Some(ProjectStanding::Offered(offered)) => offered.admitted.as_ref(),
            Some(
                ProjectStanding::Nothing
                | ProjectStanding::Unknown(_)
                | ProjectStanding::Changed(_)
                | ProjectStanding::Untrustable(_),
            )
            | None => None,
        };
        let loaded = match admitted {
            Some(admitted) => with(sources, admitted.clone())?,
            None => config::load(&sources)?,
        };
        Ok((loaded, found))
    }

    /// Loads the configuration for a command that changes something, after asking the user about a
    /// project that is not trusted. `model` is the default model from the command line.
    pub fn config_to_act(&self, model: Option<&String>) -> anyhow::Result<Config> {
        let flag = model.map(|model| ("models.default".into(), model.clone(), "--model".into()));
        self.act(flag.into_iter().collect(), None)
    }

    /// Loads the configuration for a node, which uses everything in a trusted project.
    pub fn config_of_node(&self) -> anyhow::Result<Config> {
        self.act(Vec::new(), Some(ProjectUse::Everything))
    }

    /// Loads the configuration without asking the user. If the project is not trusted or cannot be
    /// read, prints a warning and ignores the project.
    fn look(&self, uses: Option<ProjectUse>) -> anyhow::Result<Loaded> {
        let sources = self.sources(Vec::new())?;
        let without = config::load(&sources);
        if self.no_project {
            return Ok(without?);
        }
        let uses = uses.unwrap_or_else(|| uses_of(&without));
        match project::find(&sources, uses)
            .map(|found| found.and_then(project::FoundProject::or_warn))
        {
            Ok(None) => Ok(without?),
            Ok(Some(admitted)) => with(sources, admitted),
            Err(error) => {
                warn(&format!(
                    "planck: the project of this folder has no effect: {error:#}"
                ));
                Ok(without?)
            }
        }
    }

    fn act(&self, flags: Vec<Flag>, uses: Option<ProjectUse>) -> anyhow::Result<Config> {
        let sources = self.sources(flags)?;
        let without = config::load(&sources);
        if self.no_project {
            return Ok(without?.config);
        }
        let found = project::find(&sources, uses.unwrap_or_else(|| uses_of(&without)))?;
        match found
            .map(project::FoundProject::or_ask)
            .transpose()?
            .flatten()
        {
            Some(admitted) => {
                let loaded = with(sources, admitted)?;
                for line in &loaded.left_out {
                    warn(&format!("planck: {}", clean_line(line)));
                }
                Ok(loaded.config)
            }
            None => Ok(without?.config),
        }
    }
}

/// Returns which parts of the project a command uses. If NATS is configured, the command is a
/// client and uses only the configuration, because tools, teams and skills are those of the nodes.
/// In all other cases the command uses everything, even if the configuration cannot be loaded
/// without the project, because the project may define the missing part, such as the model that
/// `--model` names.
fn uses_of(without: &Result<Loaded, Problems>) -> ProjectUse {
    match without {
        Ok(loaded) if loaded.config.nats.url.is_some() => ProjectUse::Config,
        Ok(_) | Err(_) => ProjectUse::Everything,
    }
}

fn with(sources: Sources, admitted: Admitted) -> anyhow::Result<Loaded> {
    Ok(config::load(&Sources {
        project: Some(admitted),
        ..sources
    })?)
}
