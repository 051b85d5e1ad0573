//! Decides to which session a prompt is sent, and how a new session is created.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use futures_util::StreamExt as _;
use planck_client::{Client, ClientError};
use planck_common::{
    AgentId, InputId, SessionId, SessionName,
    command::{ChangeModel, ListSessions, Prompt, SessionInfo, SessionRow, Start},
    message::Part,
    reply::Code,
    spec::{Member, ModelRef, OutputSpec},
};
use planck_host::terminal::clean_line;
use planck_node::{
    config::{Config, ConfiguredUrl},
    node,
    team::{self, KnownModels, TemplateFile, template::Mistakes},
};
use planck_providers::Preset;
use planck_toolbox::{project::SourcePart, schema::CompiledSchema};

use crate::{
    connect::ConnectedClient,
    exit::{NotFound, UsageError},
    model,
    output::warn,
    permissions::ModeChoice,
    waits::own_name,
    watch::WatchedWork,
};

/// The number of recently used sessions among which `--continue` searches for one in this
/// directory.
const LATEST: usize = 200;

#[derive(Debug, Clone, Default, Args)]
pub struct SessionChoice {
    /// A team: a folder or file with a TEAM.json, or the name of a template
    #[arg(long, value_name = "DIR|FILE|NAME")]
    pub team: Option<String>,
    /// The model of agents that name none, as provider:model; in an existing session, the new model
    /// of its lead
    #[arg(long, value_name = "P:ID")]
    pub model: Option<String>,
    /// The session to continue, or the name of a new one
    #[arg(long, value_name = "NAME")]
    pub session: Option<String>,
    /// Continue the session of this directory that was used last
    #[arg(short = 'c', long = "continue", conflicts_with_all = ["session", "team", "permissions"])]
    pub go_on: bool,
    /// The workspace to work in
    #[arg(long, value_name = "NAME")]
    pub workspace: Option<String>,
    /// The directory to work in: in the workspace, or on this machine
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Which tool calls of a new session run at once
    #[arg(long, value_name = "MODE", value_enum)]
    pub permissions: Option<ModeChoice>,
}

impl SessionChoice {
    /// Allows the model addresses in the team file for the node in this process, because the user
    /// typed the path of the file. Keys are still sent only to the origins for which they are
    /// configured. Nodes in a cluster use their own configuration.
    pub fn admit(&self, mut config: Config) -> Config {
        let typed = self
            .team
            .as_deref()
            .map(Path::new)
            .filter(|path| path.exists());
        let members = typed
            .and_then(|path| team::load(&TemplateFile::typed(path)).ok())
            .map(|template| template.members)
            .unwrap_or_default();
        let addresses = members
            .into_iter()
            .filter_map(|member| member.base_url)
            .map(ConfiguredUrl::new);
        config.models.allowed_base_urls.extend(addresses);
        config
    }

    /// Sends a prompt to the session that the flags select, or starts a new session with the
    /// prompt.
    pub async fn send(
        &self,
        client: &Client,
        config: &Config,
        parts: Vec<Part>,
        output: Option<OutputSpec>,
    ) -> anyhow::Result<(PromptedSession, WatchedWork)> {
        if let Some(session) = self.there(client).await? {
            let mut talk = self.go_on_with(client, &session).await?;
            talk.output = output;
            let work = talk.prompt(client, parts).await?;
            return Ok((talk, work));
        }
        self.check_keys(config)?;
        // The prompt of a start is a text.
        let text = match parts.as_slice() {
            [Part::Text { text, .. }] => text.clone(),
            _ => {
                let mut talk = self.start(client).await?;
                talk.output = output;
                let work = talk.prompt(client, parts).await?;
                return Ok((talk, work));
            }
        };
        let prompt_id = InputId::mint();
        let start = Start {
            prompt: Some(text),
            prompt_id: Some(prompt_id.clone()),
            by: own_name(),
            output,
            ..self.request()?
        };
        let started = client.start(start).await?;
        let work = WatchedWork {
            session: started.session_id.clone(),
            prompt: Some(started.prompt_id.unwrap_or(prompt_id)),
            from: started.seq + 1,
        };
        Ok((
            PromptedSession::with(client, &started.session_id).await?,
            work,
        ))
    }

    /// Starts the session without a prompt.
    pub async fn start(&self, client: &Client) -> anyhow::Result<PromptedSession> {
        let started = client.start(self.request()?).await?;
        PromptedSession::with(client, &started.session_id).await
    }

