//! The commands `planck team …`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use planck_common::{command::Start, id::is_id, similar::nearest};
use planck_node::{
    config::Config,
    node::Inventory,
    team::{self, KnownModels, TeamContext, TeamTemplate, TemplateErrors, TemplateFile, resolve},
};
use planck_toolbox::project::SourcePart;
use serde::Serialize;

use crate::{
    args::GlobalArgs,
    choose::SessionChoice,
    exit::{Exit, NotFound, UsageError},
    output::{Format, Output, json, say, warn},
    permissions::ModeChoice,
    render::style::counted,
    scaffold::{Scaffold, ScaffoldFile},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  planck team new reviewers
  planck team ls
  planck team validate examples/teams/build-a-cli
  planck team start build-a-cli --session word-tool")]
pub enum TeamCommand {
    /// Write a starter template for a team
    New(NewTeam),
    /// List the templates of this machine
    #[command(after_help = "Examples:\n  planck team ls")]
    Ls {
        #[command(flatten)]
        output: Output,
    },
    /// Show everything that is wrong with templates
    #[command(
        after_help = "Examples:\n  planck team validate\n  planck team validate examples/teams/build-a-cli"
    )]
    Validate {
        /// Folders, files or names; by default every template
        teams: Vec<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Start a session with a team that waits for a prompt
    #[command(
        after_help = "Examples:\n  planck team start build-a-cli --session word-tool\n  planck run --session word-tool \"A tool that counts words\""
    )]
    Start {
        /// A folder or file with a TEAM.json, or the name of a template
        team: String,
        #[command(flatten)]
        which: StartArgs,
    },
}

#[derive(Debug, clap::Args)]
pub struct StartArgs {
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
    /// Which tool calls of the session run at once
    #[arg(long, value_name = "MODE", value_enum)]
    permissions: Option<ModeChoice>,
}

impl TeamCommand {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        match self {
            Self::New(new) => new.perform(),
            Self::Ls { output } => list(&global.whole()?.config, output),
            Self::Validate { teams, output } => validate(&global.whole()?.config, teams, output),
            Self::Start { team, which } => start(global, team, which).await,
        }
    }
}

fn list(config: &Config, output: Output) -> anyhow::Result<Exit> {
    let templates = team::list(&config.sources(SourcePart::Teams));
    let row = |(name, template): &(String, Result<TeamTemplate, TemplateErrors>)| match template {
        Ok(template) => vec![
            name.clone(),
            template.members.len().to_string(),
            template.description.clone(),
        ],
        Err(errors) => {
            vec![
                name.clone(),
                "–".into(),
                format!(
                    "broken: {}, see `planck team validate`",
                    counted(errors.0.len(), "error")
                ),
            ]
        }
    };
    let rows: Vec<Vec<String>> = templates.iter().map(row).collect();
    if rows.is_empty() {
        warn(
            "planck: there is no team in the folders of `teams.dirs`; a team elsewhere is named by its folder: planck run --team ./FOLDER",
        );
    }
    output.list(&rows, &["name", "members", "description"], rows.clone())?;
    Ok(Exit::Done)
}

/// The result for one template, or for the tools and skills to which templates refer.
#[derive(Debug, Serialize)]
struct Validated {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<usize>,
    errors: Vec<String>,
    /// The tools that only another program can offer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

impl Validated {
    fn of(config: &Config, here: &Inventory, file: &TemplateFile) -> Self {
        let notes = notes(here, file);
        match check(config, here, file) {
            Ok(template) => Self {
                file: Some(template.file),
                members: Some(template.members.len()),
                errors: Vec::new(),
                notes,
            },
            Err(errors) => Self {
                notes,
                ..Self::wrong(&errors)
            },
        }
    }

    fn wrong(errors: &TemplateErrors) -> Self {
        Self::with(errors.0.iter().map(ToString::to_string).collect())
    }

    fn with(errors: Vec<String>) -> Self {
        Self {
            file: None,
            members: None,
            errors,
            notes: Vec::new(),
        }
    }

