//! Requests that are answered in several messages: sidecars report progress, and several services
//! answer a discovery request.

use std::{sync::Arc, time::Duration};

use async_nats::{Message, StatusCode, service::NATS_SERVICE_ERROR};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use planck_common::subject;
use tokio::time::{Instant, timeout_at};

use super::{
    inbox::ReplyChannel,
    link::{Denials, NatsLink},
    request::{LINK_PATIENCE, Outgoing, trace_headers},
};
use crate::{BusError, ReplyStream, StreamedReply};

/// The maximum number of services that are collected.
const MOST: usize = 4096;

/// The maximum time for which services are collected, as a multiple of `quiet`.
const ROUNDS: u32 = 4;

/// Sends a request, and returns the stream of its replies. A link that fails meanwhile does not end
/// the stream: the service continues its work, and the reply may arrive when the link is up again.
pub async fn request_stream(
    link: Arc<NatsLink>,
    subject: &str,
    body: Bytes,
) -> Result<ReplyStream, BusError> {
    let limit = link.client.max_payload();
    if body.len() > limit {
        return Err(BusError::TooLarge {
            size: body.len(),
            limit,
        });
    }
    link.up_by(Instant::now() + LINK_PATIENCE).await?;
    let denials = link.events.denials();
    let channel = link.inbox().await?.channel();
    let request = Outgoing {
        subject: subject.into(),
        headers: trace_headers(),
        body,
    };
    request
        .send(&link.client, &channel.subject, subject)
        .await?;
    let state = ReplyStreamState {
        _link: link,
        channel,
        denials,
        subject: subject.into(),
    };
    Ok(stream::unfold(Some(state), next).boxed())
}

struct ReplyStreamState {
    /// The link, whose connection stays open as long as the stream exists.
    _link: Arc<NatsLink>,
    channel: ReplyChannel,
    denials: Denials,
    subject: String,
}

/// Returns the next message. An error is the last item.
async fn next(
    state: Option<ReplyStreamState>,
) -> Option<(Result<StreamedReply, BusError>, Option<ReplyStreamState>)> {
    let mut state = state?;
    let inbox = Arc::clone(&state.channel.inbox);
    let subjects = [state.subject.as_str(), &inbox.subject];
    let message = tokio::select! {
        biased;
        reply = state.channel.next() => read(reply, &state.subject),
        denied = state.denials.of(&subjects) => Err(denied),
    };
    let more = message.is_ok().then_some(state);
    Some((message, more))
}

fn read(reply: Option<Message>, subject: &str) -> Result<StreamedReply, BusError> {
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
    Ok(StreamedReply {
        payload: reply.payload,
        error,
    })
}

/// Collects the descriptions of services until none has arrived for `quiet`. Stops after [`ROUNDS`]
/// times `quiet`, or when [`MOST`] descriptions have arrived.
pub async fn services(
    link: Arc<NatsLink>,
    name: Option<&str>,
    quiet: Duration,
) -> Result<Vec<Bytes>, BusError> {
    let mut descriptions = Vec::new();
    let mut answers = request_stream(link, &subject::services(name), Bytes::new()).await?;
    let last = Instant::now() + quiet * ROUNDS;
    while descriptions.len() < MOST
        && let Ok(Some(answer)) = timeout_at(last.min(Instant::now() + quiet), answers.next()).await
    {
        match answer {
            Ok(message) => descriptions.push(message.payload),
            Err(BusError::NoResponders(_)) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(descriptions)
}
