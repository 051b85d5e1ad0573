//! What carries live traffic between processes: NATS, or memory in an embedded process. Nothing
//! here is the truth; SQL is.

pub mod telemetry;
pub mod truncate;

mod answering;
mod heads;
mod outbox;
mod publisher;

pub mod memory;
pub mod nats;
pub mod records;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, future::BoxFuture, stream::BoxStream};
use planck_common::{AgentId, NodeId, Seq, SessionId, reply::Refusal, subject::Address};

pub use self::{
    memory::{MemoryBus, MemoryHub, MemoryRecords},
    nats::{NatsBus, NatsOptions, NatsRecords},
    outbox::Limits,
    records::Records,
};

/// The default log filter of the driver under the bus.
pub const DRIVER_LOG: &str = "async_nats=warn";

/// One end of the bus. Subjects given and received are without the cluster's prefix, which only the
/// bus knows.
#[async_trait]
pub trait Bus: Send + Sync {
    /// Publishes soon, in order; never blocks. While the bus is away what is live is forgotten.
    fn publish(&self, subject: String, payload: Bytes);

    /// Publishes one agent's event to `agent.<agent>` and `session.<session>`; a durable one moves
    /// the session's head.
    fn publish_event(&self, event: Published);

    /// A turn was opened or closed, or the agent left this node: while any is open the session's
    /// head is told every 10 s.
    fn turn_open(&self, session: &SessionId, agent: &AgentId, open: bool);

    /// Asks and waits for one reply.
    async fn request(
        &self,
        to: &Address,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, BusError>;

    /// Asks somebody who may answer in several messages, for as long as the stream is held. The
    /// subject is whole, as services announce theirs. Without NATS there are no services, and
    /// nobody is there.
    async fn converse(&self, subject: &str, _body: Bytes) -> Result<Conversation, BusError> {
        Err(BusError::NoResponders(subject.into()))
    }

    /// What micro services say of themselves, all or those of a name: whatever comes until nothing
    /// does for `quiet`.
    async fn services(
        &self,
        _name: Option<&str>,
        _quiet: Duration,
    ) -> Result<Vec<Bytes>, BusError> {
        Ok(Vec::new())
    }

    /// Everything published to a subject (wildcards allowed) from when this returns on: the
    /// subscription is in force then.
    async fn subscribe(&self, subject: &str) -> Result<BoxStream<'static, Delivery>, BusError>;

    /// What is published to a subject from about now on, without publishing anything: for users who
    /// may only subscribe. An error, such as a refused subscription, is the last item.
    async fn observe(&self, subject: &str) -> Result<Observed, BusError> {
        Ok(self.subscribe(subject).await?.map(Ok).boxed())
    }

    /// Answers commands as the micro service `planck-node` until the guard is dropped: those any
    /// node answers in the queue group, and those to `node`. Each request runs in a task of its
    /// own, within a bound; past it callers get `unavailable`.
    async fn serve(&self, node: &NodeId, answer: Answer) -> Result<Box<dyn Serving>, BusError>;

    /// Whether nobody outside of this process can publish.
    fn is_private(&self) -> bool {
        false
    }

    /// Whether the link is up now.
    fn is_connected(&self) -> bool;

    /// The bytes that a reply may have: in one process as many as there are.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// Writes out what was published before.
    async fn flush(&self, timeout: Duration) -> Result<(), BusError>;
}

/// What an observer sees.
pub type Observed = BoxStream<'static, Result<Delivery, BusError>>;

/// What comes in answer to one request, and at last why nothing more does.
pub type Conversation = BoxStream<'static, Result<Said, BusError>>;

/// One message of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub payload: Bytes,
    /// The error in its headers, as services put one there.
    pub error: Option<String>,
}

/// An agent's event, already serialised.
#[derive(Debug, Clone)]
pub struct Published {
    pub session_id: SessionId,
    pub agent_id: AgentId,
    /// Of a durable event.
    pub seq: Option<Seq>,
    pub payload: Bytes,
}

/// Something that was published.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub subject: String,
    pub payload: Bytes,
}

/// From a command to the JSON of `ok`, or a refusal.
pub type Answer =
    Arc<dyn Fn(Address, Bytes) -> BoxFuture<'static, Result<String, Refusal>> + Send + Sync>;

/// A service in force.
#[async_trait]
pub trait Serving: Send + Sync {
    /// Leaves the queue group, and keeps answering what is addressed to this node.
    async fn leave_queue(&self);
    /// Stops answering, once what runs has been answered.
    async fn stop(&self);
}

/// Why the bus did not deliver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    #[error("nobody answers {0}; is a node running? `planck node` starts one")]
    NoResponders(String),
    #[error("no answer from {subject} within {after:?}")]
    TimedOut { subject: String, after: Duration },
    #[error("{size} bytes are over the server's limit of {limit}")]
    TooLarge { size: usize, limit: usize },
    #[error("{0}")]
    Denied(String),
    #[error("cannot reach NATS: {0}")]
    Away(String),
    /// The server lacks what Planck needs: a person must help.
    #[error("{0}")]
    Unfit(String),
}
