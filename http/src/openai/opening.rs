//! Decides which session a request continues, or starts one, and sends it the prompt or the
//! results.

mod continuing;

use planck_client::{Client, ClientError};
use planck_common::{
    AgentId, InputId, Seq, SessionId, SessionName,
    command::{Prompt, SessionInfo, Start},
    message::Part,
    reply::{Code, Refusal},
};
use serde_json::Value;

pub use continuing::find;

use super::{
    ask::{Ask, ContinuedSession, Latest, marked, normal},
    error::OpenAiError,
    history::{Fit, LoggedTurn, fit, transcript, turns_after},
    ids::{ResponseId, digest, session_of},
    models,
    segment::{Beginning, Segment},
};
use crate::{front::Front, key::Caller, problem::Problem, turn::Until};

/// The maximum number of sessions that begin with the same prompt of the same client and are
/// compared with a history.
const ALIKE: usize = 8;
/// The key under which a session's metadata name the model for which it was started.
pub const MODEL: &str = "openai_model";
/// The key under which they name the task of a client for which it was started.
const TASK: &str = "openai_task";

/// A response that can be read.
#[derive(Debug)]
pub struct OpenedResponse {
    pub id: ResponseId,
    /// The log has at least this many events.
    pub head: Seq,
    pub agent: AgentId,
    /// The input that opened the turn.
    pub input: InputId,
    pub beginning: Beginning,
    /// The end of the prompt that this request sent. The response of another prompt is refused.
    pub asked: Option<String>,
    pub model: String,
    /// Whether the session was started only for the answer to a client's task.
    pub is_task: bool,
    /// The agents of the session.
    pub names: Vec<(AgentId, String)>,
    pub until: Until,
    pub warnings: Vec<String>,
}

impl OpenedResponse {
    pub fn beginning(&self) -> Beginning {
        self.beginning.clone()
    }
}

/// A session, and the agent that clients talk to.
#[derive(Debug, Clone)]
pub struct KnownSession {
    pub id: SessionId,
    pub head: Seq,
    pub agent: AgentId,
    pub model: String,
    /// Whether the session was started over this wire.
    pub is_own: bool,
    /// Whether an agent of the session waits for an answer.
    pub has_waits: bool,
    /// All agents.
    pub names: Vec<(AgentId, String)>,
}

impl TryFrom<SessionInfo> for KnownSession {
    type Error = OpenAiError;

    fn try_from(info: SessionInfo) -> Result<Self, OpenAiError> {
        let agent = info.orchestrator().map(|agent| agent.id.clone());
        let agent = agent.ok_or_else(|| {
            OpenAiError::not_found(format!("session `{}` has no orchestrator", info.name))
        })?;
        let model = info.metadata.get(MODEL).and_then(Value::as_str);
        let names = info.agents.iter();
        let names = names.map(|agent| (agent.id.clone(), agent.name.clone()));
        Ok(Self {
            agent,
            head: info.head,
            is_own: model.is_some(),
            model: model.unwrap_or(models::DEFAULT).to_owned(),
            has_waits: !info.waits.is_empty(),
            names: names.collect(),
            id: info.id,
        })
    }
}

/// Reads a session, by id or name.
pub async fn known(client: &Client, session: &str) -> Result<KnownSession, OpenAiError> {
    crate::body::id(session)?;
    client.session(session).await?.try_into()
}

/// Finds or starts the session of a request, gives it what is new, and opens the response.
pub async fn open(
    front: &Front,
    caller: &Caller,
    ask: Ask,
) -> Result<(OpenedResponse, Segment), OpenAiError> {
    let until = ask.until;
    let opened = give(front, caller, ask).await?;
    let opened = OpenedResponse { until, ..opened };
    let segment = Segment::open(front, &opened).await?;
    Ok((opened, segment))
}

