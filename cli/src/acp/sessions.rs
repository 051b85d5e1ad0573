//! The sessions of a client: creates, lists, opens and ends them.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{FutureExt as _, TryStreamExt as _};
use planck_client::{
    Client, ClientError,
    turn::{Turn, TurnChoice, Until},
};
use planck_common::{
    SessionId,
    command::{self, AgentInfo, AgentRow, SessionInfo, WorkState},
    reply::Code,
};
use planck_host::terminal::clean_line;
use planck_node::config::Config;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    AcpArgs,
    connection::ToClient,
    history::History,
    options::{Draft, Offers, Settings},
    rpc::{RequestId, RpcError},
    updates::Translator,
    wire::{
        AvailableCommand, ClientCan, CommandInput, ConfigOptions, ListSessions, ListedSession,
        NamedServer, NamedSession, NewSession, Nothing, OpenSession, SessionList, SessionOpened,
        SetConfigOption, SetMode, Update,
    },
    work::{Running, TextAnswers, Work},
};
use crate::{model, output::warn, render::style::cut, session::list::SessionDescription};

/// How many sessions without a prompt are kept. An older one is forgotten, and a client creates another.
const MOST_DRAFTS: usize = 1_024;
/// How many prompts are sent to nodes at once.
const MOST_AT_ONCE: usize = 16;
/// The number of columns of a title.
pub const TITLE: usize = 80;

/// The sessions, as one client uses them.
pub struct Sessions {
    pub client: Client,
    pub config: Arc<Config>,
    pub args: AcpArgs,
    pub to_client: ToClient,
    /// Bounds how many prompts are sent at once. A node would answer some of very many too late.
    pub sending: Semaphore,
    known: Mutex<Known>,
}

/// What the client has chosen, and what runs for it.
#[derive(Default)]
pub struct Known {
    pub can: ClientCan,
    /// The sessions that start with their first prompt.
    pub drafts: BTreeMap<String, Draft>,
    pub running: HashMap<String, Arc<Running>>,
    /// The sessions in which a prompt waits for the end of what runs, with the sign to give it up.
    pub waiting: HashMap<String, CancellationToken>,
}

/// The right to run a prompt in a session. While it exists, there is no other one.
pub struct Claim {
    sessions: Arc<Sessions>,
    /// The session as the client names it.
    pub session: String,
    pub running: Arc<Running>,
    pub answers: TextAnswers,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.sessions.known().running.remove(&self.session);
        self.running.over.cancel();
    }
}

impl Sessions {
    pub fn new(client: Client, config: Arc<Config>, args: AcpArgs, to_client: ToClient) -> Self {
        Self {
            client,
            config,
            args,
            to_client,
            sending: Semaphore::new(MOST_AT_ONCE),
            known: Mutex::default(),
        }
    }

    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what the client can do.
    pub fn serve_a(&self, client: ClientCan) {
        self.known().can = client;
    }

    /// Returns the right to run a prompt in a session or to open it, unless something runs in it.
    pub fn claim(
        self: &Arc<Self>,
        session: &str,
        prompt: Option<RequestId>,
    ) -> Result<Claim, RpcError> {
        let mut known = self.known();
        if known.running.contains_key(session) {
            return Err(busy(session));
        }
        let (running, answers) = Running::new(prompt);
        known
            .running
            .insert(session.to_owned(), Arc::clone(&running));
        Ok(Claim {
            sessions: Arc::clone(self),
            session: session.to_owned(),
            running,
            answers,
        })
    }

    /// Cancels the prompt that runs in a session, if there is one, and the one that waits for it.
    pub fn cancel(&self, session: &str) {
        let mut known = self.known();
        if let Some(running) = known.running.get(session) {
            running.cancel();
        }
        if let Some(waiting) = known.waiting.remove(session) {
            waiting.cancel();
        }
    }

    /// Cancels a prompt by its request. Other requests end soon by themselves.
    pub fn cancel_request(&self, id: &RequestId) {
        let known = self.known();
        if let Some(running) = known.running.values().find(|running| running.is_for(id)) {
            running.cancel();
        }
    }

    // New sessions and their settings.

