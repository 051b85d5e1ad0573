//! The sessions of a client: starts and loads them, and follows the work on their prompts.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{
    FutureExt as _, StreamExt as _, TryStreamExt as _, future::BoxFuture, stream::FuturesUnordered,
};
use planck_client::{
    Client, ClientError,
    turn::{StepReader, Turn, TurnChoice, Until},
};
use planck_common::{
    AgentId, InputId, Seq, SessionId,
    command::{self, AgentRow, AgentState, SessionInfo},
    envelope::Envelope,
    event::Event,
    message::{MessageRole, Part, text_of},
    reply::Code,
    wait::{WaitDecision, WaitOpened},
};
use planck_node::config::Config;
use tokio::sync::Notify;

use super::{
    AcpArgs,
    connection::ToClient,
    permission::{self, OpenWaits, way_out},
    updates::{Translator, end, said},
    wire::{
        LoadSession, NewSession, Nothing, Prompt, PromptBlock, PromptDone, RequestId, RpcError,
        SessionOpened, StopReason, Update,
    },
};
use crate::{choose::orchestrator, waits::own_name};

/// The sessions, as one client uses them.
pub struct Sessions {
    client: Client,
    config: Arc<Config>,
    args: AcpArgs,
    to_client: ToClient,
    /// The sessions in which a prompt runs, with the sign to cancel it.
    running: Mutex<HashMap<String, Arc<Notify>>>,
}

/// The right to run a prompt in a session. While it exists, there is no other one.
pub struct Claim {
    sessions: Arc<Sessions>,
    /// The session as the client names it.
    session: String,
    cancel: Arc<Notify>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.sessions.running().remove(&self.session);
    }
}

