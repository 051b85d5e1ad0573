//! The micro service a sidecar is to `nats service ls`, to `info` and `stats`, and so to the nodes that look for it. The client
//! library's own service loses what is on its way when it leaves a queue group, so the three answers are given here.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_nats::service::{Info, PingResponse, endpoint};
use planck_common::{SidecarId, Timestamp, event::json, sidecar::metadata, subject::Prefix};
use serde::Serialize;
use uuid::Uuid;

pub struct Service {
    name: SidecarId,
    /// Of this instance.
    pub id: String,
    version: String,
    description: String,
    metadata: HashMap<String, String>,
    started: Timestamp,
    endpoints: Mutex<Vec<Endpoint>>,
}

struct Endpoint {
    info: endpoint::Info,
    stats: endpoint::Stats,
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

impl Service {
    pub fn new(name: &SidecarId, version: &str, description: &str, prefix: &Prefix) -> Self {
        let pairs = [(metadata::PLANCK, "1"), (metadata::PREFIX, prefix.as_str())];
        Self {
            name: name.clone(),
            id: Uuid::now_v7().simple().to_string(),
            version: version.into(),
            description: description.into(),
            metadata: pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            started: Timestamp::now(),
            endpoints: Mutex::default(),
        }
    }

    /// Discovery is on these, whatever the cluster's prefix.
    pub fn subjects(&self) -> [String; 3] {
        ["$SRV.*".into(), format!("$SRV.*.{}", self.name), format!("$SRV.*.{}.{}", self.name, self.id)]
    }

    /// Adds an endpoint; its number is what [`Self::count`] takes.
    pub fn add(&self, name: &str, subject: &str, metadata: HashMap<String, String>) -> usize {
        let (name, subject, queue_group) = (name.to_owned(), subject.to_owned(), self.name.to_string());
        let stats = endpoint::Stats {
            name: name.clone(),
            subject: subject.clone(),
            queue_group: queue_group.clone(),
            ..endpoint::Stats::default()
        };
        self.with(|endpoints| {
            endpoints.push(Endpoint { info: endpoint::Info { name, subject, queue_group, metadata }, stats });
            endpoints.len() - 1
        })
    }

    /// Counts an answered request.
    pub fn count(&self, endpoint: usize, took: Duration, error: bool) {
        self.with(|endpoints| {
            let Some(Endpoint { stats, .. }) = endpoints.get_mut(endpoint) else { return };
            stats.requests += 1;
            stats.errors += usize::from(error);
            stats.processing_time += took;
            stats.average_processing_time = stats.processing_time / u32::try_from(stats.requests).unwrap_or(u32::MAX);
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
            name: self.name.to_string(),
            id: self.id.clone(),
            version: self.version.clone(),
            metadata: self.metadata.clone(),
        }
    }

    fn info(&self) -> Info {
        Info {
            kind: "io.nats.micro.v1.info_response".into(),
            name: self.name.to_string(),
            id: self.id.clone(),
            description: self.description.clone(),
            version: self.version.clone(),
            metadata: self.metadata.clone(),
            endpoints: self.with(|endpoints| endpoints.iter().map(|endpoint| endpoint.info.clone()).collect()),
        }
    }

    fn stats(&self) -> StatsResponse<'_> {
        StatsResponse {
            r#type: "io.nats.micro.v1.stats_response",
            name: &self.name,
            id: &self.id,
            version: &self.version,
            metadata: &self.metadata,
            started: self.started,
            endpoints: self.with(|endpoints| endpoints.iter().map(|endpoint| endpoint.stats.clone()).collect()),
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Vec<Endpoint>) -> T) -> T {
        act(&mut self.endpoints.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
