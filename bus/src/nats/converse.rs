//! Requests that are answered in several messages: sidecars report progress, and several services
//! answer a discovery request.

use std::{sync::Arc, time::Duration};

use async_nats::{Message, StatusCode, service::NATS_SERVICE_ERROR};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use planck_common::subject;
use tokio::time::{Instant, timeout_at};

use super::{
    inbox::Line,
    link::{Denials, NatsLink},
    request::{LINK_PATIENCE, Outgoing, trace_headers},
};
use crate::{BusError, Conversation, Said};

/// The maximum number of services that are collected.
const MOST: usize = 4096;

/// Services are collected for at most this many times `quiet`.
const ROUNDS: u32 = 4;

/// Sends a request, and returns its replies until the conversation is dropped. A link that fails
/// meanwhile does not end the conversation: the work continues, and its reply may arrive when the
/// link is up again.
pub async fn converse(
    link: Arc<NatsLink>,
    subject: &str,
    body: Bytes,
) -> Result<Conversation, BusError> {
    let limit = link.client.max_payload();
    if body.len() > limit {
        return Err(BusError::TooLarge {
            size: body.len(),
            limit,
        });
    }
    link.up_by(Instant::now() + LINK_PATIENCE).await?;
    let denials = link.events.denials();
    let line = link.inbox().await?.line();
    let asked = Outgoing {
        subject: subject.into(),
        headers: trace_headers(),
        body,
    };
    asked.send(&link.client, &line.subject, subject).await?;
    let heard = Heard {
        _link: link,
        line,
        denials,
        subject: subject.into(),
    };
    Ok(stream::unfold(Some(heard), next).boxed())
}

struct Heard {
    /// Keeps the connection open as long as the conversation lasts.
    _link: Arc<NatsLink>,
    line: Line,
    denials: Denials,
    subject: String,
}

/// Returns the next message. An error is the last item.
async fn next(heard: Option<Heard>) -> Option<(Result<Said, BusError>, Option<Heard>)> {
    let mut heard = heard?;
    let inbox = Arc::clone(&heard.line.inbox);
    let subjects = [heard.subject.as_str(), &inbox.subject];
    let said = tokio::select! {
        biased;
        reply = heard.line.next() => read(reply, &heard.subject),
        denied = heard.denials.of(&subjects) => Err(denied),
    };
    let more = said.is_ok().then_some(heard);
    Some((said, more))
}

fn read(reply: Option<Message>, subject: &str) -> Result<Said, BusError> {
    let reply = reply.ok_or_else(|| {
        BusError::Away(
            "the connection was closed, or replies arrived faster than they were read".into(),
        )
    })?;
    if reply.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(BusError::NoResponders(subject.into()));
    }
    let error = reply
        .headers
        .as_ref()
        .and_then(|headers| headers.get(NATS_SERVICE_ERROR))
        .map(|error| error.as_str().to_owned());
    Ok(Said {
        payload: reply.payload,
        error,
    })
}

/// Collects the descriptions of services.
pub async fn services(
    link: Arc<NatsLink>,
    name: Option<&str>,
    quiet: Duration,
) -> Result<Vec<Bytes>, BusError> {
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
