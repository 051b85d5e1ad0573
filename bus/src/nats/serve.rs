//! Serves endpoints, each with a subscription and a task. The two groups of endpoints are drained
//! one after the other.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_nats::{
    HeaderMap, Message, Subscriber,
    service::{NATS_SERVICE_ERROR, NATS_SERVICE_ERROR_CODE},
};
use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use tokio::time::{Instant, timeout};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tracing::Span;

use planck_common::{
    NodeId, Timestamp,
    reply::Refusal,
    service::{self, NO_MORE, ServiceEndpoint, ServiceIdentity, ServiceMetadata},
    sidecar::metadata,
    subject::{NODE_QUEUE, NODE_SERVICE, Prefix, SHARED_ENDPOINTS, discovery, own_endpoint},
};

use super::{link::NatsLink, subscribe::round_trip};
use crate::{
    BusError, CommandHandler, ServiceGuard,
    answering::{Answering, EncodedReply},
    telemetry::{self, TRACEPARENT},
};

/// How long leaving the subscriptions of a group may take.
const LEAVE: Duration = Duration::from_secs(2);
/// How long running requests may continue when the service stops.
const GRACE: Duration = Duration::from_secs(7);

/// Space for the headers of a refusal beside its body, in bytes.
const HEADER_ROOM: usize = 1024;

/// A running service. When it is dropped, it takes no more requests.
pub struct NatsService {
    shared: EndpointGroup,
    own: EndpointGroup,
    _drop: DropGuard,
}

/// Endpoints that stop taking requests at the same time. Each group has its own limit, so that
/// requests of clients cannot use up the limit for requests of other nodes.
struct EndpointGroup {
    leave: CancellationToken,
    tasks: TaskTracker,
    answering: Answering,
}

impl EndpointGroup {
    fn new(answer: CommandHandler) -> Self {
        Self {
            leave: CancellationToken::new(),
            tasks: TaskTracker::new(),
            answering: Answering::new(answer),
        }
    }

    async fn leave(&self) {
        self.leave.cancel();
        self.tasks.close();
        let _late = timeout(LEAVE, self.tasks.wait()).await;
    }
}

#[async_trait]
impl ServiceGuard for NatsService {
    async fn leave_queue(&self) {
        self.shared.leave().await;
    }

    async fn stop(&self) {
        self.shared.leave().await;
        self.own.leave().await;
        tokio::join!(
            self.shared.answering.finish(GRACE),
            self.own.answering.finish(GRACE)
        );
    }
}

/// Serves all endpoints. Their subscriptions are active when the function returns.
pub async fn start(
    link: Arc<NatsLink>,
    prefix: Prefix,
    node: &NodeId,
    answer: CommandHandler,
) -> Result<NatsService, BusError> {
    let dropped = CancellationToken::new();
    let service = Arc::new(NodeService::new(node, prefix.as_str()));
    let (shared, own) = (
        EndpointGroup::new(answer.clone()),
        EndpointGroup::new(answer),
    );
    let server = EndpointServer {
        link,
        prefix: prefix.clone(),
        service,
        dropped: dropped.clone(),
    };
    let mut denials = server.link.events.denials();
    for (name, pattern) in SHARED_ENDPOINTS {
        server.serve(&shared, name, pattern).await?;
    }
    server.serve(&own, "node", &own_endpoint(node)).await?;
    for subject in discovery(NODE_SERVICE, node) {
        server.discover(&own, subject).await?;
    }
    round_trip(&server.link, &server.prefix).await?;
    let patterns = SHARED_ENDPOINTS
        .iter()
        .map(|(_, pattern)| prefix.on(pattern));
    let subjects: Vec<String> = patterns
        .chain([prefix.on(own_endpoint(node))])
        .chain(discovery(NODE_SERVICE, node))
        .collect();
    let subjects: Vec<&str> = subjects.iter().map(String::as_str).collect();
    server.link.none_denied(&mut denials, &subjects).await?;
    Ok(NatsService {
        shared,
        own,
        _drop: dropped.drop_guard(),
    })
}

#[derive(Clone)]
struct EndpointServer {
    link: Arc<NatsLink>,
    prefix: Prefix,
    service: Arc<NodeService>,
    dropped: CancellationToken,
}

impl EndpointServer {
    async fn serve(
        &self,
        group: &EndpointGroup,
        name: &str,
        pattern: &str,
    ) -> Result<(), BusError> {
        let subject = self.prefix.on(pattern);
        let requests = self
            .link
            .client
            .queue_subscribe(subject.clone(), NODE_QUEUE.into())
            .await
            .map_err(closed)?;
        let (server, endpoint) = (self.clone(), self.service.add(name, &subject, NODE_QUEUE));
        let (leave, answering) = (group.leave.clone(), group.answering.clone());
        group.tasks.spawn(async move {
            server
                .clone()
                .each(requests, leave, |message| {
                    server.take(&answering, endpoint, message)
                })
                .await;
            server.service.left(endpoint);
        });
        Ok(())
    }

    async fn discover(&self, group: &EndpointGroup, subject: String) -> Result<(), BusError> {
        let requests = self.link.client.subscribe(subject).await.map_err(closed)?;
        let (server, leave, answering) =
            (self.clone(), group.leave.clone(), group.answering.clone());
        group.tasks.spawn(async move {
            server
                .clone()
                .each(requests, leave, |message| {
                    server.answer_discovery(&answering, message)
                })
                .await;
        });
        Ok(())
    }