    /// Creates a session. It starts with its first prompt. The answer comes before any update.
    pub async fn create(self: Arc<Self>, id: RequestId, new: NewSession) {
        let created = self.created(&new).await;
        let session = created
            .as_ref()
            .ok()
            .and_then(|opened| opened.session_id.clone());
        self.to_client.answer(id, created).await;
        if let Some(session) = session {
            self.tell_commands(&session).await;
            self.tell_unused(&session, &new.mcp_servers).await;
        }
    }

    async fn created(&self, new: &NewSession) -> Result<SessionOpened, RpcError> {
        let draft = Draft {
            dir: absolute(&new.cwd)?.to_path_buf(),
            permissions: self.args.permissions,
            team: self.args.team.clone(),
            model: None,
        };
        self.args.choice(Some(&draft)).request().map_err(unusable)?;
        let settings = draft.settings(self.args.model.as_deref());
        let session = SessionId::mint().to_string();
        let opened = self.opened(Some(session.clone()), &settings).await;
        let mut known = self.known();
        if known.drafts.len() >= MOST_DRAFTS {
            // Ids are ordered by time, so this is the oldest one.
            known.drafts.pop_first();
        }
        known.drafts.insert(session, draft);
        Ok(opened)
    }

    async fn opened(&self, session_id: Option<String>, settings: &Settings) -> SessionOpened {
        SessionOpened {
            session_id,
            modes: settings.modes(),
            config_options: settings.options(&self.offers().await),
        }
    }

    /// Returns what the nodes offer. A client can do without.
    pub async fn offers(&self) -> Offers {
        let (teams, models) = tokio::join!(self.client.teams(), self.client.models());
        Offers {
            teams: teams.map(|teams| teams.teams).unwrap_or_default(),
            models: models.map(|models| models.models).unwrap_or_default(),
        }
    }

    pub fn draft(&self, session: &str) -> Option<Draft> {
        self.known().drafts.get(session).cloned()
    }

    pub async fn set_mode(self: Arc<Self>, id: RequestId, set: SetMode) {
        let done = self.changed(&set.session_id, "mode", &set.mode_id).await;
        let settings = done.as_ref().ok().map(|(settings, _)| settings.modes());
        self.to_client.answer(id, done.map(|_| Nothing {})).await;
        if let Some(modes) = settings {
            let current_mode_id = modes.current_mode_id;
            let update = Update::CurrentMode { current_mode_id };
            self.to_client.update(&set.session_id, update).await;
        }
    }

    pub async fn set_config_option(self: Arc<Self>, id: RequestId, set: SetConfigOption) {
        let done = self.changed(&set.session_id, &set.config_id, &set.value);
        let done = done.await.map(|(settings, offers)| ConfigOptions {
            config_options: settings.options(&offers),
        });
        self.to_client.answer(id, done).await;
    }

    /// Changes a setting of a session. Returns all of them, and what the nodes offer.
    async fn changed(
        &self,
        session: &str,
        setting: &str,
        value: &str,
    ) -> Result<(Settings, Offers), RpcError> {
        let offers = self.offers().await;
        let model = self.args.model.as_deref();
        if let Some(draft) = self.draft(session) {
            draft.settings(model).check(&offers, setting, value)?;
            let mut known = self.known();
            let draft = known.drafts.get_mut(session);
            let draft = draft.ok_or_else(|| started_meanwhile(session))?;
            draft.set(setting, value);
            return Ok((draft.settings(model), offers));
        }
        let (info, lead) = self.started(session).await?;
        let settings = Settings::of(&info, &lead.model);
        settings.check(&offers, setting, value)?;
        if setting != "model" {
            return Ok((settings, offers));
        }
        let change =
            model::choose(&offers.models, "", value).map_err(|why| unusable(why.into()))?;
        let now = self.client.change_model(&lead.id, &change).await;
        let now = now.map_err(|why| refused(&why))?;
        Ok((Settings::of(&info, &now.model), offers))
    }

    /// Returns a session that has started, and its lead.
    pub async fn started(&self, session: &str) -> Result<(SessionInfo, AgentInfo), RpcError> {
        let info = self.client.session(session).await;
        let info = info.map_err(|why| refused(&why))?;
        let lead = lead_of(&info)?;
        let lead = self.client.agent(&lead.id).await;
        Ok((info, lead.map_err(|why| refused(&why))?))
    }

