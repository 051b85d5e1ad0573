//! `planck team …`

mod new;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use planck_common::command::Start;

use super::{
    exit::{Exit, NotFound},
    output::{Output, say},
    place::Place,
    which::Which,
};
use crate::{
    config::Config,
    node::Inventory,
    project::Part,
    team::{self, Context, KnownModels, Template, TemplateErrors, TemplateFile, resolve},
};

#[derive(Debug, Subcommand)]
pub enum Team {
    /// Write a template to begin a team with
    New(new::New),
    /// List the templates of this machine
    Ls {
        #[command(flatten)]
        output: Output,
    },
    /// Show everything that is wrong with templates
    Validate {
        /// Folders, files or names; every template there is unless said
        teams: Vec<String>,
    },
    /// Start a session with a team that waits for a prompt
    Start {
        /// A folder or file with a TEAM.json, or the name of a template
        team: String,
        #[command(flatten)]
        which: StartWhich,
    },
}

#[derive(Debug, clap::Args)]
pub struct StartWhich {
    /// The new session's name
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// The model of agents that name none, as provider:model
    #[arg(long, value_name = "P:ID")]
    model: Option<String>,
    /// The workspace to work in
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// The directory to work in
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Team {
    pub async fn perform(self, place: &Place) -> anyhow::Result<Exit> {
        match self {
            Self::New(new) => new.perform(),
            Self::Ls { output } => list(&place.whole()?.config, output),
            Self::Validate { teams } => validate(&place.whole()?.config, teams),
            Self::Start { team, which } => start(place, team, which).await,
        }
    }
}

fn list(config: &Config, output: Output) -> anyhow::Result<Exit> {
    let templates = team::list(&config.sources(Part::Teams));
    let row = |(name, template): &(String, Result<Template, TemplateErrors>)| match template {
        Ok(template) => vec![name.clone(), template.members.len().to_string(), template.description.clone()],
        Err(errors) => vec![name.clone(), "–".into(), format!("broken: {} errors, see `planck team validate`", errors.0.len())],
    };
    let rows: Vec<Vec<String>> = templates.iter().map(row).collect();
    output.list(&rows, &["name", "members", "description"], rows.clone())?;
    Ok(Exit::Done)
}

fn validate(config: &Config, teams: Vec<String>) -> anyhow::Result<Exit> {
    let files: Vec<Result<TemplateFile, TemplateErrors>> = match teams.is_empty() {
        true => {
            let sources = config.sources(Part::Teams);
            let names = team::list(&sources).into_iter().map(|(name, _)| name);
            let found = names.filter_map(|name| team::find(&sources, &name).map_err(TemplateErrors::from).transpose());
            found.collect()
        }
        false => teams.iter().map(|team| file(config, team)).collect::<anyhow::Result<_>>()?,
    };
    let here = Inventory::of(config);
    let mut exit = if here.problems.is_empty() { Exit::Done } else { Exit::Misused };
    here.problems.iter().try_for_each(|problem| say(&format!("{problem}\n")))?;
    for file in &files {
        match file.as_ref().map_err(Clone::clone).and_then(|file| check(config, &here, file)) {
            Ok(template) => say(&format!("{}: {} members, no errors\n", template.file.display(), template.members.len()))?,
            Err(errors) => {
                exit = Exit::Misused;
                say(&format!("{errors}\n"))?;
            }
        }
    }
    if files.is_empty() {
        say("no templates found; they are looked for in `teams.dirs`, each as <name>/TEAM.json\n")?;
    }
    Ok(exit)
}

fn file(config: &Config, team: &str) -> anyhow::Result<Result<TemplateFile, TemplateErrors>> {
    let path = Path::new(team);
    let found = match path.exists() {
        true => Ok(Some(TemplateFile::typed(path))),
        false => team::find(&config.sources(Part::Teams), team).map_err(TemplateErrors::from),
    };
    let missing = || NotFound(format!("no template {team}; `planck team ls` lists them"));
    Ok(found.transpose().ok_or_else(missing)?)
}

/// Loads a template and resolves its members as a start on this machine would. Models are left out where none is configured.
pub fn check(config: &Config, here: &Inventory, file: &TemplateFile) -> Result<Template, TemplateErrors> {
    let (template, mut found) = team::inspect(file);
    let Some(template) = template else { return Err(TemplateErrors(found)) };
    let mut models = KnownModels::of(config);
    models.default.get_or_insert_with(|| planck_common::spec::ModelRef {
        provider: "scripted".into(),
        id: "any".into(),
        base_url: None,
    });
    let context = Context {
        source: template.file.display().to_string(),
        models,
        limits: config.limits.of_agent(),
        agents_md: None,
        skills: here.skills.iter().map(|skill| (skill.name.clone(), skill.entry())).collect(),
        tools: Some(here.tools.clone()),
        clashes: here.clashes.clone().into(),
    };
    found.extend(resolve(&template.members, &context).err().unwrap_or_default());
    if found.is_empty() { Ok(template) } else { Err(TemplateErrors(found)) }
}

async fn start(place: &Place, team: String, which: StartWhich) -> anyhow::Result<Exit> {
    let StartWhich { session, model, workspace, dir } = which;
    let config = place.config_to_act(model.as_ref())?;
    let which = Which { team: Some(team), model, session, workspace, dir, go_on: false };
    let config = which.admit(config);
    let start = which.request()?;
    let link = which.link(&config).await?;
    let started = link.client.start(Start { prompt: None, ..start }).await;
    link.close().await;
    let started = started?;
    say(&format!("{} is open on {}; prompt it with `planck run --session {}`\n", started.name, started.node_id, started.name))?;
    Ok(Exit::Done)
}
