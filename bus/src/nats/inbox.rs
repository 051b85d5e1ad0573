//! Where the answers of all conversations come in: one subscription. One for each would cost more
//! than a call of a sidecar does.

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

/// Answers of one conversation that may wait to be read. One that is read more slowly ends there:
/// an answer that was left out would never be missed.
const ROOM: usize = 4096;

/// Ends with the last conversation that has a line on it.
pub struct Inbox {
    /// What it hears.
    pub subject: String,
    /// What the subjects of its lines begin with.
    stem: String,
    lines: Arc<Lines>,
    last: AtomicU64,
    reading: AbortOnDropHandle<()>,
}

type Lines = Mutex<HashMap<u64, Sender<Message>>>;

/// Where the answers to one question come in.
pub struct Line {
    pub subject: String,
    pub inbox: Arc<Inbox>,
    number: u64,
    messages: Receiver<Message>,
}

impl Inbox {
    /// It is read on the given runtime, that of the connection.
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
    /// `None` when the connection was closed, or more came than was read.
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
