//! A NATS connection as the bus sees it: whether it is up, how often it was established, and what
//! the server refused.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use async_nats::{Client, Event, Message, ServerError, connection::State};
use bytes::Bytes;
use tokio::{
    runtime::Handle,
    sync::{Notify, OnceCell, broadcast},
    time::{Instant, timeout_at},
};

use planck_common::inbox::{Refusals, ReplyRule};

use super::request::ReplyInbox;
use crate::{
    BusError,
    publisher::{LinkStatus, Outlet},
};

/// The interval at which the client's state is polled. The client's events do not suffice, because
/// its event channel drops events when it is full.
const LOOK: Duration = Duration::from_millis(200);

/// A connection to NATS, with its events and the parts that all its requests share.
pub struct NatsLink {
    pub client: Client,
    pub events: Arc<LinkEvents>,
    pub replies: ReplyCheck,
    /// The subscription for the replies to requests. It is made when it is first needed, because an
    /// observer may not be allowed to have one, and made again after the server refused it.
    inbox: Mutex<Arc<OnceCell<Arc<ReplyInbox>>>>,
    /// The runtime on which the inbox is read, whichever task needs it first.
    runtime: Handle,
}

/// The channels that pass changes of the link, and refusals of the server, on to the tasks that
/// wait for them.
#[derive(Debug)]
pub struct LinkEvents {
    /// The addresses of the servers, without users and passwords.
    servers: String,
    changed: Notify,
    denied: broadcast::Sender<String>,
}

impl LinkEvents {
    pub fn new(servers: String) -> Self {
        Self {
            servers,
            changed: Notify::new(),
            denied: broadcast::channel(64).0,
        }
    }

    /// Logs an event of the client library, passes on a refusal, and wakes the tasks that wait for
    /// a change of the link.
    pub fn on(&self, event: &Event) {
        match event {
            Event::Connected => tracing::info!(servers = self.servers, "connected to NATS"),
            Event::Disconnected => {
                tracing::warn!(servers = self.servers, "the connection to NATS is down");
            }
            Event::LameDuckMode => tracing::info!("the NATS server is about to stop"),
            Event::SlowConsumer(subscription) => {
                tracing::warn!(
                    subscription,
                    "dropped messages: a subscription is read too slowly"
                );
            }
            Event::ServerError(ServerError::Other(text)) if is_denial(text) => {
                tracing::warn!("{}", denial(text));
                let _nobody_asks = self.denied.send(text.clone());
            }
            Event::ServerError(error) => tracing::warn!(%error, "the NATS server reports an error"),
            Event::ClientError(error) => {
                tracing::debug!(%error, "the NATS client reports an error")
            }
            Event::Draining | Event::Closed => {
                tracing::debug!(%event, "the NATS client is closing")
            }
        }
        self.changed.notify_waiters();
    }

    /// Returns a receiver of the server's refusals from now on.
    pub fn denials(&self) -> Denials {
        Denials(self.denied.subscribe())
    }
}

/// Returns an error text that names the refused operation and says what to do.
fn denial(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let what = if lower.contains("violation for publish") {
        "publish"
    } else {
        "subscribe"
    };
    let subject = text.split('"').nth(1).unwrap_or(text);
    format!("permission denied for {what} to `{subject}`: {REMEDY}")
}

const REMEDY: &str = "give this user of the NATS server that right, or use one that has it; \
    docs/operations.md lists what each role needs, and deploy/nats-cluster.conf gives it";

fn is_denial(text: &str) -> bool {
    text.to_ascii_lowercase().contains("permissions violation")
}

/// The refusals of the server since this value was created.
pub struct Denials(broadcast::Receiver<String>);