    /// Returns the directory from which relative paths after `@` start. The directory of a workspace
    /// may be on another machine, but attached files are read on this one.
    pub fn files_dir(&self) -> PathBuf {
        let dir = self.dir.clone().filter(|_| self.workspace.is_none());
        dir.unwrap_or_else(|| ".".into())
    }

    /// Returns an existing session for prompts. A model on the command line becomes that of its
    /// orchestrator.
    pub async fn go_on_with(
        &self,
        client: &Client,
        session: &str,
    ) -> anyhow::Result<PromptedSession> {
        let mut talk = PromptedSession::with(client, session).await?;
        if let Some(model) = self.model.as_ref().filter(|model| **model != talk.model) {
            talk.change_model(client, &model::change(model)).await?;
        }
        Ok(talk)
    }

    /// Returns the existing session that the flags select, or `None` for a new one.
    pub async fn there(&self, client: &Client) -> anyhow::Result<Option<String>> {
        if self.go_on {
            return self.last_here(client).await.map(Some);
        }
        let Some(name) = &self.session else {
            return Ok(None);
        };
        match client.session(name).await {
            Ok(_) => {
                self.check_known(name)?;
                Ok(Some(name.clone()))
            }
            Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the session of the directory and workspace that was used last.
    async fn last_here(&self, client: &Client) -> anyhow::Result<String> {
        let mut latest = self.used_here(client, 1).await?.into_iter();
        let latest = latest.next().map(|(_, info)| info.id.to_string());
        latest.map_or_else(|| Err(self.none_here()?.into()), Ok)
    }

    /// Returns the error if no session was started in the directory.
    pub fn none_here(&self) -> anyhow::Result<NotFound> {
        let dir = self.directory()?;
        let way_out = "start one with `planck run \"…\"`, or name one with --session; `planck session ls` lists them";
        Ok(NotFound(format!(
            "no session was started in {dir}; {way_out}"
        )))
    }

    /// Returns the most recently used sessions of the directory and workspace that the flags select,
    /// at most `most`. Only the [`LATEST`] most recently used sessions are considered.
    pub async fn used_here(
        &self,
        client: &Client,
        most: usize,
    ) -> anyhow::Result<Vec<(SessionRow, SessionInfo)>> {
        let dir = self.directory()?;
        let mut rows = every_session(client, &ListSessions::default()).await?;
        rows.sort_by_key(|row| std::cmp::Reverse(row.updated_at));
        let is_here = |info: &SessionInfo| {
            info.dir == dir
                && self
                    .workspace
                    .as_ref()
                    .is_none_or(|workspace| *workspace == info.workspace)
        };
        let infos = rows.into_iter().take(LATEST).map(|row| async move {
            let info = client.session(&row.id).await.ok()?;
            Some((row, info))
        });
        let infos = futures_util::stream::iter(infos).buffered(8);
        let here = infos.filter_map(|found| async move { found });
        let here = here.filter(|(_, info)| std::future::ready(is_here(info)));
        Ok(here.take(most).collect().await)
    }

    /// Returns an error if there are flags that apply only to a new session.
    fn check_known(&self, session: &str) -> Result<(), UsageError> {
        let flags = [
            ("--team", self.team.is_some()),
            ("--workspace", self.workspace.is_some()),
            ("--dir", self.dir.is_some()),
            ("--permissions", self.permissions.is_some()),
        ];
        match flags.into_iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((flag, _)) => Err(UsageError(format!(
                "session {session} exists and continues as it was started; leave out {flag}, or name another session"
            ))),
        }
    }

    /// Connects to a cluster or to a node in this process. For a node in this process, warns if
    /// AGENTS.md in the working directory cannot be used completely and no workspace is named.
    /// Fails if `--team` is ambiguous.
    pub async fn link(&self, config: &Config) -> anyhow::Result<ConnectedClient> {
        let link = ConnectedClient::open(config).await?;
        let dir = self.dir.as_deref().unwrap_or(Path::new("."));
        let instructions = || team::agents_file::load(dir, None).warning;
        if let Some(warning) = (link.is_alone() && self.workspace.is_none())
            .then(instructions)
            .flatten()
        {
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

    /// Returns an error if the value of `--team` has no slash and names both a template and a file
    /// or folder in the current directory. Otherwise a repository could replace the template with a
    /// folder of the same name.
    async fn check_team(&self, client: &Client, config: &Config) -> anyhow::Result<()> {
        let word = self
            .team
            .as_ref()
            .filter(|team| !team.contains('/') && Path::new(team).exists());
        let Some(team) = word else { return Ok(()) };
        let is_here = !matches!(
            team::find(&config.sources(SourcePart::Teams), team),
            Ok(None)
        );
        if is_here
            || client
                .teams()
                .await?
                .teams
                .iter()
                .any(|row| row.name == *team)
        {
            let both = format!("`{team}` is a template, and a file or folder here");
            return Err(UsageError(format!(
                "{both}; write ./{team} for the one here, or go to another folder for the template"
            ))
            .into());
        }
        Ok(())
    }

    /// Returns the request that starts the session, without a prompt.
    pub fn request(&self) -> anyhow::Result<Start> {
        let name = self
            .session
            .as_deref()
            .map(SessionName::parse)
            .transpose()
            .map_err(|error| UsageError(error.to_string()))?;
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
            by: None,
            limits: None,
            permissions: self.permissions.map(ModeChoice::mode),
            client_tools: Vec::new(),
            on_node_death: None,
            metadata: serde_json::Map::new(),
            output: None,
        })
    }

    /// Returns the name of the team's template, or the members if the team is a file or folder on
    /// this machine. If only a model is given, returns one member, and without either flag returns
    /// nothing. Members without a model get the one from the command line.
    fn team(&self) -> anyhow::Result<(Option<String>, Option<Vec<Member>>)> {
        // A name without a provider refers to an entry in the node's configuration or to a model of
        // its default provider.
        let model = self.model.as_deref().map(model::parse);
        let mut members = match &self.team {
            Some(team) if Path::new(team).exists() => {
                team::load(&TemplateFile::typed(team.as_ref()))?.members
            }
            Some(team) if team.contains('/') => {
                return Err(NotFound(format!("no file or folder {team}")).into());
            }
            Some(team) => return Ok((Some(team.clone()), None)),
            None if model.is_some() => vec![Member::default()],
            None => return Ok((None, None)),
        };
        for member in members
            .iter_mut()
            .filter(|member| member.model_id.is_none() && member.provider.is_none())
        {
            member.provider = model.as_ref().and_then(|(provider, _)| provider.clone());
            member.model_id = model.as_ref().map(|(_, id)| id.clone());
        }
        Ok((None, Some(members)))
    }

    /// Returns the working directory: unchanged if a workspace is named, and otherwise as an
    /// absolute path on this machine.
    fn directory(&self) -> anyhow::Result<String> {
        let dir = match (&self.workspace, &self.dir) {
            (Some(_), dir) => dir.clone().unwrap_or_else(|| ".".into()),
            (None, dir) => {
                let dir = dir.clone().unwrap_or_else(|| ".".into());
                dir.canonicalize()
                    .with_context(|| format!("cannot work in {}", dir.display()))?
            }
        };
        dir.into_os_string()
            .into_string()
            .map_err(|_| anyhow::anyhow!("the directory's name is not plain text"))
    }
}

/// Returns all sessions that match a filter, reading them page by page.
pub async fn every_session(
    client: &Client,
    filter: &ListSessions,
) -> anyhow::Result<Vec<SessionRow>> {
    let (mut rows, mut filter) = (Vec::new(), filter.clone());
    loop {
        let page = client.sessions(&filter).await?;
        rows.extend(page.sessions);
        filter.after = page.next;
        if filter.after.is_none() {
            return Ok(rows);
        }
    }
}

const OFFLINE: &str = "planck: commands of agents have no network; `tools.network = \"on\"` in the configuration gives it to them";

/// A session that accepts prompts, with its model and agents.
#[derive(Debug, Clone)]
pub struct PromptedSession {
    pub id: SessionId,
    pub name: SessionName,
    pub orchestrator: AgentId,
    /// The model of the orchestrator as `provider:model`.
    pub model: String,
    /// The names of the agents. The orchestrator is the first.
    pub agents: Vec<String>,
    /// The shape of the answers to prompts from here.
    pub output: Option<OutputSpec>,
}

/// Reads the shape of an answer from a file with a JSON Schema.
pub fn shape_in(file: &Path) -> Result<OutputSpec, UsageError> {
    let fault = |why: String| UsageError(format!("{}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|why| fault(why.to_string()))?;
    // The limit of a schema is that of its text, so the text is checked before it is parsed.
    CompiledSchema::compile(&text).map_err(fault)?;
    let schema = serde_json::from_str(&text).map_err(|why| fault(why.to_string()))?;
    Ok(OutputSpec { schema, name: None })
}

impl PromptedSession {
    pub async fn with(client: &Client, session: &str) -> anyhow::Result<Self> {
        let info = client.session(session).await?;
        let orchestrator = info
            .orchestrator()
            .with_context(|| format!("session {} has no agent", info.name))?
            .clone();
        let model = client.agent(&orchestrator.id).await?.model;
        let others = info
            .agents
            .iter()
            .filter(|agent| agent.id != orchestrator.id)
            .map(|agent| agent.name.clone());
        Ok(Self {
            model: format!("{}:{}", model.provider, model.id),
            agents: std::iter::once(orchestrator.name.clone())
                .chain(others)
                .collect(),
            orchestrator: orchestrator.id,
            id: info.id,
            name: info.name,
            output: None,
        })
    }

    /// Returns the title of the session, for example `session bold-oak · model anthropic:claude-…`.
    pub fn title(&self) -> String {
        let team = match self.agents.as_slice() {
            [] | [_] => String::new(),
            agents => format!(" · team {}", agents.join(", ")),
        };
        format!("session {} · model {}{team}", self.name, self.model)
    }

    /// Says that commands have no network if an agent of the session runs commands, and names the
    /// setting. A model that cannot fetch a package often does not say why.
    pub async fn say_if_offline(&self, link: &ConnectedClient) -> anyhow::Result<()> {
        if !link.lacks_network() {
            return Ok(());
        }
        for agent in link.client.session(&self.id).await?.agents {
            let tools = link.client.agent(&agent.id).await?.tools;
            if tools.iter().any(|tool| tool == "bash") {
                warn(OFFLINE);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Changes the model of the orchestrator.
    pub async fn change_model(
        &mut self,
        client: &Client,
        change: &ChangeModel,
    ) -> anyhow::Result<()> {
        let model = client.change_model(&self.orchestrator, change).await?.model;
        self.model = format!("{}:{}", model.provider, model.id);
        Ok(())
    }

    /// Sends a prompt to the session.
    pub async fn prompt(&self, client: &Client, content: Vec<Part>) -> anyhow::Result<WatchedWork> {
        let prompt = Prompt {
            text: None,
            content: Some(content),
            prompt_id: None,
            mode: Default::default(),
            agent: None,
            by: own_name(),
            output: self.output.clone(),
        };
        Ok(client.prompt(&self.id, prompt).await?.into())
    }
}

impl SessionChoice {
    /// Returns an error if a provider of the members has no key, before a session is created that
    /// could do nothing. With NATS the keys are those of the nodes, and nothing is checked.
    pub fn check_keys(&self, config: &Config) -> anyhow::Result<()> {
        if config.nats.url.is_some() {
            return Ok(());
        }
        let members = match self.team()? {
            (_, Some(members)) => members,
            (Some(name), None) => {
                let found = team::find(&config.sources(SourcePart::Teams), &name);
                let file = found.ok().flatten();
                let team = file.and_then(|file| team::load(&file).ok());
                team.map_or_else(Vec::new, |team| team.members)
            }
            (None, None) => vec![Member::default()],
        };
        let known = KnownModels::of(config);
        let default = node::default_model(config);
        let mut ignored = Vec::new();
        for member in &members {
            let mut mistakes = Mistakes::in_file("", &mut ignored);
            let model = known.choose(member, default.as_ref(), &mut mistakes);
            let lacks_key = |model: &ModelRef| {
                let providers = &config.providers;
                model.base_url.is_none()
                    && providers.has(&model.provider)
                    && !providers.is_ready(&model.provider)
            };
            if let Some(model) = model.filter(lacks_key) {
                return Err(UsageError(no_key(&model.provider)).into());
            }
        }
        Ok(())
    }
}

/// Returns the error about a provider without a key, with the ways to set it.
fn no_key(provider: &str) -> String {
    let variable = Preset::find(provider).and_then(|preset| preset.key_variable);
    let variable = variable.map_or(String::new(), |variable| format!("{variable} or "));
    format!("provider `{provider}` has no key; set {variable}`providers.{provider}.api_key`")
}