async fn give(front: &Front, caller: &Caller, mut ask: Ask) -> Result<OpenedResponse, OpenAiError> {
    let Latest {
        results,
        prompt: parts,
    } = std::mem::take(&mut ask.latest);
    if !results.is_empty() {
        // The session of a task is deleted after the answer, so a task never continues a session.
        if ask.origin.task.is_some() {
            return Err(OpenAiError::parameter(
                "messages",
                "a request with the header `x-planck-task` takes no results of calls; send them without that header",
            ));
        }
        let mut opened = continuing::send_results(front, caller, &ask, results).await?;
        if parts.is_empty() {
            return Ok(opened);
        }
        opened.until = Until::Turn;
        continuing::finish(front, &opened).await?;
        // The calls have named the session, and their history may have no text to compare.
        ask.history.clear();
        ask.target = ContinuedSession::Session {
            name: opened.id.session.to_string(),
            may_start: false,
        };
    }
    let opening = PendingPrompt {
        front,
        client: front.client(),
        caller,
        text: marked(&parts),
        parts,
        ask,
    };
    if opening.ask.origin.task.is_some() {
        return opening.start(None, None).await;
    }
    match opening.ask.target.clone() {
        ContinuedSession::Response(id) => opening.after_response(&id).await,
        ContinuedSession::Session { name, may_start } => opening.in_session(&name, may_start).await,
        ContinuedSession::History => opening.by_history().await,
    }
}

/// A prompt on its way to a session.
struct PendingPrompt<'a> {
    front: &'a Front,
    client: &'a Client,
    caller: &'a Caller,
    ask: Ask,
    parts: Vec<Part>,
    /// The text of the parts, with marks for images and files.
    text: String,
}

