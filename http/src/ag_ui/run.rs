//! Does what a run asks for, and finds the turns that answer it.

use std::collections::HashSet;

use planck_client::turn::TurnChoice;
use planck_common::{
    CallId, SessionId,
    command::{SessionInfo, TeamRow},
};
use serde_json::Value;

use super::{
    body::{self, KnownMessages, ResumeEntry, RunRequest, message_of_user, without_context},
    events::RunEncoder,
    messages::{MessageFold, ThreadWriter},
};
use crate::{
    front::Front,
    key::Caller,
    openai::models::DEFAULT,
    problem::Problem,
    turn::{TurnStream, Until},
    ui::{
        PromptMessage,
        chat::{self, Chat, PromptStep},
        ids,
        saved::{ReadChat, read_messages},
    },
};

/// Performs a request.
pub async fn perform(
    front: &Front,
    team: &str,
    mut request: RunRequest,
    caller: Caller,
    until: Until,
) -> Result<Run, Problem> {
    let run = Run::new(request.thread.clone(), request.run.clone(), until);
    let Some(chat) = chat::find(front, &request.thread, until).await? else {
        return run.begin(front, team, request, caller).await;
    };
    check_team(&chat.session, team)?;
    let answered = answer(&chat, &request, &caller).await?;
    match request.prompt.take() {
        Some(message) if is_new(&chat, &message).await? => {
            check_waits(&chat, &answered).await?;
            run.prompt(&chat, request, &message, caller).await
        }
        _ => run.read(&chat, request.known, answered).await,
    }
}

/// Checks that a session has the team of the route.
fn check_team(session: &SessionInfo, team: &str) -> Result<(), Problem> {
    let known = session.team.as_deref().unwrap_or(DEFAULT);
    match known == team {
        true => Ok(()),
        false => Err(Problem::conflict(format!(
            "the thread has the team `{known}`; send it to `/ag-ui/{known}`, or choose another \
             `threadId`"
        ))),
    }
}

/// Gives the answers of the client, and returns the waits that they are for.
async fn answer(
    chat: &Chat<'_>,
    request: &RunRequest,
    caller: &Caller,
) -> Result<HashSet<CallId>, Problem> {
    if let Some(id) = request.resume.iter().find_map(ResumeEntry::stranger) {
        return Err(Problem::bad_request(format!(
            "`{id}` is the id of no interrupt that this front has sent"
        )));
    }
    let open = chat.open_waits().await?;
    let answers = body::answers(&open, &request.resume, &request.known)?;
    if let (true, false, Some(wait)) = (answers.is_empty(), request.resume.is_empty(), open.first())
    {
        return Err(Problem::conflict(format!(
            "`resume` answers nothing that the thread waits for, such as `{}` (call {})",
            wait.title, wait.id
        )));
    }
    chat.give(&answers, caller.name.clone()).await?;
    Ok(answers.into_iter().map(|answer| answer.wait).collect())
}

/// Returns whether the thread does not have a message of the user yet.
async fn is_new(chat: &Chat<'_>, message: &PromptMessage) -> Result<bool, Problem> {
    let mut saved = chat.saved_prompts().await?;
    for prompt in &mut saved {
        prompt.content = without_context(&prompt.content).to_vec();
    }
    match chat::decide(&saved, message) {
        Ok(PromptStep::Send) => Ok(true),
        Ok(PromptStep::Attach(_)) => Ok(false),
        Ok(PromptStep::Rewind(_)) | Err(_) => Err(Problem::conflict(format!(
            "`messages` are not those of the thread: one of the user's was changed, or another was \
             sent meanwhile; send `\"messages\": []` to read the thread, or rewind it with \
             `POST /v1/sessions/{}/rewind`",
            chat.session.id
        ))),
    }
}

/// Refuses a prompt while the turn waits for an answer, because it would wait behind that turn.
async fn check_waits(chat: &Chat<'_>, answered: &HashSet<CallId>) -> Result<(), Problem> {
    let mut open = chat.open_waits().await?.into_iter();
    match open.find(|wait| !answered.contains(&wait.id)) {
        None => Ok(()),
        Some(wait) => Err(Problem::conflict(format!(
            "the thread waits for an answer to `{}` (call {}); send it as `resume` or as the \
             result of the tool, or abort the turn",
            wait.title, wait.id
        ))),
    }
}

/// Returns the team of a new session. One agent with the nodes' default model stands in the place of a
/// team that has its name.
async fn team_of(front: &Front, name: &str) -> Result<Option<String>, Problem> {
    let is_team = |team: &TeamRow| team.name == name;
    let is_default = name == DEFAULT && !front.client().teams().await?.teams.iter().any(is_team);
    Ok((!is_default).then(|| name.to_owned()))
}

