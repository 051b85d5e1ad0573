//! What `nats service ls`, `info` and `stats` are told. The client library's own service answers errors with an empty body
//! and cannot leave a queue group without losing what is on its way, so the three answers are given here.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_nats::service::{Info, PingResponse, endpoint};
use planck_common::{NodeId, Timestamp, event::json, reply::Refusal, subject::NODE_SERVICE};
use serde::Serialize;

/// Discovery is on these, whatever the cluster's prefix.
pub fn subjects(node: &NodeId) -> [String; 3] {
    ["$SRV.*".into(), format!("$SRV.*.{NODE_SERVICE}"), format!("$SRV.*.{NODE_SERVICE}.{node}")]
}

/// The service's record of itself.
#[derive(Debug)]
pub struct Service {
    node: NodeId,
    metadata: HashMap<String, String>,
    started: Timestamp,
    endpoints: Mutex<Vec<Endpoint>>,
}

#[derive(Debug)]
struct Endpoint {
    stats: endpoint::Stats,
    /// It left the queue group.
    left: bool,
}

#[derive(Serialize)]
struct StatsResponse<'a> {
    r#type: &'a str,
    name: &'a str,
    id: &'a str,
    version: &'a str,
    metadata: &'a HashMap<String, String>,
    started: Timestamp,
    endpoints: Vec<endpoint::Stats>,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

impl Service {
    pub fn new(node: &NodeId, prefix: &str) -> Self {
        let metadata = [("planck", "1"), ("prefix", prefix), ("node", node)];
        Self {
            node: node.clone(),
            metadata: metadata.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            started: Timestamp::now(),
            endpoints: Mutex::default(),
        }
    }

    /// Adds an endpoint; its number is what [`Self::count`] takes.
    pub fn add(&self, name: &str, subject: &str, queue_group: &str) -> usize {
        let stats = endpoint::Stats {
            name: name.into(),
            subject: subject.into(),
            queue_group: queue_group.into(),
            ..endpoint::Stats::default()
        };
        self.with(|endpoints| {
            endpoints.push(Endpoint { stats, left: false });
            endpoints.len() - 1
        })
    }

    /// The endpoint takes no more requests.
    pub fn left(&self, endpoint: usize) {
        self.with(|endpoints| {
            if let Some(endpoint) = endpoints.get_mut(endpoint) {
                endpoint.left = true;
            }
        });
    }

    /// Counts an answered request.
    pub fn count(&self, endpoint: usize, took: Duration, refusal: Option<&Refusal>) {
        self.with(|endpoints| {
            let Some(Endpoint { stats, .. }) = endpoints.get_mut(endpoint) else { return };
            stats.requests += 1;
            stats.processing_time += took;
            stats.average_processing_time = stats.processing_time / u32::try_from(stats.requests).unwrap_or(u32::MAX);
            if let Some(refusal) = refusal {
                stats.errors += 1;
                let (code, status) = (refusal.code.number().into(), refusal.message.clone());
                stats.last_error = Some(async_nats::service::error::Error { code, status });
            }
        });
    }

    /// The answer to a discovery subject; `None` for a verb that there is not.
    pub fn answer(&self, subject: &str) -> Option<String> {
        match subject.split('.').nth(1)? {
            "PING" => Some(json(&self.ping())),
            "INFO" => Some(json(&self.info())),
            "STATS" => Some(json(&self.stats())),
            _ => None,
        }
    }

    fn ping(&self) -> PingResponse {
        PingResponse {
            kind: "io.nats.micro.v1.ping_response".into(),
            name: NODE_SERVICE.into(),
            id: self.node.to_string(),
            version: VERSION.into(),
            metadata: self.metadata.clone(),
        }
    }

    fn info(&self) -> Info {
        let endpoints = self.present().into_iter().map(|stats| endpoint::Info {
            name: stats.name,
            subject: stats.subject,
            queue_group: stats.queue_group,
            metadata: HashMap::new(),
        });
        Info {
            kind: "io.nats.micro.v1.info_response".into(),
            name: NODE_SERVICE.into(),
            id: self.node.to_string(),
            description: "a node of Planck, a runtime for teams of LLM agents".into(),
            version: VERSION.into(),
            metadata: self.metadata.clone(),
            endpoints: endpoints.collect(),
        }
    }

    fn stats(&self) -> StatsResponse<'_> {
        StatsResponse {
            r#type: "io.nats.micro.v1.stats_response",
            name: NODE_SERVICE,
            id: &self.node,
            version: VERSION,
            metadata: &self.metadata,
            started: self.started,
            endpoints: self.present(),
        }
    }

    fn present(&self) -> Vec<endpoint::Stats> {
        self.with(|endpoints| endpoints.iter().filter(|endpoint| !endpoint.left).map(|endpoint| endpoint.stats.clone()).collect())
    }

    fn with<T>(&self, act: impl FnOnce(&mut Vec<Endpoint>) -> T) -> T {
        act(&mut self.endpoints.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
