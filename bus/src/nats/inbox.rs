//! Receives the replies to all requests through one subscription. A subscription for each request
//! would cost more than the call of a sidecar itself.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use async_nats::{Client, Message, SubscribeError, Subscriber};
use futures_util::StreamExt;
use tokio::{
    runtime::Handle,
    sync::mpsc::{Receiver, Sender, channel},
};
use tokio_util::task::AbortOnDropHandle;

use super::link::Denials;

/// The maximum number of unread replies to one request. If more arrive, the stream of replies ends,
/// because its reader could not notice a missing reply.
const ROOM: usize = 4096;

/// A subscription for the replies to requests. It ends when the server refuses it, or when the link
/// and the last request that use it are dropped.
pub struct ReplyInbox {
    /// The subject of the subscription.
    pub subject: String,
    /// The common prefix of the reply subjects of all requests.
    stem: String,
    channels: Arc<Channels>,
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
        let (own, to) = ([subject.clone()], Arc::clone(&channels));
        let reading = runtime.spawn(async move {
            tokio::select! {
                () = read(messages, &to) => {}
                _refused = denials.of(&own) => {}
            }
            *lock(&to) = None;
        });
        Ok(Arc::new(Self {
            subject,
            stem,
            channels,
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

async fn read(mut messages: Subscriber, channels: &Channels) {
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
