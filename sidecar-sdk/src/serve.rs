//! Serves a sidecar on NATS: takes requests and answers them, announces its start and end, and
//! drains before it ends.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_nats::{Client, Event, Message, Subject, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use planck_common::{
    PROTOCOL_VERSION, SidecarId, Timestamp,
    event::json,
    inbox::ReplyRule,
    service::{NO_MORE, Service, ServiceEndpoint, ServiceIdentity},
    sidecar::{
        Cancel, CompactMessage, CompactReply, IN_PROGRESS, Presence, PresenceKind, ToolMessage,
        ToolReply, metadata,
    },
    subject::{self, Prefix, Topic},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{Notify, mpsc},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use crate::{
    Connection, Error, Sidecar, compactor,
    connection::ReplySubjectGuard,
    context::{self, REPORTS},
    request_handler::RequestHandler,
};

/// How long to wait for the server's confirmation that it has handled earlier messages.
const CONFIRM: Duration = Duration::from_secs(5);

/// How long calls may take to end after they were cancelled because the drain time was over.
const LAST: Duration = Duration::from_secs(2);

struct RunningSidecar {
    client: Client,
    name: SidecarId,
    prefix: Prefix,
    handler: RequestHandler,
    /// The id of this instance.
    id: String,
    service: Mutex<Service>,
    tasks: TaskTracker,
    readers: TaskTracker,
    replies: ReplySubjectGuard,
}

/// A tool or compactor that answers on a subject.
enum ServedEndpoint {
    Tool(String),
    Compactor(String),
}

/// Waits for SIGTERM or ctrl-c.
pub async fn stop_signal() {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signals) => drop(signals.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = terminated => (),
        _ = tokio::signal::ctrl_c() => (),
    }
}

/// Serves until `stop` completes. Returns without an error if no server has answered by then. Calls
/// `serving` with the addresses of the servers when the sidecar takes calls.
pub async fn serve(
    sidecar: Sidecar,
    connection: Connection,
    stop: impl Future<Output = ()> + Send,
    serving: impl FnOnce(&str) + Send,
) -> Result<(), Error> {
    let mut stop = pin!(stop);
    let connected = Arc::new(Notify::new());
    let on_event = {
        let connected = connected.clone();
        move |event| {
            tracing::debug!("NATS: {event}");
            if event == Event::Connected {
                connected.notify_one();
            }
        }
    };
    let name = sidecar.name.clone();
    let title = format!("sidecar {name}");
    let client = tokio::select! {
        client = connection.open(&title, on_event) => client?,
        () = &mut stop => return Ok(()),
    };
    let server = connection.shown();
    let drain = sidecar.bounds.drain;
    let id = Uuid::now_v7().simple().to_string();
    let mut service = Service::new(
        identity(&sidecar, &id, &connection.prefix),
        &sidecar.description,
        Timestamp::now(),
    );
    let offers = register(&sidecar, &mut service, &connection.prefix);
    let (tasks, readers) = (TaskTracker::new(), TaskTracker::new());
    let inboxes = connection
        .reply_prefixes
        .into_iter()
        .chain([connection.inbox_prefix])
        .collect();
    let replies = ReplySubjectGuard::new(ReplyRule::new(connection.prefix.clone(), inboxes));
    let instance = RunningSidecar {
        client,
        name,
        prefix: connection.prefix,
        handler: RequestHandler::of(sidecar),
        id,
        service: Mutex::new(service),
        tasks,
        readers,
        replies,
    };
    Arc::new(instance)
        .until(stop, offers, &connected, drain, || serving(&server))
        .await
}

fn identity(sidecar: &Sidecar, id: &str, prefix: &Prefix) -> ServiceIdentity {
    let pairs = [(metadata::PLANCK, "1"), (metadata::PREFIX, prefix.as_str())];
    ServiceIdentity {
        name: sidecar.name.to_string(),
        id: id.into(),
        version: sidecar.version.clone(),
        metadata: pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
    }
}

fn register(
    sidecar: &Sidecar,
    service: &mut Service,
    prefix: &Prefix,
) -> Vec<(usize, String, ServedEndpoint)> {
    let tools = sidecar.tools.iter().map(|tool| {
        let subject = prefix.on(subject::tool(&sidecar.name, &tool.name));
        (
            tool.name.clone(),
            subject,
            tool.metadata(),
            ServedEndpoint::Tool(tool.name.clone()),
        )
    });
    let compactors = sidecar.compactors.iter().map(|(name, offered)| {
        let subject = prefix.on(subject::compactor(&sidecar.name, name));
        (
            name.clone(),
            subject,
            compactor::metadata(offered.as_ref()),
            ServedEndpoint::Compactor(name.clone()),
        )
    });
    let offers = tools
        .chain(compactors)
        .map(|(name, subject, metadata, offer)| {
            let endpoint = ServiceEndpoint {
                name,
                subject: subject.clone(),
                queue_group: sidecar.name.to_string(),
                metadata,
            };
            (service.add(endpoint), subject, offer)
        });
    offers.collect()
}

