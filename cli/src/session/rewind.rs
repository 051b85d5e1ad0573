//! The command `planck session rewind`.

use planck_common::{
    Seq, SessionId,
    command::ReadEvents,
    envelope::Envelope,
    event::Event,
    message::{MessageRole, text_of},
};

use crate::{
    exit::Exit,
    output::{say, table},
    render::style::one_line,
    waits::own_name,
};
use planck_client::Client;

/// The number of messages that are listed, counted from the latest one.
const SHOWN: usize = 50;
/// The number of characters of each message that are shown.
const OF_A_MESSAGE: usize = 72;

pub async fn perform(client: &Client, session: &str, message: Option<Seq>) -> anyhow::Result<Exit> {
    let id = client.session(session).await?.id;
    match message {
        Some(message) => to(client, &id, message).await?,
        None => {
            list(client, &id).await?;
            say(&format!(
                "go back with `planck session rewind {session} --to MESSAGE`\n"
            ))?;
        }
    }
    Ok(Exit::Done)
}

/// Hides a message and everything after it.
pub async fn to(client: &Client, session: &SessionId, message: Seq) -> anyhow::Result<()> {
    let head = client.rewind(session, message, own_name()).await?.head;
    Ok(say(&format!(
        "message {message} and all after it are hidden; the log ends at {head}\n"
    ))?)
}

/// Prints the latest messages to which a session can be rewound, which are its visible user
/// messages.
pub async fn list(client: &Client, session: &SessionId) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let (mut from, head) = (1, client.session(session).await?.head);
    while from <= head {
        let page = client
            .events(
                session,
                &ReadEvents {
                    from: Some(from),
                    limit: None,
                    agent: None,
                },
            )
            .await?;
        rows.extend(
            page.events
                .iter()
                .filter_map(|event| row(&serde_json::from_str(event.get()).ok()?)),
        );
        rows.drain(..rows.len().saturating_sub(SHOWN));
        anyhow::ensure!(
            page.next > from,
            "the log of {session} cannot be read past event {from}"
        );
        from = page.next;
    }
    Ok(say(&table(&["message", "at", "text"], &rows))?)
}

fn row(event: &Envelope) -> Option<Vec<String>> {
    let seq = event.seq.filter(|_| event.hidden_by.is_none())?;
    let Event::Message(saved) = event.event()?.ok()? else {
        return None;
    };
    let is_prompt = saved.message.role == MessageRole::User;
    is_prompt.then(|| {
        vec![
            seq.to_string(),
            event.at.to_string(),
            one_line(&text_of(&saved.message.content), OF_A_MESSAGE),
        ]
    })
}
