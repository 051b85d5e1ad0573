//! The micro service `planck-node` as `nats service ls`, `info` and `stats` show it.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use planck_common::{
    NodeId, Timestamp,
    reply::Refusal,
    service::{self, ServiceEndpoint, ServiceIdentity, ServiceMetadata},
    sidecar::metadata,
    subject::NODE_SERVICE,
};

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