impl RunningSidecar {
    async fn until(
        self: Arc<Self>,
        stop: impl Future<Output = ()> + Send,
        offers: Vec<(usize, String, ServedEndpoint)>,
        connected: &Notify,
        drain: Duration,
        serving: impl FnOnce() + Send,
    ) -> Result<(), Error> {
        let stopping = CancellationToken::new();
        let cancels = self
            .subscribe(self.prefix.on(Topic::Cancel(&self.name)), None)
            .await?;
        let canceller = self.clone();
        let cancelling = tokio::spawn(canceller.read_cancels(cancels));
        for (endpoint, subject, offer) in offers {
            let requests = self.subscribe(subject, Some(self.name.to_string())).await?;
            let (reader, stopping) = (self.clone(), stopping.clone());
            self.readers
                .spawn(reader.read_requests(requests, endpoint, Arc::new(offer), stopping));
        }
        let discovery = self.clone().start_discovery(stopping.clone()).await?;
        self.confirm().await;
        serving();
        let hellos = async {
            loop {
                self.tell(PresenceKind::Hello).await;
                connected.notified().await;
            }
        };
        tokio::select! {
            () = stop => (),
            () = hellos => (),
        }
        self.leave(&stopping, drain).await;
        discovery.abort();
        cancelling.abort();
        Ok(())
    }

    /// Stops taking calls, announces the end, and waits for the running calls. Cancels those that
    /// have not ended after `drain`, and waits for up to [`LAST`] more.
    async fn leave(&self, stopping: &CancellationToken, drain: Duration) {
        tracing::info!(
            "{} takes no more calls and finishes those that run",
            self.name
        );
        stopping.cancel();
        self.tell(PresenceKind::Bye).await;
        self.readers.close();
        let _not_in_time = timeout(CONFIRM, self.readers.wait()).await;
        self.tasks.close();
        if timeout(drain, self.tasks.wait()).await.is_err() {
            tracing::warn!(
                "cancelling {} calls that did not end within {drain:?}",
                self.tasks.len()
            );
            self.handler.cancel_all();
            let _not_in_time = timeout(LAST, self.tasks.wait()).await;
        }
        self.confirm().await;
    }

    async fn subscribe(
        &self,
        subject: String,
        queue_group: Option<String>,
    ) -> Result<Subscriber, Error> {
        let subscribed = match queue_group {
            Some(group) => self.client.queue_subscribe(subject.clone(), group).await,
            None => self.client.subscribe(subject.clone()).await,
        };
        subscribed
            .map_err(|error| Error::Connection(format!("cannot subscribe to {subject}: {error}")))
    }

    async fn start_discovery(
        self: Arc<Self>,
        stopping: CancellationToken,
    ) -> Result<tokio::task::JoinHandle<()>, Error> {
        let mut asked = Vec::new();
        for subject in subject::discovery(&self.name, &self.id) {
            asked.push(self.subscribe(subject, None).await?);
        }
        let mut asked = futures_util::stream::select_all(asked);
        Ok(tokio::spawn(async move {
            let answering = async {
                while let Some(Message { subject, reply, .. }) = asked.next().await {
                    let Some(reply) = reply.filter(|reply| self.replies.admits(&subject, reply))
                    else {
                        continue;
                    };
                    let answer = self.service().answer(&subject);
                    if let Some(answer) = answer {
                        self.publish(reply, answer).await;
                    }
                }
            };
            let _answered = stopping.run_until_cancelled(answering).await;
        }))
    }

    async fn read_cancels(self: Arc<Self>, mut cancels: Subscriber) {
        while let Some(message) = cancels.next().await {
            match serde_json::from_slice::<Cancel>(&message.payload) {
                Ok(cancel) => self.handler.cancel(&cancel.call_id),
                Err(error) => tracing::debug!("ignored a malformed cancel request: {error}"),
            }
        }
    }

    /// Answers each request in a task of its own. When `stopping` is cancelled, leaves the queue
    /// group and still answers the requests that the server has already sent.
    async fn read_requests(
        self: Arc<Self>,
        mut requests: Subscriber,
        endpoint: usize,
        offer: Arc<ServedEndpoint>,
        stopping: CancellationToken,
    ) {
        let take = |message| {
            let (serving, offer) = (self.clone(), offer.clone());
            self.tasks
                .spawn(async move { serving.answer(endpoint, &offer, message).await });
        };
        while let Some(Some(message)) = stopping.run_until_cancelled(requests.next()).await {
            take(message);
        }
        let _already_gone = requests.unsubscribe_after(NO_MORE).await;
        self.confirm().await;
        while let Some(Some(message)) = requests.next().now_or_never() {
            take(message);
        }
    }