    /// Handles each message until the subscription is left and all messages under way have arrived,
    /// or until the service is dropped.
    async fn each(
        self,
        mut messages: Subscriber,
        leave: CancellationToken,
        mut handle: impl FnMut(Message),
    ) {
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => handle(message),
                    None => return,
                },
                () = leave.cancelled() => break,
                () = self.dropped.cancelled() => return,
            }
        }
        let _already_gone = messages.unsubscribe_after(NO_MORE).await;
        let _not_in_time = round_trip(&self.link, &self.prefix).await;
        while let Some(Some(message)) = messages.next().now_or_never() {
            handle(message);
        }
    }

    fn take(&self, answering: &Answering, endpoint: usize, mut message: Message) {
        if !self.link.replies.admits(&message) {
            let refusal = Refusal::bad_request("the reply subject is no inbox");
            return self.service.count(endpoint, Duration::ZERO, Some(&refusal));
        }
        let (server, began) = (self.clone(), Instant::now());
        let subject = self
            .prefix
            .off(&message.subject)
            .unwrap_or(&message.subject)
            .to_owned();
        // The message is kept until it is answered, but its body only as long as the command needs
        // it.
        let body = std::mem::take(&mut message.payload);
        let span = span(&subject, &message);
        answering.take(&subject, body, span, move |reply| async move {
            let reply = reply.within(room(&server.link));
            server
                .service
                .count(endpoint, began.elapsed(), reply.refusal.as_ref());
            let EncodedReply { body, refusal } = reply;
            server
                .link
                .reply(
                    &message,
                    refusal
                        .map(|refusal| error_headers(&refusal))
                        .unwrap_or_default(),
                    body,
                )
                .await;
        });
    }

    /// Answers a discovery request.
    fn answer_discovery(&self, answering: &Answering, message: Message) {
        if !self.link.replies.admits(&message) {
            return;
        }
        let Some(body) = self.service.answer(&message.subject) else {
            return;
        };
        let server = self.clone();
        answering.spawn(async move {
            server
                .link
                .reply(&message, HeaderMap::new(), body.into())
                .await
        });
    }
}

/// Returns the maximum size of the body of a reply in bytes, which leaves room for the headers.
pub fn room(link: &NatsLink) -> usize {
    link.client.max_payload().saturating_sub(HEADER_ROOM)
}

fn closed(error: async_nats::SubscribeError) -> BusError {
    BusError::Away(error.to_string())
}

fn span(subject: &str, message: &Message) -> Span {
    let headers = message.headers.as_ref();
    let parent = headers.and_then(|headers| headers.get(TRACEPARENT));
    telemetry::installed().command_span(subject, parent.map(|parent| parent.as_str()))
}

/// Returns the headers of a refusal. The message is cut to 200 characters, and spaces replace all
/// but printable ASCII, because a header's value must be one line.
fn error_headers(refusal: &Refusal) -> HeaderMap {
    let line: String = refusal
        .message
        .chars()
        .take(200)
        .map(|c| if c.is_ascii_graphic() { c } else { ' ' })
        .collect();
    let mut headers = HeaderMap::new();
    headers.insert(NATS_SERVICE_ERROR, line.as_str());
    headers.insert(
        NATS_SERVICE_ERROR_CODE,
        refusal.code.number().to_string().as_str(),
    );
    headers
}

// The micro service `planck-node` as `nats service ls`, `info` and `stats` show it.

/// The state of the service that discovery requests return.
#[derive(Debug)]
pub struct NodeService(Mutex<service::Service>);

impl NodeService {
    pub fn new(node: &NodeId, prefix: &str) -> Self {
        let pairs = [
            (metadata::PLANCK, "1"),
            (metadata::PREFIX, prefix),
            ("node", node.as_str()),
        ];
        let identity = ServiceIdentity {
            name: NODE_SERVICE.into(),
            id: node.to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            metadata: pairs
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        };
        let description = "a node of Planck, a runtime for teams of LLM agents";
        Self(Mutex::new(service::Service::new(
            identity,
            description,
            Timestamp::now(),
        )))
    }

    /// Adds an endpoint, and returns its index for [`Self::count`] and [`Self::left`].
    pub fn add(&self, name: &str, subject: &str, queue_group: &str) -> usize {
        let endpoint = ServiceEndpoint {
            name: name.into(),
            subject: subject.into(),
            queue_group: queue_group.into(),
            metadata: ServiceMetadata::new(),
        };
        self.with(|service| service.add(endpoint))
    }

    /// Records that the endpoint takes no more requests.
    pub fn left(&self, endpoint: usize) {
        self.with(|service| service.leave(endpoint));
    }

    /// Counts an answered or refused request.
    pub fn count(&self, endpoint: usize, took: Duration, refusal: Option<&Refusal>) {
        let error = refusal.map(|refusal| format!("{}:{}", refusal.code.number(), refusal.message));
        self.with(|service| service.count(endpoint, took, error));
    }

    /// Returns the answer to a discovery request on `subject`, or `None` for an unknown verb.
    pub fn answer(&self, subject: &str) -> Option<String> {
        self.with(|service| service.answer(subject))
    }

    fn with<T>(&self, act: impl FnOnce(&mut service::Service) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
