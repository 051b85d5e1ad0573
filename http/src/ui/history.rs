//! Compares the client's history with the log: what the client wants must follow from what it has
//! seen.

use std::collections::HashSet;

use planck_client::{Client, ClientError};
use planck_common::{
    AgentId, InputId, Seq, SessionId,
    command::ReadMessages,
    event::json,
    message::{Message, MessageRole, Part},
};

use super::{body::UserMessage, ids};
use crate::problem::Problem;

/// The maximum number of pages of messages that are compared. Older ones are taken as they are.
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
pub enum Step {
    /// The message was sent before, as this prompt.
    Attach(InputId),
    Send,
    /// The session is rewound to this message first.
    Rewind(Seq),
}

/// Reads the latest prompts of an agent, oldest first.
pub async fn saved_prompts(
    client: &Client,
    session: &SessionId,
    agent: &AgentId,
) -> Result<Vec<SavedPrompt>, ClientError> {
    let mut pages = Vec::new();
    let mut before = None;
    for _ in 0..PAGES {
        let read = ReadMessages {
            agent: Some(agent.to_string()),
            before,
            limit: Some(PAGE),
        };
        let page = client.messages(session, &read).await?;
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
pub fn decide(saved: &[SavedPrompt], message: &UserMessage) -> Result<Step, Problem> {
    let base = ids::base(&message.id);
    let known = saved
        .iter()
        .position(|prompt| ids::base_of(&prompt.id) == base);
    let known = known.and_then(|at| Some((saved.get(..at)?, saved.get(at)?)));
    match known {
        Some((before, prompt)) if message.replaces => {
            compare(before, message)?;
            Ok(Step::Rewind(prompt.seq))
        }
        Some((_, prompt)) if json(&prompt.content) == json(&message.content) => {
            Ok(Step::Attach(prompt.id.clone()))
        }
        Some(_) => Err(Problem::conflict(format!(
            "the message `{}` was sent before with other content; to replace it, send its id as \
             `messageId`",
            message.id
        ))),
        None => {
            compare(saved, message)?;
            Ok(Step::Send)
        }
    }
}

/// Checks that the client has seen the prompts, in their order. Its history may begin later than the
/// log, because a client loads only the latest messages. A message that the client has and the log
/// has not was never accepted, so nothing depends on it.
fn compare(saved: &[SavedPrompt], message: &UserMessage) -> Result<(), Problem> {
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

    fn message(id: &str, text: &str, before: Option<&[&str]>, replaces: bool) -> UserMessage {
        UserMessage {
            id: id.into(),
            content: vec![Part::text(text)],
            replaces,
            before: before.map(|ids| ids.iter().map(|id| (*id).to_owned()).collect()),
        }
    }

    #[test]
    fn message_follows_from_what_the_client_has_seen() {
        let attach = |id: &str| Some(Step::Attach(InputId::parse(id).unwrap()));
        let log = ["a", "b_r20", "c"];
        for (id, text, before, replaces, expected) in [
            (
                "d",
                "d",
                Some(&["a", "b", "c"][..]),
                false,
                Some(Step::Send),
            ),
            ("d", "d", None, false, Some(Step::Send)),
            (
                "d",
                "d",
                Some(&["a", "x", "b", "c", "y"][..]),
                false,
                Some(Step::Send),
            ),
            ("d", "d", Some(&["a", "b"][..]), false, None),
            ("d", "d", Some(&["b", "a", "c"][..]), false, None),
            ("d", "d", Some(&["x"][..]), false, None),
            ("d", "d", Some(&["b", "c"][..]), false, Some(Step::Send)),
            ("d", "d", Some(&["b"][..]), false, None),
            ("d", "d", Some(&["a", "b", "c"][..]), true, Some(Step::Send)),
            ("c", "c", Some(&["a", "b"][..]), false, attach("c")),
            ("c", "other", Some(&["a", "b"][..]), false, None),
            (
                "c",
                "other",
                Some(&["a", "b"][..]),
                true,
                Some(Step::Rewind(30)),
            ),
            ("b", "b", Some(&["a"][..]), true, Some(Step::Rewind(20))),
            ("b", "b", Some(&["x"][..]), true, None),
            ("b", "b", Some(&["a"][..]), false, attach("b_r20")),
        ] {
            let message = message(id, text, before, replaces);
            let step = decide(&saved(&log), &message).ok();
            assert_eq!(step, expected, "{message:?}");
        }
    }
}