    /// Tells the client the commands of a session. An editor waits for the list.
    async fn tell_commands(&self, session: &str) {
        let command = |name, description, hint: Option<&'static str>| AvailableCommand {
            name,
            description,
            input: hint.map(|hint| CommandInput { hint }),
        };
        let available_commands = vec![
            command("team", "Show the agents of the session", None),
            command(
                "permissions",
                "Show which calls run, ask or are refused",
                None,
            ),
            command("cost", "Show the tokens and the cost of the session", None),
            command("session", "Show how to go on in a terminal", None),
            command("rename", "Give the session a title", Some("TITLE")),
        ];
        let update = Update::AvailableCommands { available_commands };
        self.to_client.update(session, update).await;
    }

    /// Says which MCP servers of the client are not used. They would run where the editor is, and
    /// agents work where their node is.
    async fn tell_unused(&self, session: &str, servers: &[NamedServer]) {
        if servers.is_empty() {
            return;
        }
        let names = servers.iter().map(|server| &*server.name);
        let names = names.collect::<Vec<_>>().join(", ");
        let text = format!(
            "the MCP servers of the editor are not used: {}; `planck mcp add` adds them to a node",
            clean_line(&cut(&names, 200))
        );
        warn(&format!("planck: {text}"));
        let can = self.known().can;
        if can.show_notices {
            let notice = Translator::new("servers", "/", can).notice(&text);
            self.to_client.update(session, notice).await;
        }
    }

    // Sessions that exist.

    /// Answers with a page of the sessions, the one that was used last first.
    pub async fn list(self: Arc<Self>, id: RequestId, list: ListSessions) {
        let listed = self.listed(list).await;
        self.to_client.answer(id, listed).await;
    }

    async fn listed(&self, list: ListSessions) -> Result<SessionList, RpcError> {
        let wanted = list.cwd.as_deref().map(absolute).transpose()?;
        let wanted = wanted.map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf()));
        let filter = command::ListSessions {
            after: list.cursor,
            ..command::ListSessions::default()
        };
        let page = self.client.sessions(&filter).await;
        let page = page.map_err(|why| refused(&why))?;
        let sessions = page.sessions.into_iter().filter_map(|row| {
            // The directory of a workspace is on the node.
            let in_workspace = self.args.workspace.as_ref() == Some(&row.workspace);
            let dir = match in_workspace {
                true => list.cwd.clone().unwrap_or_else(|| "/".into()),
                false => row.dir.clone().filter(|dir| Path::new(dir).is_absolute())?,
            };
            let is_wanted = |wanted: &Path| in_workspace || wanted == Path::new(&dir);
            wanted
                .as_deref()
                .is_none_or(is_wanted)
                .then(|| ListedSession {
                    session_id: row.id.to_string(),
                    cwd: dir,
                    title: Some(cut(&SessionDescription::of(&row).first, TITLE))
                        .filter(|title| !title.is_empty()),
                    updated_at: row.updated_at.to_string(),
                })
        });
        Ok(SessionList {
            sessions: sessions.collect(),
            next_cursor: page.next,
        })
    }

    /// Closes a session, which ends its work. Its next prompt opens it again.
    pub async fn close(self: Arc<Self>, id: RequestId, named: NamedSession) {
        let session = named.session_id;
        self.cancel(&session);
        let draft = self.known().drafts.remove(&session);
        let done = match draft {
            Some(_) => Ok(()),
            None => self.client.close(&session, None).await.map(drop),
        };
        let done = done.map(|()| Nothing {}).map_err(|why| refused(&why));
        self.to_client.answer(id, done).await;
    }

    pub async fn delete(self: Arc<Self>, id: RequestId, named: NamedSession) {
        let session = named.session_id;
        self.cancel(&session);
        let draft = self.known().drafts.remove(&session);
        let done = match draft {
            Some(_) => Ok(()),
            None => self.client.delete(&session, None).await.map(drop),
        };
        let done = done.map(|()| Nothing {}).map_err(|why| refused(&why));
        self.to_client.answer(id, done).await;
    }

    /// Opens a session again. With `tells_history` the client is told all that was said. If its lead
    /// works, the answer comes when the client knows what has happened so far, and the rest follows
    /// without a request.
    pub async fn open(
        self: Arc<Self>,
        id: RequestId,
        claim: Claim,
        open: OpenSession,
        tells_history: bool,
    ) {
        let told = match absolute(&open.cwd) {
            Ok(_) => self.told(&open.session_id, tells_history).await,
            Err(error) => Err(error),
        };
        match told {
            Ok((opened, work)) => {
                let sessions = Arc::clone(&self);
                let answer = async move {
                    sessions.to_client.answer(id, Ok(opened)).await;
                    sessions.tell_commands(&open.session_id).await;
                    let servers = &open.mcp_servers;
                    sessions.tell_unused(&open.session_id, servers).await;
                };
                match work {
                    Some(work) => Box::pin(work.follow(claim, Some(answer.boxed()))).await,
                    None => {
                        // The client may send a prompt as soon as it has the answer.
                        drop(claim);
                        answer.await;
                    }
                }
            }
            Err(error) => self.to_client.answer::<Nothing>(id, Err(error)).await,
        }
    }

    /// Tells the client the log of a session, and returns the work that is not over.
    async fn told(
        &self,
        session: &str,
        tells_history: bool,
    ) -> Result<(SessionOpened, Option<Work>), RpcError> {
        if let Some(draft) = self.draft(session) {
            let settings = draft.settings(self.args.model.as_deref());
            return Ok((self.opened(None, &settings).await, None));
        }
        let refuse = |why: ClientError| refused(&why);
        // The outcome is asked for first, so that the log has all of the work that it calls over.
        let outcome = self.client.outcome(session, None, Duration::ZERO).await;
        let is_working = outcome.map_err(refuse)?.state != WorkState::Over;
        let (info, lead) = self.started(session).await?;
        let opened = self.opened(None, &Settings::of(&info, &lead.model)).await;
        let can = self.known().can;
        let translator = Translator::new("history", &info.dir, can);
        let mut history = History::new(lead.id.clone(), translator);
        if tells_history || is_working {
            let mut pages = self.client.pages(&info.id, 1, info.head);
            while let Some(page) = pages.try_next().await.map_err(refuse)? {
                for update in page.iter().flat_map(|event| history.take(event.get())) {
                    if tells_history {
                        self.to_client.update(session, update).await;
                    }
                }
            }
        }
        let (rest, running) = history.end(is_working);
        for update in rest.into_iter().filter(|_| tells_history) {
            self.to_client.update(session, update).await;
        }
        let Some((turn, from)) = running else {
            return Ok((opened, None));
        };
        let choice = TurnChoice::Number(turn);
        let turn = Turn::open(&self.client, &info, &lead.id, choice, from, Until::Work).await;
        let turn = turn.map_err(refuse)?;
        let shared = (self.client.clone(), self.to_client.clone(), can);
        Ok((opened, Some(Work::new(shared, &info, lead.id, turn, None))))
    }
}

