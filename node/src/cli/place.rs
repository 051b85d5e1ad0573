//! Flags every command understands, and the configuration they lead to.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use super::{output::warn, project};
use crate::{
    config::{
        Config, Loaded, Problems, Sources,
        load::{self},
    },
    project::{Admitted, Standing, Uses},
};

/// Of the help of each command, whose own options come first.
const HEADING: &str = "Global options";

#[derive(Debug, Clone, Args)]
pub struct Place {
    /// A configuration file to read over the usual ones
    #[arg(long, global = true, help_heading = HEADING, value_name = "FILE")]
    config: Option<PathBuf>,
    /// NATS servers, with commas between them
    #[arg(long, global = true, help_heading = HEADING, value_name = "URL")]
    nats: Option<String>,
    /// `sqlite:DIR` or `postgres://…`
    #[arg(long, global = true, help_heading = HEADING, value_name = "URL")]
    store: Option<String>,
    /// Go on without this folder's `.planck/`, trusted or not
    #[arg(long, global = true, help_heading = HEADING)]
    no_project: bool,
}

/// A flag of a command that sets a key: the key, the value, the flag's name.
type Flag = (String, String, String);

impl Place {
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

    /// Where the prompts that are typed in this folder's chats are kept; `None` where the user has
    /// no home.
    pub fn history(&self) -> anyhow::Result<Option<PathBuf>> {
        Ok(self
            .sources(Vec::new())?
            .place()
            .map(|place| place.history()))
    }

    /// The file that the user named.
    pub fn named_file(&self) -> Option<&PathBuf> {
        self.config.as_ref()
    }

    /// For a command that only looks.
    pub fn config(&self) -> anyhow::Result<Config> {
        Ok(self.load()?.config)
    }

    /// The same, with the origin of every value.
    pub fn load(&self) -> anyhow::Result<Loaded> {
        self.look(None)
    }

    /// For a command that only looks, at tools, teams and skills too.
    pub fn whole(&self) -> anyhow::Result<Loaded> {
        self.look(Some(Uses::Everything))
    }

    /// For `doctor`, which says itself what the project is.
    pub fn inspect(&self) -> anyhow::Result<(Loaded, Option<project::Met>)> {
        let sources = self.sources(Vec::new())?;
        let met = if self.no_project {
            None
        } else {
            project::met(&sources, Uses::Everything)?
        };
        let loaded = match met.as_ref().map(|met| &met.standing) {
            Some(Standing::Trusted(admitted)) => with(sources, admitted.clone())?,
            Some(
                Standing::Nothing
                | Standing::Unknown(_)
                | Standing::Changed(_)
                | Standing::Untrustable(_),
            )
            | None => load::load(&sources)?,
        };
        Ok((loaded, met))
    }

    /// For a command that acts, with a default model from the command line.
    pub fn config_to_act(&self, model: Option<&String>) -> anyhow::Result<Config> {
        let flag = model.map(|model| ("models.default".into(), model.clone(), "--model".into()));
        self.act(flag.into_iter().collect(), None)
    }

    /// For a node, which uses all of a project.
    pub fn config_of_node(&self) -> anyhow::Result<Config> {
        self.act(Vec::new(), Some(Uses::Everything))
    }

    /// Never asks and never refuses: a project that is not trusted has no effect, and a line says
    /// so.
    fn look(&self, uses: Option<Uses>) -> anyhow::Result<Loaded> {
        let sources = self.sources(Vec::new())?;
        let without = load::load(&sources);
        if self.no_project {
            return Ok(without?);
        }
        let uses = uses.unwrap_or_else(|| uses_of(&without));
        match project::met(&sources, uses).map(|met| met.and_then(project::Met::or_warn)) {
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

    fn act(&self, flags: Vec<Flag>, uses: Option<Uses>) -> anyhow::Result<Config> {
        let sources = self.sources(flags)?;
        let without = load::load(&sources);
        if self.no_project {
            return Ok(without?.config);
        }
        let met = project::met(&sources, uses.unwrap_or_else(|| uses_of(&without)))?;
        match met.map(project::Met::or_ask).transpose()?.flatten() {
            Some(admitted) => Ok(with(sources, admitted)?.config),
            None => Ok(without?.config),
        }
    }
}

/// Where the user has configured NATS, a command is a client, and the nodes have their own tools,
/// teams and skills. What is wrong without the project, such as `--model` with the name of its
/// entry, may be right with it.
fn uses_of(without: &Result<Loaded, Problems>) -> Uses {
    match without {
        Ok(loaded) if loaded.config.nats.url.is_some() => Uses::Config,
        Ok(_) | Err(_) => Uses::Everything,
    }
}

fn with(sources: Sources, admitted: Admitted) -> anyhow::Result<Loaded> {
    Ok(load::load(&Sources {
        project: Some(admitted),
        ..sources
    })?)
}
