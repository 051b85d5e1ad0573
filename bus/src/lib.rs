//! Carries live traffic between processes: over NATS, in memory within one process, or over a socket
//! to the memory of another process. The bus holds no durable state, which is in SQL.

pub mod telemetry;
pub mod truncate;

mod answering;
mod outbox;
mod publisher;

pub mod memory;
pub mod nats;
pub mod records;
mod socket;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, future::BoxFuture, stream::BoxStream};
use planck_common::{AgentId, NodeId, Seq, SessionId, reply::Refusal, subject::Address};
use serde::{Deserialize, Serialize};

pub use self::{
    memory::{MemoryBus, MemoryHub, MemoryRecords},
    nats::{NatsBus, NatsOptions, NatsRecords},
    outbox::OutboxLimits,
    records::Records,
    socket::{SocketBus, SocketServer},
};

/// The default log filter for the NATS client library.
pub const DRIVER_LOG: &str = "async_nats=warn";

/// A connection to the bus. Callers give and get subjects without the cluster's prefix, which the
/// bus adds and removes.
#[async_trait]
pub trait Bus: Send + Sync {
    /// Queues a message. Queued messages are published in order, a few milliseconds later. The call
    /// never blocks. If the queue exceeds its [`OutboxLimits`], or the link stays down for
    /// [`OutboxLimits::patience`], all queued messages are dropped, the new one included.
    fn publish(&self, subject: String, payload: Bytes);

    /// Queues one agent's event for `agent.<agent>` and `session.<session>`, as [`Self::publish`]
    /// does. An event over [`truncate::EVENT_LIMIT`] is shortened. A durable event advances the
    /// session's head.
    fn publish_event(&self, event: Published);

    /// Records that a turn was opened, or, if `open` is false, that a turn was closed or the agent
    /// left this node. While any turn is open, the session's head is published every 10 s.
    fn turn_open(&self, session: &SessionId, agent: &AgentId, open: bool);

    /// Sends a request and waits for one reply.
    async fn request(
        &self,
        to: &Address,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, BusError>;

    /// Sends a request that may be answered in several messages, and returns the stream of these
    /// messages. `subject` includes the cluster's prefix, as in the descriptions of services. By
    /// default there are no services, and the request fails with [`BusError::NoResponders`].
    async fn request_stream(&self, subject: &str, _body: Bytes) -> Result<ReplyStream, BusError> {
        Err(BusError::NoResponders(subject.into()))
    }

    /// Collects the descriptions of all micro services, or of those with the given name, until none
    /// has arrived for `quiet`. The NATS bus stops after four times `quiet` or 4096 descriptions.
    async fn services(
        &self,
        _name: Option<&str>,
        _quiet: Duration,
    ) -> Result<Vec<Bytes>, BusError> {
        Ok(Vec::new())
    }

    /// Subscribes to a subject, which may have wildcards. The subscription is active when the call
    /// returns.
    async fn subscribe(&self, subject: &str) -> Result<BoxStream<'static, Delivery>, BusError>;

    /// Subscribes to a subject without publishing anything, for users who may only subscribe. The
    /// subscription may become active shortly after the call returns. An error, such as a refused
    /// subscription, is the last item.
    async fn observe(&self, subject: &str) -> Result<Observed, BusError> {
        Ok(self.subscribe(subject).await?.map(Ok).boxed())
    }

    /// Answers commands as the micro service `planck-node` until the guard is dropped: the commands
    /// for any node, in a queue group, and the commands for `node`. Each request runs in a task of
    /// its own. The number and the total size of the running requests are limited, and callers
    /// beyond a limit get `unavailable`.
    async fn serve(
        &self,
        node: &NodeId,
        answer: CommandHandler,
    ) -> Result<Box<dyn ServiceGuard>, BusError>;

    /// Returns whether only this process can publish.
    fn is_private(&self) -> bool {
        false
    }

    /// Returns whether the link is up now.
    fn is_connected(&self) -> bool;

    /// Returns the maximum size of a reply in bytes, which is unlimited by default.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// Waits until everything published before has been written out. Fails after `timeout`.
    async fn flush(&self, timeout: Duration) -> Result<(), BusError>;
}

/// The messages that an observer receives.
pub type Observed = BoxStream<'static, Result<Delivery, BusError>>;

/// The replies to one request. If an error ends the request, the error is the last item.
pub type ReplyStream = BoxStream<'static, Result<StreamedReply, BusError>>;

/// One message of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamedReply {
    pub payload: Bytes,
    /// The error in the message's headers, where services report errors. `None` if there is no such
    /// header.
    pub error: Option<String>,
}

/// An agent's event, already serialised.
#[derive(Debug, Clone)]
pub struct Published {
    pub session_id: SessionId,
    pub agent_id: AgentId,
    /// The number of a durable event; `None` for a live event.
    pub seq: Option<Seq>,
    pub payload: Bytes,
}

/// A published message.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub subject: String,
    pub payload: Bytes,
}

/// A function that answers a command with the JSON for `ok`, or with a refusal.
pub type CommandHandler =
    Arc<dyn Fn(Address, Bytes) -> BoxFuture<'static, Result<String, Refusal>> + Send + Sync>;

/// A running service.
#[async_trait]
pub trait ServiceGuard: Send + Sync {
    /// Leaves the queue group. Requests addressed to this node are still answered.
    async fn leave_queue(&self);
    /// Stops taking requests, and waits for a limited time until the running requests are answered.
    async fn stop(&self);
}

/// The reason why an operation of the bus failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BusError {
    #[error("nothing answers on {0}; is a node running? `planck node` starts one")]
    NoResponders(String),
    #[error("no answer from {subject} within {after:?}")]
    TimedOut { subject: String, after: Duration },
    #[error("{size} bytes are over the server's limit of {limit}")]
    TooLarge { size: usize, limit: usize },
    #[error("{0}")]
    Denied(String),
    #[error("cannot reach NATS: {0}")]
    Away(String),
    /// The process with the other end of a socket has ended. It may have executed a command.
    #[error("the process that runs the agents has ended; start the command again")]
    Ended,
    /// The server or the configuration is not what Planck needs, and an operator must change it.
    #[error("{0}")]
    Unfit(String),
}
