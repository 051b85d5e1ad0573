//! `planck run`

use std::{
    io::{IsTerminal as _, Read as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::Args;
use planck_common::{
    InputId, Seq, SessionId, SessionName,
    command::{Prompt, Start},
    reply::Code,
    spec::Member,
};

use super::{
    exit::{Exit, Usage},
    link::Link,
    log::Logs,
    output::warn,
    place::Place,
    watch::{Sink, Until, interrupts, watch},
};
use crate::{
    client::{Client, ClientError},
    config::{Address, Config},
    project::Part,
    team::{self, TemplateFile},
    terminal::clean_line,
};

#[derive(Debug, Clone, Args)]
pub struct Which {
    /// A team: a folder or file with a TEAM.json, or the name of a template
    #[arg(long, value_name = "DIR|FILE|NAME")]
    pub team: Option<String>,
    /// The model of agents that name none, as provider:model
    #[arg(long, value_name = "P:ID")]
    pub model: Option<String>,
    /// The session to go on with, or the name of a new one
    #[arg(long, value_name = "NAME")]
    pub session: Option<String>,
    /// The workspace to work in
    #[arg(long, value_name = "NAME")]
    pub workspace: Option<String>,
    /// The directory to work in: in the workspace, or of this machine
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    which: Which,
    /// Write raw events, a line each
    #[arg(long)]
    json: bool,
    /// What to do; from standard input where it is absent or `-`
    prompt: Option<String>,
}

/// A prompt on its way: where to read on.
pub struct Sent {
    pub session: SessionId,
    pub prompt: InputId,
    pub from: Seq,
}

impl Run {
    pub async fn perform(self, place: &Place) -> anyhow::Result<Exit> {
        let prompt = words(self.prompt)?;
        let config = self.which.admit(place.config_to_act(self.which.model.as_ref())?);
        let logs = Logs::start_if_asked(&config)?;
        let link = self.which.link(&config).await?;
        let done = follow(&link.client, &self.which, prompt, self.json).await;
        link.close().await;
        logs.end().await;
        done
    }
}

async fn follow(client: &Client, which: &Which, prompt: String, json: bool) -> anyhow::Result<Exit> {
    let sent = which.send(client, prompt).await?;
    let (mut interrupted, mut sink) = (interrupts()?, Sink::new(json));
    let exit = watch(client, &sent.session, sent.from, &Until::Answered(sent.prompt), &mut interrupted, &mut sink).await?;
    sink.sum_up()?;
    Ok(exit)
}

fn words(given: Option<String>) -> anyhow::Result<String> {
    let text = match given.filter(|text| text != "-") {
        Some(text) => text,
        None if std::io::stdin().is_terminal() => String::new(),
        None => {
            let mut text = String::new();
            std::io::stdin().take(8 * 1024 * 1024).read_to_string(&mut text).context("cannot read standard input")?;
            text
        }
    };
    if text.trim().is_empty() {
        return Err(Usage("no prompt; write it after `planck run`, or use `planck chat`".into()).into());
    }
    Ok(text)
}

impl Which {
    /// Whoever types the path of a team consents to its addresses, for the node in this process. Keys still go to the origins
    /// they are configured for. Nodes behind NATS have a configuration of their own.
    pub fn admit(&self, mut config: Config) -> Config {
        let typed = self.team.as_deref().map(Path::new).filter(|path| path.exists());
        let members = typed
            .and_then(|path| team::load(&TemplateFile::typed(path)).ok())
            .map(|template| template.members)
            .unwrap_or_default();
        let addresses = members.into_iter().filter_map(|member| member.base_url).map(Address::new);
        config.models.allowed_base_urls.extend(addresses);
        config
    }

    /// Prompts the named session, or starts one.
    pub async fn send(&self, client: &Client, text: String) -> anyhow::Result<Sent> {
        let known = match &self.session {
            Some(name) => is_known(client, name).await?,
            None => false,
        };
        match self.session.as_deref().filter(|_| known) {
            Some(session) => {
                self.check_known(session)?;
                go_on(client, session, text).await
            }
            None => self.start(client, text).await,
        }
    }

    /// A session that is there goes on as what it was started.
    fn check_known(&self, session: &str) -> Result<(), Usage> {
        let flags = [("--team", self.team.is_some()), ("--workspace", self.workspace.is_some()), ("--dir", self.dir.is_some())];
        match flags.into_iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((flag, _)) => Err(Usage(format!(
                "session {session} is there and goes on as it was started; leave out {flag}, or name another session"
            ))),
        }
    }

    async fn start(&self, client: &Client, text: String) -> anyhow::Result<Sent> {
        let prompt_id = InputId::mint();
        let start = Start { prompt: Some(text), prompt_id: Some(prompt_id.clone()), ..self.request()? };
        let started = client.start(start).await?;
        Ok(Sent { session: started.session_id, prompt: started.prompt_id.unwrap_or(prompt_id), from: started.seq + 1 })
    }

    /// Opens the way to a node, and says what agents here go without where the node is in this process.
    pub async fn link(&self, config: &Config) -> anyhow::Result<Link> {
        let link = Link::open(config).await?;
        let dir = self.dir.as_deref().unwrap_or(Path::new("."));
        let instructions = || team::agents_file::load(dir).warning;
        if let Some(warning) = (link.is_alone() && self.workspace.is_none()).then(instructions).flatten() {
            warn(&format!("planck: warning: {}", clean_line(&warning)));
        }
        match self.check_team(&link.client, config).await {
            Ok(()) => Ok(link),
            Err(why) => {
                link.close().await;
                Err(why)
            }
        }
    }

    /// A word alone may be the name of a template. A folder of that name, which a repository may bring, must not take its
    /// place.
    async fn check_team(&self, client: &Client, config: &Config) -> anyhow::Result<()> {
        let word = self.team.as_ref().filter(|team| !team.contains('/') && Path::new(team).exists());
        let Some(team) = word else { return Ok(()) };
        let is_here = !matches!(team::find(&config.sources(Part::Teams), team), Ok(None));
        if is_here || client.teams().await?.teams.iter().any(|row| row.name == *team) {
            let both = format!("`{team}` is a template, and a file or folder here");
            return Err(
                Usage(format!("{both}; write ./{team} for the one here, or go to another folder for the template")).into()
            );
        }
        Ok(())
    }

    /// The request for a session of this kind, without a prompt.
    pub fn request(&self) -> anyhow::Result<Start> {
        let name = self.session.as_deref().map(SessionName::parse).transpose().map_err(|error| Usage(error.to_string()))?;
        let (team, members) = self.team()?;
        Ok(Start {
            session_id: None,
            name,
            team,
            members,
            workspace: self.workspace.clone(),
            dir: Some(self.directory()?),
            prompt: None,
            prompt_id: None,
            limits: None,
            on_node_death: None,
            metadata: serde_json::Map::new(),
        })
    }

    /// A template's name, or the members of one that is here, with the model where they name none.
    fn team(&self) -> anyhow::Result<(Option<String>, Option<Vec<Member>>)> {
        // A name without a provider is an entry of the node's configuration, or a model of its default's provider.
        let model = self.model.as_deref().map(|model| match model.split_once(':') {
            Some((provider, id)) => (Some(provider.to_owned()), id.to_owned()),
            None => (None, model.to_owned()),
        });
        let mut members = match &self.team {
            Some(team) if Path::new(team).exists() => team::load(&TemplateFile::typed(team.as_ref()))?.members,
            Some(team) => return Ok((Some(team.clone()), None)),
            None if model.is_some() => vec![Member::default()],
            None => return Ok((None, None)),
        };
        for member in members.iter_mut().filter(|member| member.model_id.is_none() && member.provider.is_none()) {
            member.provider = model.as_ref().and_then(|(provider, _)| provider.clone());
            member.model_id = model.as_ref().map(|(_, id)| id.clone());
        }
        Ok((None, Some(members)))
    }

    /// In a workspace as it is named; else a path of this machine.
    fn directory(&self) -> anyhow::Result<String> {
        let dir = match (&self.workspace, &self.dir) {
            (Some(_), dir) => dir.clone().unwrap_or_else(|| ".".into()),
            (None, dir) => {
                let dir = dir.clone().unwrap_or_else(|| ".".into());
                dir.canonicalize().with_context(|| format!("cannot work in {}", dir.display()))?
            }
        };
        dir.into_os_string().into_string().map_err(|_| anyhow::anyhow!("the directory's name is not plain text"))
    }
}

async fn is_known(client: &Client, session: &str) -> anyhow::Result<bool> {
    match client.session(session).await {
        Ok(_) => Ok(true),
        Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A further prompt to a session.
pub async fn go_on(client: &Client, session: &str, text: String) -> anyhow::Result<Sent> {
    let prompt = Prompt { text: Some(text), content: None, prompt_id: None, mode: Default::default(), agent: None };
    let accepted = client.prompt(session, prompt).await?;
    Ok(Sent { session: accepted.session_id, prompt: accepted.prompt_id, from: accepted.seq + 1 })
}