impl Sessions {
    pub fn new(client: Client, config: Arc<Config>, args: AcpArgs, to_client: ToClient) -> Self {
        Self {
            client,
            config,
            args,
            to_client,
            running: Mutex::default(),
        }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<String, Arc<Notify>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the right to run a prompt in a session, unless one is running.
    pub fn claim(self: &Arc<Self>, session: &str) -> Result<Claim, RpcError> {
        let mut running = self.running();
        if running.contains_key(session) {
            return Err(RpcError::new(
                RpcError::NO_REQUEST,
                format!(
                    "a prompt is running in the session `{session}`; wait for its end, or send `session/cancel`"
                ),
            ));
        }
        let cancel = Arc::new(Notify::new());
        running.insert(session.to_owned(), Arc::clone(&cancel));
        Ok(Claim {
            sessions: Arc::clone(self),
            session: session.to_owned(),
            cancel,
        })
    }

    /// Cancels the prompt that runs in a session, if there is one.
    pub fn cancel(&self, session: &str) {
        if let Some(cancel) = self.running().get(session) {
            cancel.notify_one();
        }
    }

    /// Starts a session. The answer comes before any update.
    pub async fn start(self: Arc<Self>, id: RequestId, new: NewSession) {
        match self.started(&new.cwd).await {
            Ok(session) => {
                let opened = SessionOpened {
                    session_id: &session,
                };
                self.to_client.answer(id, Ok(opened)).await;
                self.tell_commands(&session).await;
            }
            Err(error) => self.to_client.answer::<Nothing>(id, Err(error)).await,
        }
    }

    async fn started(&self, cwd: &str) -> Result<SessionId, RpcError> {
        let choice = self.args.choice(Some(absolute(cwd)?));
        let refuse = |why: anyhow::Error| RpcError::bad_params(format!("{why:#}"));
        choice.check_keys(&self.config).map_err(refuse)?;
        let start = choice.request().map_err(refuse)?;
        let started = self
            .client
            .start(start)
            .await
            .map_err(|why| refused(&why))?;
        Ok(started.session_id)
    }

    /// Tells the client that there are no commands, because an editor waits for the list.
    async fn tell_commands(&self, session: &str) {
        let update = Update::AvailableCommands {
            available_commands: [],
        };
        self.to_client.update(session, update).await;
    }

    /// Tells the client all that was said in a session. If its lead works, the answer comes when the
    /// client knows what has happened so far, and the rest follows without a request.
    pub async fn load(self: Arc<Self>, id: RequestId, claim: Claim, load: LoadSession) {
        match self.told(&load).await {
            Ok(Some(mut work)) => {
                let followed = work.follow(&claim, Some(id));
                if let Err(error) = Box::pin(followed).await {
                    let notice = work.translator.notice(&error.message);
                    self.to_client.update(&claim.session, notice).await;
                }
            }
            Ok(None) => {
                // The client may send a prompt as soon as it has the answer.
                drop(claim);
                self.loaded(id, &load.session_id).await;
            }
            Err(error) => self.to_client.answer::<Nothing>(id, Err(error)).await,
        }
    }

    async fn loaded(&self, id: RequestId, session: &str) {
        self.to_client.answer(id, Ok(Nothing {})).await;
        self.tell_commands(session).await;
    }

    /// Tells the client the log of a session, and returns the work that is not over.
    async fn told(&self, load: &LoadSession) -> Result<Option<Work>, RpcError> {
        absolute(&load.cwd)?;
        let refuse = |why: ClientError| refused(&why);
        let info = self
            .client
            .session(&load.session_id)
            .await
            .map_err(refuse)?;
        let Some(lead) = orchestrator(&info) else {
            return Ok(None);
        };
        let mut history = History {
            lead: lead.id.clone(),
            running: None,
            from: None,
            steps: StepReader::default(),
            translator: Translator::new("history"),
        };
        let mut head = info.head;
        if is_working(lead) {
            let snapshot = self.client.snapshot(&lead.id).await.map_err(refuse)?;
            head = snapshot.head;
            history.running = snapshot.running.map(|running| running.turn);
        }
        let mut pages = self.client.pages(&info.id, 1, head);
        while let Some(page) = pages.try_next().await.map_err(refuse)? {
            for event in page {
                for update in history.take(event.get()) {
                    self.to_client.update(&load.session_id, update).await;
                }
            }
        }
        let Some(turn) = history.running else {
            return Ok(None);
        };
        let (choice, from) = (TurnChoice::Number(turn), history.from.unwrap_or(head + 1));
        let lead = &history.lead;
        let turn = Turn::open(&self.client, &info, lead, choice, from, Until::Work).await;
        let turn = turn.map_err(refuse)?;
        Ok(Some(self.work(&info, turn, None)))
    }

    fn work(&self, info: &SessionInfo, turn: Turn, prompt: Option<InputId>) -> Work {
        let prefix = prompt.as_ref().map_or("running", |prompt| prompt.as_str());
        Work {
            client: self.client.clone(),
            to_client: self.to_client.clone(),
            session: info.id.clone(),
            translator: Translator::new(prefix),
            prompt,
            turn,
            waits: OpenWaits::default(),
            is_cancelled: false,
        }
    }

    /// Sends a prompt to a session, and tells the client what is done, until the work on it is over.
    pub async fn prompt(self: Arc<Self>, id: RequestId, claim: Claim, prompt: Prompt) {
        let done = Box::pin(self.prompted(&claim, prompt)).await;
        drop(claim);
        let done = done.map(|stop_reason| PromptDone { stop_reason });
        self.to_client.answer(id, done).await;
    }

    async fn prompted(&self, claim: &Claim, prompt: Prompt) -> Result<StopReason, RpcError> {
        let refuse = |why: ClientError| refused(&why);
        let prompt = command::Prompt {
            content: Some(content(prompt.prompt)?),
            by: own_name(),
            ..command::Prompt::default()
        };
        let accepted = self.client.prompt(&claim.session, prompt).await;
        let accepted = accepted.map_err(refuse)?;
        let info = self.client.session(&accepted.session_id).await;
        let info = info.map_err(refuse)?;
        let turn = self.client.follow_prompt(&accepted).await.map_err(refuse)?;
        let mut work = self.work(&info, turn, Some(accepted.prompt_id));
        if let Some(warning) = accepted.warning {
            let notice = work.translator.notice(&warning);
            self.to_client.update(&claim.session, notice).await;
        }
        Box::pin(work.follow(claim, None)).await
    }
}

/// The work on a prompt.
struct Work {
    client: Client,
    to_client: ToClient,
    session: SessionId,
    /// The prompt, unless another client has sent it.
    prompt: Option<InputId>,
    turn: Turn,
    translator: Translator,
    waits: OpenWaits,
    is_cancelled: bool,
}

/// A request that is open while the work goes on. It returns what the client is then told.
type Aside = BoxFuture<'static, Option<String>>;

impl Work {
    /// Tells the client what is done, and returns how the work ended. `load` is the request to load
    /// the session. It is answered when the client knows what was done before.
    async fn follow(
        &mut self,
        claim: &Claim,
        mut load: Option<RequestId>,
    ) -> Result<StopReason, RpcError> {
        let mut asides: FuturesUnordered<Aside> = FuturesUnordered::new();
        let ended = loop {
            let event = tokio::select! {
                event = self.turn.next() => match event {
                    Ok(event) => event,
                    Err(why) => break Err(refused(&why)),
                },
                () = claim.cancel.notified() => {
                    self.is_cancelled = true;
                    asides.push(self.abort());
                    continue;
                }
                Some(told) = asides.next(), if !asides.is_empty() => {
                    // A client that cancels withdraws its own questions.
                    if let Some(text) = told.filter(|_| !self.is_cancelled) {
                        let notice = self.translator.notice(&text);
                        self.to_client.update(&claim.session, notice).await;
                    }
                    continue;
                }
            };
            let Some(event) = event else {
                break Err(RpcError::new(RpcError::INTERNAL, "the work has no end"));
            };
            for update in self.translator.take(&event) {
                self.to_client.update(&claim.session, update).await;
            }
            for wait in self.waits.take(&event) {
                asides.push(self.ask(claim, wait));
            }
            if let Some(ended) = end(&event) {
                break ended;
            }
            if let Some(id) = load.take_if(|_| self.waits.are_live()) {
                claim.sessions.loaded(id, &claim.session).await;
            }
        };
        if let Some(id) = load {
            claim.sessions.loaded(id, &claim.session).await;
        }
        match ended {
            // The protocol knows no failure of what was cancelled.
            Err(_) if self.is_cancelled => Ok(StopReason::Cancelled),
            ended => ended,
        }
    }

