//! Does what a chat asks for, if that follows from what the client has seen of the log, and finds
//! the turns that answer it.

use std::{collections::HashSet, time::Duration};

use planck_client::{Client, ClientError, turn::TurnChoice};
use planck_common::{
    AgentId, InputId, Seq,
    command::{
        Aborted, Answer, ListWaits, Prompt, ReadMessages, SessionInfo, Start, WaitRow, WorkState,
    },
    event::json,
    message::{Message, MessageRole, Part},
    reply::Code,
    wait::WaitKind,
};

use super::{
    body::{self, AnsweringMessage, Asks, PromptMessage, StartFields, UiRequest},
    chunks::ChunkEncoder,
    ids,
};
use crate::{
    front::Front,
    key::Caller,
    problem::Problem,
    turn::{self, TurnOpening, TurnStream, Until},
};

/// An answer, and how it is written for the client.
pub struct UiReply {
    pub turn: TurnStream,
    pub encoder: ChunkEncoder,
}

/// A session with the agent that the client talks to.
pub struct Chat<'a> {
    pub front: &'a Front,
    pub session: SessionInfo,
    pub agent: AgentId,
    pub until: Until,
}

/// Performs a request.
pub async fn perform(
    front: &Front,
    request: UiRequest,
    caller: Caller,
    until: Until,
) -> Result<UiReply, Problem> {
    let known = find(front, &request.chat, until).await?;
    match (request.asks, known) {
        (Asks::Prompt(message), Some(chat)) => {
            chat.check_waits().await?;
            chat.prompt(message, caller.name).await
        }
        (Asks::Prompt(message), None) => {
            let session = start(front, &request.chat, request.start, &caller).await?;
            let chat = Chat::of(front, session, until)?;
            let id = ids::of_prompt(&ids::base(&message.id), None);
            chat.reply(message, id, caller.name).await
        }
        (Asks::Answer(message), Some(chat)) => chat.answer(&message, caller.name).await,
        (Asks::Answer(_), None) => Err(no_chat(&request.chat)),
    }
}

/// Returns the message of a chat that is running. If none is, returns `None`, or with `latest` the
/// latest message that no rewind hid, for a client that may have missed its end.
pub async fn resume(
    front: &Front,
    chat: &str,
    latest: bool,
    until: Until,
) -> Result<Option<UiReply>, Problem> {
    let Some(chat) = find(front, chat, until).await? else {
        return Ok(None);
    };
    let Some((number, from)) = chat.resumed_turn(latest).await? else {
        return Ok(None);
    };
    let (session, choice) = (&chat.session, TurnChoice::Number(number));
    let turn = TurnStream::open(front, session, &chat.agent, choice, from, until).await?;
    let encoder = ChunkEncoder::new(chat.session.id, None);
    Ok(Some(UiReply { turn, encoder }))
}

/// Aborts the work of the latest message of a chat.
pub async fn stop(front: &Front, chat: &str, why: Option<String>) -> Result<Aborted, Problem> {
    let client = front.client();
    let prompt = match find(front, chat, Until::Work).await? {
        Some(found) => found.latest().await?.and_then(|latest| latest.prompt),
        None => None,
    };
    Ok(client.abort_session(chat, prompt.as_ref(), why).await?)
}