fn lead_of(info: &SessionInfo) -> Result<&AgentRow, RpcError> {
    let none = || {
        let why = format!("the session `{}` has no agent", info.name);
        RpcError::new(RpcError::INTERNAL, why)
    };
    info.orchestrator().ok_or_else(none)
}

fn absolute(cwd: &str) -> Result<&Path, RpcError> {
    let dir = Path::new(cwd);
    let is_absolute = dir.is_absolute().then_some(dir);
    is_absolute.ok_or_else(|| RpcError::bad_params(format!("`cwd` is not absolute: `{cwd}`")))
}

pub fn unusable(why: anyhow::Error) -> RpcError {
    RpcError::bad_params(format!("{why:#}"))
}

pub fn busy(session: &str) -> RpcError {
    let why = format!(
        "a prompt is running in the session `{session}`; wait for its end, or send `session/cancel`"
    );
    RpcError::new(RpcError::NO_REQUEST, why)
}

fn started_meanwhile(session: &str) -> RpcError {
    let why = format!("the session `{session}` has just started; try again");
    RpcError::new(RpcError::NO_REQUEST, why)
}

pub fn refused(error: &ClientError) -> RpcError {
    let code = match error {
        ClientError::Refused(refusal) if refusal.code == Code::NotFound => RpcError::NOT_FOUND,
        ClientError::Refused(refusal) if refusal.code == Code::BadRequest => RpcError::BAD_PARAMS,
        ClientError::Refused(_) | ClientError::Unreachable(_) | ClientError::Malformed { .. } => {
            RpcError::INTERNAL
        }
    };
    RpcError::new(code, error.to_string())
}