    async fn tell(&self, kind: PresenceKind) {
        let (sidecar, instance) = (self.name.clone(), self.id.clone());
        let presence = Presence {
            v: PROTOCOL_VERSION,
            r#type: kind,
            sidecar,
            instance,
        };
        self.publish(
            self.prefix.on(Topic::Sidecar(&self.name)).into(),
            json(&presence),
        )
        .await;
    }

    fn service(&self) -> MutexGuard<'_, Service> {
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn publish(&self, subject: Subject, text: String) {
        if let Err(error) = self.client.publish(subject, Bytes::from(text)).await {
            tracing::warn!("cannot publish: {error}");
        }
    }

    /// Waits, for at most [`CONFIRM`], for a round trip to the server. After it the server has
    /// handled every message that this client sent before, and this client has received every
    /// message that the server sent before its answer. The request has no responder, so the server
    /// itself answers it. The library's own flush does not wait for the server.
    async fn confirm(&self) {
        let _not_in_time = timeout(
            CONFIRM,
            self.client.request(self.client.new_inbox(), Bytes::new()),
        )
        .await;
    }

    /// Answers a request. Ignores a request without a reply subject, or with one that is not an
    /// inbox.
    async fn answer(&self, endpoint: usize, offer: &ServedEndpoint, message: Message) {
        let Some(reply) = message
            .reply
            .filter(|reply| self.replies.admits(&message.subject, reply))
        else {
            return;
        };
        let began = Instant::now();
        let traceparent = message
            .headers
            .as_ref()
            .and_then(|headers| headers.get(context::TRACE_HEADER))
            .map(ToString::to_string);
        let (text, error) = match offer {
            ServedEndpoint::Tool(name) => {
                self.answer_tool(name, &message.payload, traceparent, &reply)
                    .await
            }
            ServedEndpoint::Compactor(name) => {
                self.answer_compaction(name, &message.payload, traceparent)
                    .await
            }
        };
        self.publish(reply, text).await;
        self.service().count(endpoint, began.elapsed(), error);
    }

    /// Runs a tool and publishes its progress reports. Returns the reply, and the error in it if
    /// there is one.
    async fn answer_tool(
        &self,
        name: &str,
        body: &[u8],
        traceparent: Option<String>,
        reply: &Subject,
    ) -> (String, Option<String>) {
        let (reports, mut heard) = mpsc::channel(REPORTS);
        let tell = async |said| {
            self.publish(
                reply.clone(),
                json(&ToolReply {
                    v: PROTOCOL_VERSION,
                    message: said,
                }),
            )
            .await
        };
        let mut call = pin!(self.handler.tool(name, body, traceparent, reports));
        let answer = loop {
            tokio::select! {
                biased;
                // Reports without end would keep the call from being polled.
                answer = &mut call => break answer,
                Some(said) = heard.recv() => tell(said).await,
            }
        };
        while let Ok(said) = heard.try_recv() {
            tell(said).await;
        }
        let text = json(&answer);
        match (self.too_large(&text), answer.message) {
            (Some(why), _) => (
                json(&ToolReply {
                    v: PROTOCOL_VERSION,
                    message: ToolMessage::Error(why.clone()),
                }),
                Some(why),
            ),
            (None, ToolMessage::Error(error)) => (text, Some(error)),
            (None, ToolMessage::InProgress) => (text, Some(IN_PROGRESS.into())),
            (None, ToolMessage::Ok(_) | ToolMessage::Ask(_) | ToolMessage::Progress { .. }) => {
                (text, None)
            }
        }
    }

    async fn answer_compaction(
        &self,
        name: &str,
        body: &[u8],
        traceparent: Option<String>,
    ) -> (String, Option<String>) {
        let answer = self.handler.compact(name, body, traceparent).await;
        let text = json(&answer);
        match (self.too_large(&text), answer.message) {
            (Some(why), _) => (
                json(&CompactReply {
                    v: PROTOCOL_VERSION,
                    message: CompactMessage::Error(why.clone()),
                }),
                Some(why),
            ),
            (None, CompactMessage::Error(error)) => (text, Some(error)),
            (None, CompactMessage::Compact { .. } | CompactMessage::Skip(_)) => (text, None),
        }
    }

    fn too_large(&self, text: &str) -> Option<String> {
        let most = self.client.server_info().max_payload;
        (text.len() > most).then(|| {
            format!(
                "the answer has {} bytes, and NATS carries at most {most}",
                text.len()
            )
        })
    }
}