/// Finds the session of a chat. Returns `None` if there is none.
pub async fn find<'a>(
    front: &'a Front,
    chat: &str,
    until: Until,
) -> Result<Option<Chat<'a>>, Problem> {
    match front.client().session(chat).await {
        Ok(session) => Chat::of(front, session, until).map(Some),
        Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn no_chat(chat: &str) -> Problem {
    Problem::not_found(format!("there is no chat `{chat}`"))
}

/// Starts the session of a chat.
pub async fn start(
    front: &Front,
    chat: &planck_common::SessionId,
    fields: StartFields,
    caller: &Caller,
) -> Result<SessionInfo, Problem> {
    let mut start = Start {
        session_id: Some(chat.clone()),
        // Not every chat id is a name, and then the node chooses one.
        name: planck_common::SessionName::parse(chat).ok(),
        team: fields.team,
        workspace: fields.workspace,
        dir: fields.dir,
        permissions: fields.permissions,
        client_tools: fields.client_tools,
        ..Start::default()
    };
    front.start_defaults().complete(&mut start, caller)?;
    let started = front.client().start(start).await?;
    Ok(front.client().session(&started.session_id).await?)
}

impl<'a> Chat<'a> {
    pub fn of(front: &'a Front, session: SessionInfo, until: Until) -> Result<Self, Problem> {
        let agent = session.orchestrator().map(|agent| agent.id.clone());
        let agent = agent.ok_or_else(|| {
            Problem::not_found(format!("session `{}` has no orchestrator", session.id))
        })?;
        Ok(Self {
            front,
            session,
            agent,
            until,
        })
    }

    pub fn client(&self) -> &'a Client {
        self.front.client()
    }

    /// Returns the number of the first turn of the message that a client resumes, and a place in the
    /// log at or before the turn's first event.
    pub async fn resumed_turn(&self, latest: bool) -> Result<Option<(u32, Seq)>, Problem> {
        let (client, session, agent) = (self.client(), &self.session, &self.agent);
        let is_working = session
            .orchestrator()
            .is_some_and(|lead| lead.state.has_turn());
        let running = match is_working {
            true => turn::running_turn(client, &session.id, agent).await?,
            false => None,
        };
        if let (Some(running), Until::Turn) = (running, self.until) {
            return Ok(Some(running));
        }
        let Some(opening) = self.latest().await? else {
            return Ok(running);
        };
        let (number, from) = (opening.turn, opening.from);
        if running.is_some() || self.is_open(&opening).await? {
            return Ok(Some((number, from)));
        }
        if !latest || turn::is_hidden(client, &session.id, agent, number, from).await? {
            return Ok(None);
        }
        Ok(Some((number, from)))
    }

    /// Returns the turn with which the latest message begins.
    async fn latest(&self) -> Result<Option<TurnOpening>, Problem> {
        let (client, session, agent) = (self.client(), &self.session, &self.agent);
        let number = client.agent(agent).await?.turn;
        if number == 0 {
            return Ok(None);
        }
        Ok(turn::opening_of(client, &session.id, agent, number, session.head).await?)
    }

    /// Returns whether other agents still work for a message.
    async fn is_open(&self, opening: &TurnOpening) -> Result<bool, Problem> {
        let Some(prompt) = opening
            .prompt
            .as_ref()
            .filter(|_| self.until == Until::Work)
        else {
            return Ok(false);
        };
        if self.session.agents.len() < 2 {
            return Ok(false);
        }
        let asked = self
            .client()
            .outcome(&self.session.id, prompt, Duration::ZERO);
        match asked.await {
            Ok(outcome) => Ok(outcome.state != WorkState::Over),
            // The session or its prompt was removed meanwhile.
            Err(ClientError::Refused(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns what the agent waits for.
    pub async fn open_waits(&self) -> Result<Vec<WaitRow>, Problem> {
        if self.session.waits.is_empty() {
            return Ok(Vec::new());
        }
        let filter = ListWaits {
            session: Some(self.session.id.to_string()),
            ..ListWaits::default()
        };
        let mut waits = self.client().waits(&filter).await?.waits;
        waits.retain(|wait| wait.agent_id == self.agent);
        Ok(waits)
    }

    /// Returns what the agent waits for and a client of this wire can answer.
    async fn answerable_waits(&self) -> Result<Vec<WaitRow>, Problem> {
        let mut waits = self.open_waits().await?;
        waits.retain(|wait| match wait.kind {
            WaitKind::Approval | WaitKind::Question | WaitKind::ClientTool => true,
            WaitKind::Budget | WaitKind::Change => false,
        });
        Ok(waits)
    }

    /// Refuses a prompt while the turn waits for an answer, because it would wait behind that turn.
    async fn check_waits(&self) -> Result<(), Problem> {
        let Some(wait) = self.answerable_waits().await?.into_iter().next() else {
            return Ok(());
        };
        Err(Problem::conflict(format!(
            "the chat waits for an answer to `{}` (call {}); answer it, or stop the turn",
            wait.title, wait.id
        )))
    }

    async fn prompt(self, message: PromptMessage, by: Option<String>) -> Result<UiReply, Problem> {
        let saved = self.saved_prompts().await?;
        let base = ids::base(&message.id);
        let id = match decide(&saved, &message)? {
            PromptStep::Attach(id) => Some(id),
            PromptStep::Send => ids::of_prompt(&base, None),
            PromptStep::Rewind(to) => {
                self.client()
                    .rewind(&self.session.id, to, by.clone())
                    .await?;
                ids::of_prompt(&base, Some(to))
            }
        };
        self.reply(message, id, by).await
    }

    async fn reply(
        self,
        message: PromptMessage,
        id: Option<InputId>,
        by: Option<String>,
    ) -> Result<UiReply, Problem> {
        let turn = self.send(message.content, id, by).await?;
        let encoder = ChunkEncoder::new(self.session.id, None);
        Ok(UiReply { turn, encoder })
    }

    /// Sends a prompt, and opens the turns that answer it.
    pub async fn send(
        &self,
        content: Vec<Part>,
        id: Option<InputId>,
        by: Option<String>,
    ) -> Result<TurnStream, Problem> {
        let prompt = Prompt {
            content: Some(content),
            prompt_id: id,
            by,
            ..Prompt::default()
        };
        // The feed starts while the node takes the prompt.
        let _feed = self.front.feed(&self.session.id);
        let accepted = self.client().prompt(&self.session.id, prompt).await?;
        let choice = TurnChoice::Of(accepted.prompt_id);
        let from = accepted.seq + 1;
        let (session, agent, until) = (&self.session, &self.agent, self.until);
        TurnStream::open(self.front, session, agent, choice, from, until).await
    }

    async fn answer(
        self,
        message: &AnsweringMessage,
        by: Option<String>,
    ) -> Result<UiReply, Problem> {
        let open = self.answerable_waits().await?;
        let answers = body::answers(&open, &message.calls)?;
        if let (true, Some(wait)) = (answers.is_empty(), open.first()) {
            return Err(Problem::conflict(format!(
                "the message answers nothing that the chat waits for, such as `{}` (call {})",
                wait.title, wait.id
            )));
        }
        self.give(&answers, by).await?;
        let continued = body::continued(&answers, &message.calls).ok_or_else(|| {
            Problem::conflict("the message answers nothing that the chat waits for")
        })?;
        let turn = self.turn_of(&message.id).await?;
        let encoder = ChunkEncoder::new(self.session.id, Some(continued));
        Ok(UiReply { turn, encoder })
    }

    /// Gives answers to waits, unless another client was first.
    pub async fn give(&self, answers: &[Answer], by: Option<String>) -> Result<(), Problem> {
        for answer in answers {
            let answer = Answer {
                by: by.clone(),
                ..answer.clone()
            };
            match self.client().answer(&self.session.id, &answer).await {
                Ok(_) => {}
                Err(error) => self.check_decided(&answer, error).await?,
            }
        }
        Ok(())
    }

    /// Passes over the refusal of an answer because another client was first, since the stream shows
    /// what was decided. Returns the error if the wait is still open.
    async fn check_decided(&self, answer: &Answer, error: ClientError) -> Result<(), Problem> {
        let is_late =
            matches!(&error, ClientError::Refused(refusal) if refusal.code == Code::Exists);
        let open = self.open_waits().await?;
        match is_late && !open.iter().any(|wait| wait.id == answer.wait) {
            true => Ok(()),
            false => Err(error.into()),
        }
    }

    /// Opens the stream of the turns behind a message of the assistant, from the turn with which the
    /// message begins. Fails with a conflict if the chat has no such turn.
    async fn turn_of(&self, message: &str) -> Result<TurnStream, Problem> {
        let (client, session) = (self.client(), &self.session);
        let latest = client.agent(&self.agent).await?.turn;
        let number = ids::turn_of(&session.id, message).filter(|turn| (1..=latest).contains(turn));
        let number = number.ok_or_else(|| {
            Problem::conflict("the assistant's message is not from this chat; load the chat again")
        })?;
        let head = session.head;
        let from = turn::place_of(client, &session.id, &self.agent, number, head).await?;
        let choice = TurnChoice::Number(number);
        TurnStream::open(self.front, session, &self.agent, choice, from, self.until).await
    }

    /// Reads the latest prompts of the agent, oldest first.
    pub async fn saved_prompts(&self) -> Result<Vec<SavedPrompt>, ClientError> {
        let mut pages = Vec::new();
        let mut before = None;
        for _ in 0..PAGES {
            let read = ReadMessages {
                agent: Some(self.agent.to_string()),
                before,
                limit: Some(PAGE),
            };
            let page = self.client().messages(&self.session.id, &read).await?;
            let messages = page.messages.iter();
            let messages = messages.filter_map(|message| serde_json::from_str(message.get()).ok());
            pages.push(messages.flat_map(prompts).collect::<Vec<_>>());
            before = page.before;
            if before.is_none() {
                break;
            }
        }
        Ok(pages.into_iter().rev().flatten().collect())
    }
}

/// The maximum number of pages of messages that are compared with what the client has. Older messages
/// are not compared.
const PAGES: usize = 8;
/// The number of messages in a page.
const PAGE: u32 = 200;

/// A prompt in the log that no rewind hid.
#[derive(Debug, Clone)]
pub struct SavedPrompt {
    pub id: InputId,
    /// The number of its message.
    pub seq: Seq,
    pub content: Vec<Part>,
}

/// The way in which a message of the user becomes a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptStep {
    /// The message was sent before, as this prompt.
    Attach(InputId),
    Send,
    /// The session is rewound to this message first.
    Rewind(Seq),
}

fn prompts(message: Message) -> Vec<SavedPrompt> {
    // Clients do not have the messages that agents send to each other.
    if message.role != MessageRole::User || message.metadata.from.is_some() {
        return Vec::new();
    }
    let (seq, content) = (message.id, message.content);
    let ids = message.metadata.inputs.into_iter();
    ids.map(|id| SavedPrompt {
        id,
        seq,
        content: content.clone(),
    })
    .collect()
}

/// Decides what is to be done with a message of the user.
pub fn decide(saved: &[SavedPrompt], message: &PromptMessage) -> Result<PromptStep, Problem> {
    let base = ids::base(&message.id);
    let known = saved
        .iter()
        .position(|prompt| ids::base_of(&prompt.id) == base);
    let known = known.and_then(|at| Some((saved.get(..at)?, saved.get(at)?)));
    match known {
        Some((before, prompt)) if message.replaces => {
            compare(before, message)?;
            Ok(PromptStep::Rewind(prompt.seq))
        }
        Some((_, prompt)) if json(&prompt.content) == json(&message.content) => {
            Ok(PromptStep::Attach(prompt.id.clone()))
        }
        Some(_) => Err(Problem::conflict(format!(
            "the message `{}` was sent before with other content; to replace it, send its id as \
             `messageId`",
            message.id
        ))),
        None => {
            compare(saved, message)?;
            Ok(PromptStep::Send)
        }
    }
}

/// Checks that the client has seen the prompts, in their order. Its history may begin later than the
/// log, because a client loads only the latest messages. A message that the client has and the log
/// has not was never accepted, so nothing depends on it.
fn compare(saved: &[SavedPrompt], message: &PromptMessage) -> Result<(), Problem> {
    let Some(before) = &message.before else {
        return Ok(());
    };
    let before: Vec<String> = before.iter().map(|id| ids::base(id)).collect();
    let known: HashSet<&str> = before.iter().map(String::as_str).collect();
    let is_known = |prompt: &SavedPrompt| known.contains(ids::base_of(&prompt.id));
    let begin = saved.iter().position(is_known).unwrap_or_default();
    let mut seen = before.iter();
    let unseen = saved
        .iter()
        .skip(begin)
        .find(|prompt| !seen.any(|id| id == ids::base_of(&prompt.id)));
    match unseen {
        None => Ok(()),
        Some(prompt) => Err(Problem::conflict(format!(
            "the history is not that of this chat: it lacks the message `{}`, which was sent \
             meanwhile; load the chat again, or send an earlier message's id as `messageId` to \
             continue from there",
            ids::base_of(&prompt.id)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(ids: &[&str]) -> Vec<SavedPrompt> {
        let prompts = ids.iter().zip(1..).map(|(id, at)| SavedPrompt {
            id: InputId::parse(id).unwrap(),
            seq: at * 10,
            content: vec![Part::text(ids::base_of(id))],
        });
        prompts.collect()
    }

    fn message(id: &str, text: &str, before: Option<&[&str]>, replaces: bool) -> PromptMessage {
        PromptMessage {
            id: id.into(),
            content: vec![Part::text(text)],
            replaces,
            before: before.map(|ids| ids.iter().map(|id| (*id).to_owned()).collect()),
        }
    }

    #[test]
    fn message_follows_from_what_the_client_has_seen() {
        let attach = |id: &str| Some(PromptStep::Attach(InputId::parse(id).unwrap()));
        let log = ["a", "b_r20", "c"];
        for (id, text, before, replaces, expected) in [
            (
                "d",
                "d",
                Some(&["a", "b", "c"][..]),
                false,
                Some(PromptStep::Send),
            ),
            ("d", "d", None, false, Some(PromptStep::Send)),
            (
                "d",
                "d",
                Some(&["a", "x", "b", "c", "y"][..]),
                false,
                Some(PromptStep::Send),
            ),
            ("d", "d", Some(&["a", "b"][..]), false, None),
            ("d", "d", Some(&["b", "a", "c"][..]), false, None),
            ("d", "d", Some(&["x"][..]), false, None),
            (
                "d",
                "d",
                Some(&["b", "c"][..]),
                false,
                Some(PromptStep::Send),
            ),
            ("d", "d", Some(&["b"][..]), false, None),
            (
                "d",
                "d",
                Some(&["a", "b", "c"][..]),
                true,
                Some(PromptStep::Send),
            ),
            ("c", "c", Some(&["a", "b"][..]), false, attach("c")),
            ("c", "other", Some(&["a", "b"][..]), false, None),
            (
                "c",
                "other",
                Some(&["a", "b"][..]),
                true,
                Some(PromptStep::Rewind(30)),
            ),
            (
                "b",
                "b",
                Some(&["a"][..]),
                true,
                Some(PromptStep::Rewind(20)),
            ),
            ("b", "b", Some(&["x"][..]), true, None),
            ("b", "b", Some(&["a"][..]), false, attach("b_r20")),
        ] {
            let message = message(id, text, before, replaces);
            let step = decide(&saved(&log), &message).ok();
            assert_eq!(step, expected, "{message:?}");
        }
    }
}
