//! The bus over NATS: one connection, a publisher in front of it, and the micro service
//! `planck-node`.

mod connect;
mod link;
mod records;
mod request;
mod serve;
mod subscribe;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use planck_common::{
    AgentId, NodeId, SessionId,
    server_clock::ServerClock,
    subject::{Address, Prefix},
};

use self::{connect::exposure, link::NatsLink};
use super::{
    Bus, BusError, CommandHandler, Delivery, Observed, Published, ReplyStream, ServiceGuard,
    publisher::Publisher, records::RecordsError,
};

pub use self::records::NatsRecords;
pub use connect::{NatsOptions, TlsOptions};

/// A connection to NATS. Dropping it ends its tasks, so flush first if messages must be written
/// out.
pub struct NatsBus {
    link: Arc<NatsLink>,
    prefix: Prefix,
    publisher: Publisher,
    /// The hosts of the servers, as configured.
    hosts: Vec<String>,
    _tasks: TaskTracker,
    _stop: DropGuard,
}

impl NatsBus {
    /// Connects, and checks the server's version. A node must also call [`Self::check_jetstream`].
    pub async fn connect(options: NatsOptions) -> Result<Self, BusError> {
        let link = Arc::new(connect::connect(&options).await?);
        let hosts = connect::servers(&options.url)?
            .iter()
            .map(|server| server.host().to_owned())
            .collect();
        connect::check_version(&link.client)?;
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let publisher = Publisher::start(
            link.clone(),
            options.prefix.clone(),
            options.limits,
            &tasks,
            stop.clone(),
        );
        Ok(Self {
            link,
            prefix: options.prefix,
            publisher,
            hosts,
            _tasks: tasks,
            _stop: stop.drop_guard(),
        })
    }

    /// Checks that this user may use JetStream, and that JetStream has what a node needs.
    pub async fn check_jetstream(&self) -> Result<(), BusError> {
        connect::check_jetstream(&self.link).await
    }

    /// Returns a warning if the server accepts clients without credentials and can be reached from
    /// other machines, otherwise `None`.
    pub fn exposure(&self) -> Option<String> {
        exposure(
            &self.link.client.server_info(),
            self.hosts.iter().map(String::as_str),
        )
    }

    /// Returns the registry's bucket of this cluster, over the same connection.
    pub fn records(&self, replicas: usize) -> NatsRecords {
        NatsRecords::new(self.link.clone(), self.prefix.registry(), replicas)
    }

    /// Tests whether a node could use the registry's bucket, and changes nothing in it. Returns the
    /// clock of the server that leads the bucket, or `None` if there is no bucket yet.
    pub async fn try_records(&self, replicas: usize) -> Result<Option<ServerClock>, RecordsError> {
        self.records(replicas).try_out().await
    }

    /// Returns the number of publications dropped because NATS was unreachable or slow.
    pub fn dropped(&self) -> u64 {
        self.publisher.dropped()
    }
}

#[async_trait]
impl Bus for NatsBus {
    fn publish(&self, subject: String, payload: Bytes) {
        self.publisher.publish(subject, payload);
    }

    fn publish_event(&self, event: Published) {
        self.publisher.publish_event(event);
    }

    fn turn_open(&self, session: &SessionId, agent: &AgentId, open: bool) {
        self.publisher.turn_open(session, agent, open);
    }

    async fn request(
        &self,
        to: &Address,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, BusError> {
        request::request(&self.link, &self.prefix, &to.to_string(), body, timeout).await
    }

    async fn request_stream(&self, subject: &str, body: Bytes) -> Result<ReplyStream, BusError> {
        request::request_stream(Arc::clone(&self.link), subject, body).await
    }

    async fn services(&self, name: Option<&str>, quiet: Duration) -> Result<Vec<Bytes>, BusError> {
        request::services(Arc::clone(&self.link), name, quiet).await
    }

    async fn subscribe(&self, subject: &str) -> Result<BoxStream<'static, Delivery>, BusError> {
        let messages = subscribe::subscribe(&self.link, &self.prefix, subject).await?;
        let prefix = self.prefix.clone();
        Ok(messages
            .filter_map(move |message| {
                let subject = prefix.off(&message.subject).map(str::to_owned);
                std::future::ready(subject.map(|subject| Delivery {
                    subject,
                    payload: message.payload,
                }))
            })
            .boxed())
    }

    async fn observe(&self, subject: &str) -> Result<Observed, BusError> {
        subscribe::observe(Arc::clone(&self.link), &self.prefix, subject).await
    }

    async fn serve(
        &self,
        node: &NodeId,
        answer: CommandHandler,
    ) -> Result<Box<dyn ServiceGuard>, BusError> {
        let service = serve::start(self.link.clone(), self.prefix.clone(), node, answer).await?;
        Ok(Box::new(service))
    }

    fn is_connected(&self) -> bool {
        self.link.is_up()
    }

    fn room(&self) -> usize {
        serve::room(&self.link)
    }

    async fn flush(&self, timeout: Duration) -> Result<(), BusError> {
        self.publisher.flush(timeout).await
    }
}