    fn abort(&self) -> Aside {
        let (client, session) = (self.client.clone(), self.session.clone());
        let prompt = self.prompt.clone();
        let reason = Some("the editor cancelled the prompt".to_owned());
        async move {
            let aborted = client.abort_session(&session, prompt.as_ref(), reason);
            let error = aborted.await.err()?;
            Some(format!(
                "the prompt may go on, because it cannot be cancelled: {error}"
            ))
        }
        .boxed()
    }

    /// Asks the client about a wait, and passes its answer on. All requests name the session of the
    /// lead, because an editor knows no other one.
    fn ask(&self, claim: &Claim, wait: WaitOpened) -> Aside {
        let (client, to_client) = (self.client.clone(), self.to_client.clone());
        let (session, name) = (self.session.clone(), claim.session.clone());
        async move {
            let Some(request) = permission::request(&name, &wait) else {
                return Some(format!("{}; {}", wait.title, way_out(&wait)));
            };
            let said = match to_client.ask("session/request_permission", request).await {
                Ok(said) => said,
                Err(error) => {
                    let why = error.message;
                    return Some(format!("the editor cannot ask ({why}); {}", way_out(&wait)));
                }
            };
            let Some(answer) = permission::answer(&wait, &said) else {
                return Some(format!("the answer decides nothing; {}", way_out(&wait)));
            };
            match client.answer(&session, &answer).await {
                Ok(held) if held.decision == answer.decision => None,
                Ok(held) => {
                    let decision = WaitDecision::name(held.decision);
                    Some(format!("another answer came before: {decision}"))
                }
                Err(error) => Some(format!("the answer has no effect: {error}")),
            }
        }
        .boxed()
    }
}

/// What was said in a session before it was loaded.
struct History {
    lead: AgentId,
    /// The running turn. It is told when it is followed, but for its prompt.
    running: Option<u32>,
    /// The number of the first event of the running turn.
    from: Option<Seq>,
    steps: StepReader,
    translator: Translator,
}

impl History {
    /// Takes an event of the log, and returns its updates.
    fn take(&mut self, json: &str) -> Vec<Update> {
        // An event that this version cannot read says nothing that this version could show.
        let Ok(envelope) = serde_json::from_str::<Envelope>(json) else {
            return Vec::new();
        };
        if envelope.hidden_by.is_some() || envelope.agent_id != self.lead {
            return Vec::new();
        }
        let Some(Ok(event)) = envelope.event() else {
            return Vec::new();
        };
        if let Event::Message(saved) = &event
            && let (MessageRole::User, None) = (saved.message.role, &saved.message.metadata.from)
            && let Some(input) = saved.message.metadata.inputs.first()
        {
            return vec![said(input.as_str(), &text_of(&saved.message.content))];
        }
        if self.running == Some(envelope.turn) {
            self.from = self.from.or(envelope.seq);
            return Vec::new();
        }
        let events = self.steps.take(&envelope, &event);
        let updates = events.iter().flat_map(|event| self.translator.take(event));
        updates.collect()
    }
}

/// Returns whether an agent has a running turn, as far as its record says.
fn is_working(agent: &AgentRow) -> bool {
    match agent.state {
        AgentState::Streaming
        | AgentState::ExecutingTools
        | AgentState::Waiting
        | AgentState::Compacting => true,
        AgentState::Idle | AgentState::Stopped => false,
    }
}

/// Returns the content of a prompt. What a link names is not read: the agents may work on another
/// machine.
fn content(blocks: Vec<PromptBlock>) -> Result<Vec<Part>, RpcError> {
    let part = |block| match block {
        PromptBlock::Text { text } => Ok(Part::text(text)),
        PromptBlock::ResourceLink { name, uri } => Ok(Part::text(format!("[{name}]({uri})"))),
        PromptBlock::Other => Err(RpcError::bad_params(
            "a prompt has only texts and links, as `promptCapabilities` says",
        )),
    };
    blocks.into_iter().map(part).collect()
}

fn absolute(cwd: &str) -> Result<&Path, RpcError> {
    let dir = Path::new(cwd);
    let is_absolute = dir.is_absolute().then_some(dir);
    is_absolute.ok_or_else(|| RpcError::bad_params(format!("`cwd` is not absolute: `{cwd}`")))
}

fn refused(error: &ClientError) -> RpcError {
    let code = match error {
        ClientError::Refused(refusal) if refusal.code == Code::NotFound => RpcError::NOT_FOUND,
        ClientError::Refused(refusal) if refusal.code == Code::BadRequest => RpcError::BAD_PARAMS,
        ClientError::Refused(_) | ClientError::Unreachable(_) | ClientError::Malformed { .. } => {
            RpcError::INTERNAL
        }
    };
    RpcError::new(code, error.to_string())
}