impl PendingPrompt<'_> {
    /// Continues the session whose turns are the history that the client sent, or starts one.
    async fn by_history(self) -> Result<OpenedResponse, OpenAiError> {
        if let Some(key) = &self.ask.origin.idempotency_key {
            let id = session_of(self.caller.name.as_deref(), key);
            return self.start(Some(id), None).await;
        }
        let base = self.base();
        let name = |at: usize| format!("chat-{base}-{at}");
        let asked = (0..ALIKE).map(|at| {
            let name = name(at);
            async move { found(self.client.session(&name).await) }
        });
        let mut free = None;
        let mut sessions = Vec::new();
        for (at, session) in futures_util::future::join_all(asked)
            .await
            .into_iter()
            .enumerate()
        {
            match session? {
                Some(info) => sessions.push(KnownSession::try_from(info)?),
                None => free = free.or(Some(at)),
            }
        }
        let is_new = self.ask.history.is_empty() && !self.ask.origin.is_retry;
        for session in sessions.iter().rev().filter(|_| !is_new) {
            let turns = turns_after(self.client, &session.id, &session.agent, 0).await?;
            match self.fit(&turns.turns) {
                Fit::Next if turns.turns.is_empty() && !self.ask.origin.is_retry => {}
                Fit::Next => return self.after(session, &turns).await,
                Fit::Asked => return attached(session, turns.last()),
                Fit::Other => {}
            }
        }
        let name = free.and_then(|at| SessionName::parse(&name(at)).ok());
        self.start(None, name).await
    }

    /// Returns how the turns of a session and the history fit together.
    fn fit(&self, turns: &[LoggedTurn]) -> Fit {
        let (history, is_retry) = (&self.ask.history, self.ask.origin.is_retry);
        fit(turns, history, &self.text, is_retry)
    }

    /// Returns what the names of sessions of this conversation begin with.
    fn base(&self) -> String {
        let tools = self.ask.tools.iter().map(|tool| tool.name.as_str());
        let tools: Vec<_> = tools.collect();
        let first = self.ask.history.first();
        let first = first.map_or(self.text.as_str(), |said| said.user.as_str());
        let origin = &self.ask.origin;
        let all = (
            &self.caller.name,
            &self.ask.model,
            &origin.user,
            (&origin.workspace, &origin.dir),
            tools,
            normal(first),
        );
        digest(&planck_common::event::json(&all))
    }

    /// Starts a session, with the history as a transcript.
    async fn start(
        mut self,
        session_id: Option<SessionId>,
        name: Option<SessionName>,
    ) -> Result<OpenedResponse, OpenAiError> {
        let mut start = models::start(self.client, &self.ask.model).await?;
        let task = self.ask.origin.task.take();
        let is_task = task.is_some();
        if let Some(task) = task {
            self.ask.tools.clear();
            start = models::for_task(start);
            start.metadata.insert(TASK.to_owned(), Value::String(task));
        }
        start.session_id = session_id;
        start.name = name;
        start.workspace.clone_from(&self.ask.origin.workspace);
        start.dir.clone_from(&self.ask.origin.dir);
        self.front
            .start_defaults()
            .complete(&mut start, self.caller)?;
        start.client_tools = std::mem::take(&mut self.ask.tools);
        let model = Value::String(self.ask.model.clone());
        start.metadata.insert(MODEL.to_owned(), model);
        let started = self.started(start).await?;
        let session = known(self.client, &started).await?;
        if !self.ask.history.is_empty() {
            let text = transcript(&self.ask.history);
            self.parts.insert(0, Part::text(text));
        }
        if let Some(instructions) = self.ask.instructions.take() {
            self.instruct(&instructions);
        }
        let opened = self.prompt(&session, 0).await?;
        Ok(OpenedResponse { is_task, ..opened })
    }

    /// Starts a session. If its name is taken meanwhile, the node gives it another one.
    async fn started(&self, mut start: Start) -> Result<SessionId, OpenAiError> {
        match self.client.start(start.clone()).await {
            Ok(started) => Ok(started.session_id),
            Err(ClientError::Refused(refusal))
                if refusal.code == Code::Exists && start.name.is_some() =>
            {
                start.name = None;
                Ok(self.client.start(start).await?.session_id)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn instruct(&mut self, instructions: &str) {
        let text = format!("Instructions from the client:\n\n{instructions}\n\n---\n\n");
        self.parts.insert(0, Part::text(text));
    }

    /// Sends the prompt. Its id is that of the place, so a place is continued once.
    async fn prompt(
        mut self,
        session: &KnownSession,
        place: Seq,
    ) -> Result<OpenedResponse, OpenAiError> {
        if let Some(instructions) = self
            .ask
            .instructions
            .take()
            .filter(|_| self.ask.instructs_anew)
        {
            self.instruct(&instructions);
        }
        let input = ResponseId::prompt(&session.id, place);
        let prompt = Prompt {
            content: Some(std::mem::take(&mut self.parts)),
            prompt_id: Some(input.clone()),
            by: self.caller.name.clone(),
            output: self.ask.output.take(),
            ..Prompt::default()
        };
        // The feed starts while the node takes the prompt.
        let _feed = self.front.feed(&session.id);
        let accepted = self.client.prompt(&session.id, prompt).await?;
        // A response would have no end. The same request finds the prompt again.
        if let Some(why) = accepted.warning {
            return Err(Problem::from(Refusal::unavailable(why)).into());
        }
        self.check(session, place, &input).await?;
        let mut opened = opened(session, place, input, Beginning::Turn);
        opened.asked = Some(normal(&self.text));
        opened.warnings = self.ask.warnings;
        Ok(opened)
    }
}

fn opened(
    session: &KnownSession,
    place: Seq,
    input: InputId,
    beginning: Beginning,
) -> OpenedResponse {
    OpenedResponse {
        id: ResponseId {
            session: session.id.clone(),
            place,
            after: None,
        },
        head: session.head,
        agent: session.agent.clone(),
        input,
        beginning,
        asked: None,
        model: session.model.clone(),
        is_task: false,
        names: session.names.clone(),
        until: Until::default(),
        warnings: Vec::new(),
    }
}

/// Returns the response that a turn is, from its beginning.
fn attached(
    session: &KnownSession,
    turn: Option<&LoggedTurn>,
) -> Result<OpenedResponse, OpenAiError> {
    let turn = turn.ok_or_else(|| OpenAiError::not_found("the session has no turn"))?;
    Ok(opened(
        session,
        turn.place,
        turn.input.clone(),
        Beginning::Turn,
    ))
}

/// Returns the session of a reply, or `None` if there is none.
fn found(reply: Result<SessionInfo, ClientError>) -> Result<Option<SessionInfo>, OpenAiError> {
    match reply {
        Ok(info) => Ok(Some(info)),
        Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}
