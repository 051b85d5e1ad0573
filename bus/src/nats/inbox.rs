//! Receives the replies of all conversations through one subscription. A subscription for each
//! would cost more than the call of a sidecar.

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

/// The number of replies of one conversation that may wait to be read. A conversation that is read
/// more slowly ends, because its reader could not notice a missing reply.
const ROOM: usize = 4096;

/// A subscription for replies. It ends when the last conversation that uses it ends.
pub struct Inbox {
    /// The subject of the subscription.
    pub subject: String,
    /// The common prefix of the reply subjects of all conversations.
    stem: String,
    lines: Arc<Lines>,
    last: AtomicU64,
    reading: AbortOnDropHandle<()>,
}

type Lines = Mutex<HashMap<u64, Sender<Message>>>;

/// Receives the replies to one request.
pub struct Line {
    pub subject: String,
    pub inbox: Arc<Inbox>,
    number: u64,
    messages: Receiver<Message>,
}

impl Inbox {
    /// Subscribes. The replies are read on the given runtime, which must be that of the connection.
    pub async fn start(client: &Client, runtime: &Handle) -> Result<Arc<Self>, SubscribeError> {
        let stem = client.new_inbox();
        let subject = format!("{stem}.*");
        let heard = client.subscribe(subject.clone()).await?;
        let lines: Arc<Lines> = Arc::default();
        let reading = AbortOnDropHandle::new(runtime.spawn(read(heard, Arc::clone(&lines))));
        Ok(Arc::new(Self {
            subject,
            stem,
            lines,
            last: AtomicU64::new(0),
            reading,
        }))
    }

    pub fn line(self: Arc<Self>) -> Line {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let (sender, messages) = channel(ROOM);
        if !self.reading.is_finished() {
            lock(&self.lines).insert(number, sender);
        }
        Line {
            subject: format!("{}.{number}", self.stem),
            inbox: self,
            number,
            messages,
        }
    }
}

impl Line {
    /// Returns the next reply, or `None` if the connection was closed or more replies waited than
    /// fit.
    pub async fn next(&mut self) -> Option<Message> {
        self.messages.recv().await
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        lock(&self.inbox.lines).remove(&self.number);
    }
}

async fn read(mut heard: Subscriber, lines: Arc<Lines>) {
    while let Some(message) = heard.next().await {
        let Some(number) = message
            .subject
            .rsplit('.')
            .next()
            .and_then(|number| number.parse().ok())
        else {
            continue;
        };
        let mut lines = lock(&lines);
        if lines
            .get(&number)
            .is_some_and(|line| line.try_send(message).is_err())
        {
            lines.remove(&number);
        }
    }
    lock(&lines).clear();
}

fn lock(lines: &Lines) -> MutexGuard<'_, HashMap<u64, Sender<Message>>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}