fn no_thread(thread: &str) -> Problem {
    Problem::not_found(format!("there is no thread `{thread}`"))
}

/// A run, and how it is written for the client.
pub struct Run {
    pub thread: SessionId,
    /// The fields by which the client knows the run.
    pub fields: Value,
    pub until: Until,
    /// The events before those of the turns.
    pub first: Vec<Value>,
    /// The turns, unless the thread has none.
    pub turns: Option<(TurnStream, RunEncoder)>,
}

impl Run {
    fn new(thread: SessionId, fields: Value, until: Until) -> Self {
        Self {
            thread,
            fields,
            until,
            first: Vec::new(),
            turns: None,
        }
    }

    /// Starts the session of a new thread. A client that only opens a thread starts nothing.
    async fn begin(
        self,
        front: &Front,
        team: &str,
        mut request: RunRequest,
        caller: Caller,
    ) -> Result<Self, Problem> {
        if !request.resume.is_empty() {
            return Err(no_thread(&self.thread));
        }
        let Some(message) = request.prompt.take() else {
            let encoder = RunEncoder::new(self.thread.clone(), self.fields.clone());
            let first = encoder.nothing(MessageFold::default());
            return Ok(Self { first, ..self });
        };
        let mut fields = std::mem::take(&mut request.start);
        fields.team = team_of(front, team).await?;
        let session = chat::start(front, &self.thread, fields, &caller).await?;
        let chat = Chat::of(front, session, self.until)?;
        self.prompt(&chat, request, &message, caller).await
    }

    /// Sends a prompt. The client first gets the earlier messages, if it lacks some.
    async fn prompt(
        self,
        chat: &Chat<'_>,
        request: RunRequest,
        message: &PromptMessage,
        caller: Caller,
    ) -> Result<Self, Problem> {
        let earlier = read_messages::<ThreadWriter>(chat, ReadChat::default()).await?;
        let mut messages = earlier.messages;
        // The same request may have come twice at once, and the other one was first.
        let base = ids::base(&message.id);
        if messages.iter().any(|earlier| earlier["id"] == base) {
            let read = self.read(chat, request.known, HashSet::new());
            return Box::pin(read).await;
        }
        messages.push(message_of_user(&message.id, &message.content));
        let snapshot = MessageFold::of(messages).snapshot(&request.known);
        let id = ids::of_prompt(&base, None);
        let turns = chat.send(request.content(message), id, caller.name).await?;
        let encoder = RunEncoder::new(chat.session.id.clone(), self.fields.clone());
        Ok(Self {
            first: snapshot.into_iter().collect(),
            turns: Some((turns, encoder)),
            ..self
        })
    }

    /// Reads the latest answer of the thread, running or not, with all messages before it.
    /// `answered` are the waits that the client answers now.
    async fn read(
        self,
        chat: &Chat<'_>,
        known: KnownMessages,
        answered: HashSet<CallId>,
    ) -> Result<Self, Problem> {
        let resumed = chat.resumed_turn(true).await?;
        let read = ReadChat {
            before: resumed.map(|(turn, _)| turn),
        };
        let mut messages = read_messages::<ThreadWriter>(chat, read).await?.messages;
        let encoder = RunEncoder::new(chat.session.id.clone(), self.fields.clone());
        let encoder = encoder.knowing(known, answered);
        let Some((turn, from)) = resumed else {
            let first = encoder.nothing(MessageFold::of(messages));
            return Ok(Self { first, ..self });
        };
        for prompt in chat.saved_prompts().await? {
            let id = ids::base_of(&prompt.id);
            if prompt.seq >= from && !messages.iter().any(|message| message["id"] == id) {
                messages.push(message_of_user(id, &prompt.content));
            }
        }
        let (session, agent, choice) = (&chat.session, &chat.agent, TurnChoice::Number(turn));
        let turns = TurnStream::open(chat.front, session, agent, choice, from, chat.until).await?;
        let encoder = encoder.folding(MessageFold::of(messages));
        let turns = Some((turns, encoder));
        Ok(Self { turns, ..self })
    }

    /// Reads the answer again, and gives the client all messages. What it has been sent of the running
    /// step is void.
    pub async fn read_again(
        self,
        front: &Front,
        mut known: KnownMessages,
    ) -> Result<Self, Problem> {
        known.forget();
        let chat = chat::find(front, &self.thread, self.until).await?;
        let chat = chat.ok_or_else(|| no_thread(&self.thread))?;
        self.read(&chat, known, HashSet::new()).await
    }
}