    fn text(&self) -> String {
        let first = match (&self.file, self.members) {
            (Some(file), Some(members)) => Some(format!(
                "{}: {}, no errors",
                file.display(),
                counted(members, "member")
            )),
            (_, _) => None,
        };
        let lines = first.iter().chain(&self.errors).chain(&self.notes);
        lines.map(|line| format!("{line}\n")).collect()
    }
}

/// Returns a note for each tool that this machine does not have. A sidecar or a client may have it.
fn notes(here: &Inventory, file: &TemplateFile) -> Vec<String> {
    let Some(template) = team::inspect(file).0 else {
        return Vec::new();
    };
    let source = template.file.display();
    let named = template.members.iter().flat_map(|member| {
        let granted = member.grant.iter().flat_map(|grant| &grant.tools);
        let names = member.tools.iter().flatten().chain(granted);
        names.map(move |name| (member.name.as_ref().unwrap_or(&member.r#type), name))
    });
    let unknown = named.filter(|(_, name)| !here.tools.contains(team::canonical(name)));
    let told = unknown.map(|(member, name)| {
        let meant = nearest(name, here.tools.iter().map(String::as_str));
        let meant = meant.map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"));
        format!(
            "{source}, member \"{member}\": note: only a sidecar or a client can have the tool `{name}`{meant}"
        )
    });
    told.collect()
}

fn validate(config: &Config, teams: Vec<String>, output: Output) -> anyhow::Result<Exit> {
    let files: Vec<Result<TemplateFile, TemplateErrors>> = match teams.is_empty() {
        true => {
            let sources = config.sources(SourcePart::Teams);
            let names = team::list(&sources).into_iter().map(|(name, _)| name);
            let found = names.filter_map(|name| {
                team::find(&sources, &name)
                    .map_err(TemplateErrors::from)
                    .transpose()
            });
            found.collect()
        }
        false => teams
            .iter()
            .map(|team| file(config, team))
            .collect::<anyhow::Result<_>>()?,
    };
    let here = Inventory::of(config);
    let is_found = !files.is_empty();
    let checked = files.into_iter().map(|file| match file {
        Ok(file) => Validated::of(config, &here, &file),
        Err(errors) => Validated::wrong(&errors),
    });
    let of_inventory = (!here.problems.is_empty()).then(|| Validated::with(here.problems.clone()));
    let all: Vec<Validated> = of_inventory.into_iter().chain(checked).collect();
    match output.output {
        Format::Json => json(&all)?,
        Format::Table => {
            say(&all.iter().map(Validated::text).collect::<String>())?;
            if !is_found {
                say(
                    "no templates found; they are looked for in `teams.dirs`, each as <name>/TEAM.json\n",
                )?;
            }
        }
    }
    Ok(if all.iter().all(|validated| validated.errors.is_empty()) {
        Exit::Done
    } else {
        Exit::Misused
    })
}

fn file(config: &Config, team: &str) -> anyhow::Result<Result<TemplateFile, TemplateErrors>> {
    let path = Path::new(team);
    let found = match path.exists() {
        true => Ok(Some(TemplateFile::typed(path))),
        false => team::find(&config.sources(SourcePart::Teams), team).map_err(TemplateErrors::from),
    };
    let missing = || NotFound(format!("no template {team}; `planck team ls` lists them"));
    Ok(found.transpose().ok_or_else(missing)?)
}

/// Loads a template, and resolves its members with the models, tools and skills of this machine.
/// Returns all errors that it finds. A member without a model is valid even if no default model is
/// configured.
pub fn check(
    config: &Config,
    here: &Inventory,
    file: &TemplateFile,
) -> Result<TeamTemplate, TemplateErrors> {
    let (template, mut found) = team::inspect(file);
    let Some(template) = template else {
        return Err(TemplateErrors(found));
    };
    let mut models = KnownModels::of(config);
    models
        .default
        .get_or_insert_with(|| planck_common::spec::ModelRef {
            provider: "scripted".into(),
            id: "any".into(),
            base_url: None,
        });
    let context = TeamContext {
        user_md: None,
        source: template.file.display().to_string(),
        models,
        limits: config.limits.of_agent(),
        permissions: vec![config.permissions.layer()],
        agents_md: None,
        skills: here
            .skills
            .iter()
            .map(|skill| (skill.name.clone(), skill.entry()))
            .collect(),
        clashes: here.clashes.clone().into(),
        servers: Default::default(),
    };
    found.extend(
        resolve(&template.members, &context)
            .err()
            .unwrap_or_default(),
    );
    if found.is_empty() {
        Ok(template)
    } else {
        Err(TemplateErrors(found))
    }
}

async fn start(global: &GlobalArgs, team: String, which: StartArgs) -> anyhow::Result<Exit> {
    let StartArgs {
        session,
        model,
        workspace,
        dir,
        permissions,
    } = which;
    let config = global.config_to_act(model.as_ref())?;
    let which = SessionChoice {
        team: Some(team),
        model,
        session,
        workspace,
        dir,
        permissions,
        go_on: false,
    };
    let config = which.admit(config);
    let start = which.request()?;
    let link = which.link(&config).await?;
    let started = link
        .client
        .start(Start {
            prompt: None,
            ..start
        })
        .await;
    link.close().await;
    let started = started?;
    say(&format!(
        "{} is open on {}; prompt it with `planck run --session {}`\n",
        started.name, started.node_id, started.name
    ))?;
    Ok(Exit::Done)
}

/// Writes a TEAM.json with an orchestrator and a worker, and a file with the prompt of each.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  planck team new reviewers\n  \
                        planck team new reviewers --dir ~/.planck/teams/reviewers   # to start it by its name")]
pub struct NewTeam {
    /// The team's name
    name: String,
    /// The folder to write, which must be empty or missing; by default ./teams/NAME
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

const FILES: &[ScaffoldFile] = &[
    ("TEAM.json", include_str!("scaffold/team/TEAM.json")),
    ("lead.md", include_str!("scaffold/team/lead.md")),
    ("worker.md", include_str!("scaffold/team/worker.md")),
];

impl NewTeam {
    fn perform(self) -> anyhow::Result<Exit> {
        let Self { name, dir } = self;
        if !is_id(&name) {
            return Err(UsageError(format!(
                "malformed team name `{name}`: expected 1 to 64 of A-Z a-z 0-9 _ -"
            ))
            .into());
        }
        let folder = dir.unwrap_or_else(|| Path::new("teams").join(&name));
        let shown = shlex::try_quote(&folder.to_string_lossy())
            .map_or_else(|_| name.clone(), |quoted| quoted.into_owned());
        Scaffold {
            folder,
            files: FILES,
            replacements: vec![("TEAM_NAME", name)],
            copied: Vec::new(),
        }
        .write()?;
        say(&format!(
            "planck team validate {shown}\nplanck run --team {shown} \"What is in this folder?\"\n"
        ))?;
        Ok(Exit::Done)
    }
}
