//! Asking those who answer in several messages: sidecars report progress, and many services say what they are.

use std::{sync::Arc, time::Duration};

use async_nats::{Message, StatusCode, Subscriber};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use planck_common::subject;
use tokio::time::{Instant, timeout_at};

use super::{
    link::{Denials, NatsLink},
    request::{LINK_PATIENCE, Outgoing, lost, trace_headers},
};
use crate::bus::{BusError, Conversation, Said};

/// Header of an error that a service answers.
const SERVICE_ERROR: &str = "Nats-Service-Error";

/// So many services are heard.
const MOST: usize = 4096;

/// Services are heard for so many times the quiet that ends it.
const ROUNDS: u32 = 4;

/// Asks, and hears whatever comes back until the conversation is dropped. A link that fails meanwhile does not end it: what was
/// asked goes on, and its answer may come when the link is back.
pub async fn converse(link: Arc<NatsLink>, subject: &str, body: Bytes) -> Result<Conversation, BusError> {
    let limit = link.client.max_payload();
    if body.len() > limit {
        return Err(BusError::TooLarge { size: body.len(), limit });
    }
    link.up_by(Instant::now() + LINK_PATIENCE).await?;
    let (inbox, denials) = (link.client.new_inbox(), link.events.denials());
    let replies = link.client.subscribe(inbox.clone()).await.map_err(|error| lost(&error))?;
    let asked = Outgoing { subject: subject.into(), headers: trace_headers(), body };
    asked.send(&link.client, &inbox, subject).await?;
    let heard = Heard { _link: link, replies, denials, subjects: [subject.into(), inbox] };
    Ok(stream::unfold(Some(heard), next).boxed())
}

struct Heard {
    /// The connection lives as long as somebody waits on it.
    _link: Arc<NatsLink>,
    replies: Subscriber,
    denials: Denials,
    /// Asked, and answered on.
    subjects: [String; 2],
}

/// The next message; an error is the last.
async fn next(heard: Option<Heard>) -> Option<(Result<Said, BusError>, Option<Heard>)> {
    let mut heard = heard?;
    let [asked, inbox] = &heard.subjects;
    let subjects = [asked.as_str(), inbox.as_str()];
    let said = tokio::select! {
        biased;
        reply = heard.replies.next() => read(reply, asked),
        denied = heard.denials.of(&subjects) => Err(denied),
    };
    let more = said.is_ok().then_some(heard);
    Some((said, more))
}

fn read(reply: Option<Message>, subject: &str) -> Result<Said, BusError> {
    let reply = reply.ok_or_else(|| BusError::Away("the connection was closed".into()))?;
    if reply.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(BusError::NoResponders(subject.into()));
    }
    let error = reply.headers.as_ref().and_then(|headers| headers.get(SERVICE_ERROR)).map(|error| error.as_str().to_owned());
    Ok(Said { payload: reply.payload, error })
}

/// What services say of themselves.
pub async fn services(link: Arc<NatsLink>, name: Option<&str>, quiet: Duration) -> Result<Vec<Bytes>, BusError> {
    let mut told = Vec::new();
    let mut answers = converse(link, &subject::services(name), Bytes::new()).await?;
    let last = Instant::now() + quiet * ROUNDS;
    while told.len() < MOST
        && let Ok(Some(answer)) = timeout_at(last.min(Instant::now() + quiet), answers.next()).await
    {
        match answer {
            Ok(said) => told.push(said.payload),
            Err(BusError::NoResponders(_)) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(told)
}
