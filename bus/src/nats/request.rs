//! Sends requests. All replies of a connection arrive over one subscription, at a subject of their
//! own for each request, so a late reply to a request that timed out reaches no one.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::{
    Client, HeaderMap, Message, StatusCode, SubscribeError, Subscriber, service::NATS_SERVICE_ERROR,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use planck_common::subject::{self, Prefix};
use serde::Deserialize;
use tokio::{
    runtime::Handle,
    sync::mpsc::{Receiver, Sender, channel},
    time::{Instant, sleep, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;

use super::link::{Denials, NatsLink};
use crate::{
    BusError, ReplyStream, StreamedReply,
    telemetry::{self, TRACEPARENT},
};

/// How long a request waits for a link that is down.
pub const LINK_PATIENCE: Duration = Duration::from_millis(500);
/// The pause before one more attempt if there were no responders, because nodes may be reconnecting
/// to another server.
const AGAIN: Duration = Duration::from_millis(100);
/// The maximum number of services that are collected.
const MOST: usize = 4096;
/// The maximum time for which services are collected, as a multiple of `quiet`.
const ROUNDS: u32 = 4;

/// Sends a request and waits for one reply of this protocol. Tries once more if there were no
/// responders. `subject` has no prefix.
pub async fn request(
    link: &NatsLink,
    prefix: &Prefix,
    subject: &str,
    body: Bytes,
    patience: Duration,
) -> Result<Bytes, BusError> {
    let deadline = Instant::now() + patience;
    check_size(link, &body)?;
    link.up_by(deadline.min(Instant::now() + LINK_PATIENCE))
        .await?;
    let messages = [Outgoing {
        subject: prefix.on(subject),
        headers: trace_headers(),
        body,
    }];
    let reply = async {
        match first_reply(link, &messages, subject, is_ours).await {
            Err(BusError::NoResponders(_)) if Instant::now() + AGAIN < deadline => {
                sleep(AGAIN).await;
                first_reply(link, &messages, subject, is_ours).await
            }
            result => result,
        }
    };
    timeout_at(deadline, reply)
        .await
        .unwrap_or_else(|_| Err(timed_out(subject, patience)))
}

/// Sends messages in order, and returns the first reply that `fits`. Other replies are ignored.
/// `name` is the name of the request in errors.
pub async fn exchange(
    link: &NatsLink,
    messages: &[Outgoing],
    name: &str,
    patience: Duration,
    fits: fn(&[u8]) -> bool,
) -> Result<Bytes, BusError> {
    let reply = first_reply(link, messages, name, fits);
    timeout_at(Instant::now() + patience, reply)
        .await
        .unwrap_or_else(|_| Err(timed_out(name, patience)))
}

async fn first_reply(
    link: &NatsLink,
    messages: &[Outgoing],
    name: &str,
    fits: fn(&[u8]) -> bool,
) -> Result<Bytes, BusError> {
    let reply = async {
        let mut replies = Replies::to(link, messages, name).await?;
        loop {
            let reply = replies.next().await?;
            if fits(&reply.payload) {
                return Ok(reply.payload);
            }
        }
    };
    tokio::select! {
        biased;
        reply = reply => reply,
        down = link.went_down() => Err(down),
    }
}

/// Sends a request, and returns the stream of its replies. A link that fails meanwhile does not end
/// the stream: the service continues its work, and the reply may arrive when the link is up again.
/// `subject` has its prefix.
pub async fn request_stream(
    link: Arc<NatsLink>,
    subject: &str,
    body: Bytes,
) -> Result<ReplyStream, BusError> {
    check_size(&link, &body)?;
    link.up_by(Instant::now() + LINK_PATIENCE).await?;
    let message = Outgoing {
        subject: subject.into(),
        headers: trace_headers(),
        body,
    };
    let replies = Replies::to(&link, &[message], subject).await?;
    // The stream keeps the link, so that its connection stays open. An error is the last item.
    let next = |state: Option<(Arc<NatsLink>, Replies)>| async move {
        let (link, mut replies) = state?;
        let reply = replies.next().await.map(streamed);
        let more = reply.is_ok().then_some((link, replies));
        Some((reply, more))
    };
    Ok(stream::unfold(Some((link, replies)), next).boxed())
}

fn streamed(reply: Message) -> StreamedReply {
    let headers = reply.headers.as_ref();
    let error = headers.and_then(|headers| headers.get(NATS_SERVICE_ERROR));
    StreamedReply {
        error: error.map(|error| error.as_str().to_owned()),
        payload: reply.payload,
    }
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

/// The replies to messages that were sent with one reply subject.
struct Replies {
    channel: ReplyChannel,
    denials: Denials,
    /// The subjects of the messages and of the inbox.
    subjects: Vec<String>,
    name: String,
}

impl Replies {
    /// Sends messages in order.
    async fn to(link: &NatsLink, messages: &[Outgoing], name: &str) -> Result<Self, BusError> {
        let denials = link.events.denials();
        let channel = link.inbox().await?.channel();
        let mut subjects = vec![channel.inbox.subject.clone()];
        for message in messages {
            message.send(&link.client, &channel.subject, name).await?;
            subjects.push(message.subject.clone());
        }
        Ok(Self {
            channel,
            denials,
            subjects,
            name: name.into(),
        })
    }

    /// Returns the next reply. No further reply follows an error.
    async fn next(&mut self) -> Result<Message, BusError> {
        let reply = tokio::select! {
            biased;
            denied = self.denials.of(&self.subjects) => return Err(denied),
            reply = self.channel.next() => reply,
        };
        match reply {
            Some(reply) if reply.status == Some(StatusCode::NO_RESPONDERS) => {
                Err(BusError::NoResponders(self.name.clone()))
            }
            Some(reply) => Ok(reply),
            None => Err(self
                .channel
                .inbox
                .refusal
                .get()
                .cloned()
                .unwrap_or_else(|| {
                    BusError::Away(
                        "the connection was closed, or replies arrived faster than they were read"
                            .into(),
                    )
                })),
        }
    }
}

/// A message to send, with its complete subject.
pub struct Outgoing {
    pub subject: String,
    pub headers: Option<HeaderMap>,
    pub body: Bytes,
}

impl Outgoing {
    /// Sends the message, with `inbox` as its reply subject.
    async fn send(&self, client: &Client, inbox: &str, name: &str) -> Result<(), BusError> {
        let (subject, inbox, body) = (self.subject.clone(), inbox.to_owned(), self.body.clone());
        let sent = match self.headers.clone() {
            Some(headers) => {
                client
                    .publish_with_reply_and_headers(subject, inbox, headers, body)
                    .await
            }
            None => client.publish_with_reply(subject, inbox, body).await,
        };
        sent.map_err(|error| match error.kind() {
            async_nats::client::PublishErrorKind::MaxPayloadExceeded => BusError::TooLarge {
                size: self.body.len(),
                limit: client.max_payload(),
            },
            async_nats::client::PublishErrorKind::InvalidSubject => {
                BusError::NoResponders(name.into())
            }
            async_nats::client::PublishErrorKind::Send => BusError::Away(error.to_string()),
        })
    }
}

fn check_size(link: &NatsLink, body: &Bytes) -> Result<(), BusError> {
    let (size, limit) = (body.len(), link.client.max_payload());
    if size > limit {
        return Err(BusError::TooLarge { size, limit });
    }
    Ok(())
}

fn timed_out(name: &str, after: Duration) -> BusError {
    BusError::TimedOut {
        subject: name.into(),
        after,
    }
}

fn trace_headers() -> Option<HeaderMap> {
    let trace = telemetry::installed().traceparent()?;
    let mut headers = HeaderMap::new();
    headers.insert(TRACEPARENT, trace.as_str());
    Some(headers)
}

/// Returns whether a reply belongs to this protocol. A JetStream stream that records requests sends
/// an acknowledgement before the real reply arrives.
fn is_ours(reply: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Version {
        v: Option<serde::de::IgnoredAny>,
    }
    reply.starts_with(br#"{"v":"#)
        || serde_json::from_slice::<Version>(reply).is_ok_and(|reply| reply.v.is_some())
}

/// The maximum number of unread replies to one request. If more arrive, the stream of replies ends,
/// because its reader could not notice a missing reply.
const ROOM: usize = 4096;

/// A subscription for the replies to all requests. A subscription for each request would cost more
/// than the call of a sidecar itself. It ends when the server refuses it, or when the link
/// and the last request that use it are dropped.
pub struct ReplyInbox {
    /// The subject of the subscription.
    pub subject: String,
    /// The common prefix of the reply subjects of all requests.
    stem: String,
    channels: Arc<Channels>,
    /// The server's refusal of the subscription. It is set before the channels close.
    refusal: Arc<OnceLock<BusError>>,
    last: AtomicU64,
    _reading: AbortOnDropHandle<()>,
}

/// The senders of the open channels, or `None` once no more replies arrive.
type Channels = Mutex<Option<HashMap<u64, Sender<Message>>>>;

/// The receiver of the replies to one request.
pub struct ReplyChannel {
    pub subject: String,
    pub inbox: Arc<ReplyInbox>,
    number: u64,
    messages: Receiver<Message>,
}

impl ReplyInbox {
    /// Subscribes, and reads the replies on `runtime`, which must be the runtime of the connection.
    /// `denials` are the refusals of the server from now on.
    pub async fn start(
        client: &Client,
        mut denials: Denials,
        runtime: &Handle,
    ) -> Result<Arc<Self>, SubscribeError> {
        let stem = client.new_inbox();
        let subject = format!("{stem}.*");
        let messages = client.subscribe(subject.clone()).await?;
        let channels = Arc::new(Channels::new(Some(HashMap::new())));
        let refusal = Arc::new(OnceLock::new());
        let (own, to) = ([subject.clone()], Arc::clone(&channels));
        let refused = Arc::clone(&refusal);
        let reading = runtime.spawn(async move {
            tokio::select! {
                () = hand_out(messages, &to) => {}
                denied = denials.of(&own) => drop(refused.set(denied)),
            }
            *lock(&to) = None;
        });
        Ok(Arc::new(Self {
            subject,
            stem,
            channels,
            refusal,
            last: AtomicU64::new(0),
            _reading: AbortOnDropHandle::new(reading),
        }))
    }

    /// Returns whether no more replies arrive.
    pub fn is_closed(&self) -> bool {
        lock(&self.channels).is_none()
    }

    pub fn channel(self: Arc<Self>) -> ReplyChannel {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let (sender, messages) = channel(ROOM);
        if let Some(channels) = lock(&self.channels).as_mut() {
            channels.insert(number, sender);
        }
        ReplyChannel {
            subject: format!("{}.{number}", self.stem),
            inbox: self,
            number,
            messages,
        }
    }
}

impl ReplyChannel {
    /// Returns the next reply, or `None` if the connection was closed or more than [`ROOM`] replies
    /// waited.
    pub async fn next(&mut self) -> Option<Message> {
        self.messages.recv().await
    }
}

impl Drop for ReplyChannel {
    fn drop(&mut self) {
        if let Some(channels) = lock(&self.inbox.channels).as_mut() {
            channels.remove(&self.number);
        }
    }
}

async fn hand_out(mut messages: Subscriber, channels: &Channels) {
    while let Some(message) = messages.next().await {
        let Some(number) = message
            .subject
            .rsplit('.')
            .next()
            .and_then(|number| number.parse().ok())
        else {
            continue;
        };
        let mut channels = lock(channels);
        let Some(channels) = channels.as_mut() else {
            return;
        };
        if channels
            .get(&number)
            .is_some_and(|channel| channel.try_send(message).is_err())
        {
            channels.remove(&number);
        }
    }
}

fn lock(channels: &Channels) -> MutexGuard<'_, Option<HashMap<u64, Sender<Message>>>> {
    channels.lock().unwrap_or_else(PoisonError::into_inner)
}