impl Denials {
    /// Waits until the server refuses an operation on one of these subjects, and returns the error.
    pub async fn of(&mut self, subjects: &[impl AsRef<str>]) -> BusError {
        loop {
            match self.0.recv().await {
                Ok(text)
                    if subjects
                        .iter()
                        .any(|subject| text.contains(&format!("\"{}\"", subject.as_ref()))) =>
                {
                    return BusError::Denied(denial(&text));
                }
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

impl NatsLink {
    /// Wraps a connection that was opened on the current runtime.
    pub fn new(client: Client, events: Arc<LinkEvents>, replies: ReplyCheck) -> Self {
        Self {
            client,
            events,
            replies,
            inbox: Mutex::default(),
            runtime: Handle::current(),
        }
    }

    /// Returns the subscription for the replies to requests, and makes it if there is none.
    pub async fn inbox(&self) -> Result<Arc<ReplyInbox>, BusError> {
        let cell = {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            if inbox.get().is_some_and(|inbox| inbox.is_closed()) {
                *inbox = Arc::default();
            }
            Arc::clone(&inbox)
        };
        let denials = self.events.denials();
        let started = cell
            .get_or_try_init(|| ReplyInbox::start(&self.client, denials, &self.runtime))
            .await;
        started
            .cloned()
            .map_err(|error| BusError::Away(error.to_string()))
    }

    pub fn is_up(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Waits until the link is up, or fails at the deadline.
    pub async fn up_by(&self, deadline: Instant) -> Result<(), BusError> {
        timeout_at(deadline, self.until(true))
            .await
            .map_err(|_| down())
    }

    /// Waits until the link is down, and returns the error for a request that was under way.
    pub async fn went_down(&self) -> BusError {
        self.until(false).await;
        down()
    }

    async fn until(&self, up: bool) {
        while self.is_up() != up {
            let changed = self.events.changed.notified();
            if self.is_up() != up {
                let _looked = tokio::time::timeout(LOOK, changed).await;
            }
        }
    }
}

fn down() -> BusError {
    BusError::Away("the connection is down; it is restored as soon as a server answers".into())
}

impl Outlet for NatsLink {
    fn link(&self) -> LinkStatus {
        LinkStatus {
            up: self.is_up(),
            connects: self.client.statistics().connects.load(Ordering::Relaxed),
        }
    }

    async fn link_changed(&self) {
        let _looked = tokio::time::timeout(LOOK, self.events.changed.notified()).await;
    }

    async fn send(&self, subject: String, payload: Bytes) -> Result<(), BusError> {
        let name = subject.clone();
        let sent = tokio::select! {
            biased;
            sent = self.client.publish(subject, payload) => sent,
            error = self.went_down() => return Err(error),
        };
        if let Err(error) = sent {
            tracing::error!(subject = name, %error, "cannot publish");
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), BusError> {
        tokio::select! {
            flushed = self.client.flush() => flushed.map_err(|error| BusError::Away(error.to_string())),
            error = self.went_down() => Err(error),
        }
    }
}

// Decides which requests are performed: those without a reply subject, and those whose reply
// subject is an inbox.

/// The check of the reply subjects of requests. It counts the requests that it refuses, and logs
/// some of them.
#[derive(Debug)]
pub struct ReplyCheck {
    rule: ReplyRule,
    refusals: Mutex<Refusals>,
}

impl ReplyCheck {
    pub fn new(rule: ReplyRule) -> Self {
        Self {
            rule,
            refusals: Mutex::default(),
        }
    }

    /// Returns whether a request may be performed and answered. Counts a request that may not. A
    /// request without a reply subject is performed without a reply.
    pub fn admits(&self, request: &Message) -> bool {
        let Some(to) = request.reply.as_deref().filter(|to| !self.rule.admits(to)) else {
            return true;
        };
        let to_log = self
            .refusals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add(std::time::Instant::now());
        if let Some(refused) = to_log {
            let (subject, to) = (shown(&request.subject), shown(to));
            tracing::warn!(
                subject,
                to,
                refused,
                "refused a request: its reply would go to a subject that is no inbox; if it is one, name it in nats.reply_prefixes"
            );
        }
        false
    }
}

/// Returns the beginning of a subject that the caller chose, without control characters, for the
/// log.
fn shown(subject: &str) -> String {
    subject
        .chars()
        .take(120)
        .filter(|c| !c.is_control())
        .collect()
}
