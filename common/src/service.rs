//! The discovery of NATS micro services: the answers of nodes and sidecars on `$SRV.PING`,
//! `$SRV.INFO` and `$SRV.STATS`, and the keys that Planck reads from such answers. Planck does not
//! use the service of the client library, because that service loses the messages that are under
//! way when it leaves a queue group.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Deserializer, Serialize};

use crate::{Timestamp, event::json};

/// The number of further messages that a service accepts when it leaves a subject. A server ignores
/// so large a count and removes the subscription at once, while the client still receives the
/// messages under way. The library's own `drain` stops reading before these messages have arrived
/// (async-nats 0.51), so requests would be lost.
pub const NO_MORE: u64 = 10_000_000_000;

pub type ServiceMetadata = BTreeMap<String, String>;

/// The identity of one instance of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceIdentity {
    pub name: String,
    /// The id of this instance.
    pub id: String,
    /// Three numbers, as in 1.0.0.
    pub version: String,
    pub metadata: ServiceMetadata,
}

/// The keys that Planck reads from an answer to `$SRV.INFO`. An answer without `name`, `id` or
/// `version` is malformed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ServiceInfo {
    pub name: String,
    pub id: String,
    pub version: String,
    #[serde(default, deserialize_with = "or_nothing")]
    pub metadata: ServiceMetadata,
    #[serde(default, deserialize_with = "or_nothing")]
    pub endpoints: Vec<ServiceEndpoint>,
}

/// A subject on which a service answers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ServiceEndpoint {
    pub name: String,
    pub subject: String,
    #[serde(default)]
    pub queue_group: String,
    #[serde(default, deserialize_with = "or_nothing")]
    pub metadata: ServiceMetadata,
}

/// Reads `null` as the default, because some services write `null` for absent values.
fn or_nothing<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// One instance of a service: its identity, its endpoints and their statistics.
#[derive(Debug, Clone)]
pub struct Service {
    identity: ServiceIdentity,
    description: String,
    started: Timestamp,
    endpoints: Vec<Served>,
}

#[derive(Debug, Clone)]
struct Served {
    endpoint: ServiceEndpoint,
    requests: u64,
    errors: u64,
    took: Duration,
    last_error: String,
    has_left: bool,
}

impl Service {
    pub fn new(
        identity: ServiceIdentity,
        description: impl Into<String>,
        started: Timestamp,
    ) -> Self {
        Self {
            identity,
            description: description.into(),
            started,
            endpoints: Vec::new(),
        }
    }

    /// Adds an endpoint, and returns its index for [`Self::count`] and [`Self::leave`].
    pub fn add(&mut self, endpoint: ServiceEndpoint) -> usize {
        let (requests, errors, took, last_error) = Default::default();
        self.endpoints.push(Served {
            endpoint,
            requests,
            errors,
            took,
            last_error,
            has_left: false,
        });
        self.endpoints.len() - 1
    }

    /// Records that the endpoint takes no more requests. Discovery no longer lists it.
    pub fn leave(&mut self, endpoint: usize) {
        if let Some(served) = self.endpoints.get_mut(endpoint) {
            served.has_left = true;
        }
    }

    /// Counts an answered request, and its error if there was one.
    pub fn count(&mut self, endpoint: usize, took: Duration, error: Option<String>) {
        let Some(served) = self.endpoints.get_mut(endpoint) else {
            return;
        };
        served.requests += 1;
        served.took += took;
        if let Some(error) = error {
            served.errors += 1;
            served.last_error = error;
        }
    }

    /// Returns the answer to a discovery request on `subject`, or `None` for an unknown verb.
    pub fn answer(&self, subject: &str) -> Option<String> {
        let there = || self.endpoints.iter().filter(|served| !served.has_left);
        match subject.split('.').nth(1)? {
            "PING" => Some(json(&Ping {
                r#type: "io.nats.micro.v1.ping_response",
                identity: &self.identity,
            })),
            "INFO" => Some(json(&InfoReply {
                r#type: "io.nats.micro.v1.info_response",
                identity: &self.identity,
                description: &self.description,
                endpoints: there().map(|served| &served.endpoint).collect(),
            })),
            "STATS" => Some(json(&StatsReply {
                r#type: "io.nats.micro.v1.stats_response",
                identity: &self.identity,
                started: self.started,
                endpoints: there().map(Served::stats).collect(),
            })),
            _ => None,
        }
    }
}

#[derive(Serialize)]
struct Ping<'a> {
    r#type: &'a str,
    #[serde(flatten)]
    identity: &'a ServiceIdentity,
}

#[derive(Serialize)]
struct InfoReply<'a> {
    r#type: &'a str,
    #[serde(flatten)]
    identity: &'a ServiceIdentity,
    description: &'a str,
    endpoints: Vec<&'a ServiceEndpoint>,
}

#[derive(Serialize)]
struct StatsReply<'a> {
    r#type: &'a str,
    #[serde(flatten)]
    identity: &'a ServiceIdentity,
    started: Timestamp,
    endpoints: Vec<EndpointCounts<'a>>,
}

/// The statistics of an endpoint. Times are in nanoseconds.
#[derive(Serialize)]
struct EndpointCounts<'a> {
    name: &'a str,
    subject: &'a str,
    queue_group: &'a str,
    num_requests: u64,
    num_errors: u64,
    last_error: &'a str,
    processing_time: u64,
    average_processing_time: u64,
}

impl Served {
    fn stats(&self) -> EndpointCounts<'_> {
        let nanos = u64::try_from(self.took.as_nanos()).unwrap_or(u64::MAX);
        EndpointCounts {
            name: &self.endpoint.name,
            subject: &self.endpoint.subject,
            queue_group: &self.endpoint.queue_group,
            num_requests: self.requests,
            num_errors: self.errors,
            last_error: &self.last_error,
            processing_time: nanos,
            average_processing_time: nanos.checked_div(self.requests).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service() -> Service {
        let metadata = ServiceMetadata::from([("planck".into(), "1".into())]);
        let identity = ServiceIdentity {
            name: "s".into(),
            id: "i".into(),
            version: "1.0.0".into(),
            metadata,
        };
        let mut service = Service::new(identity, "serves", Timestamp::from_millis(0));
        for name in ["one", "two"] {
            let endpoint = ServiceEndpoint {
                name: name.into(),
                subject: format!("a.{name}"),
                queue_group: "q".into(),
                metadata: ServiceMetadata::new(),
            };
            service.add(endpoint);
        }
        service
    }

    fn told(service: &Service, subject: &str) -> Value {
        serde_json::from_str(&service.answer(subject).unwrap()).unwrap()
    }

    #[test]
    fn answers_are_what_nats_clients_expect() {
        let mut service = service();
        let ping = json!({"type": "io.nats.micro.v1.ping_response", "name": "s", "id": "i", "version": "1.0.0",
            "metadata": {"planck": "1"}});
        assert_eq!(told(&service, "$SRV.PING"), ping);
        service.count(0, Duration::from_nanos(40), None);
        service.count(0, Duration::from_nanos(20), Some("500:no".into()));
        service.leave(1);
        let stats = told(&service, "$SRV.STATS.s");
        assert_eq!(stats["started"], "1970-01-01T00:00:00.000Z");
        let counted = json!([{"name": "one", "subject": "a.one", "queue_group": "q", "num_requests": 2, "num_errors": 1,
            "last_error": "500:no", "processing_time": 60, "average_processing_time": 30}]);
        assert_eq!(
            stats["endpoints"], counted,
            "an endpoint that has left is not listed"
        );
        assert_eq!(service.answer("$SRV.OTHER"), None);
    }

    #[test]
    fn info_is_read_as_it_was_written() {
        let info: ServiceInfo =
            serde_json::from_str(&service().answer("$SRV.INFO.s.i").unwrap()).unwrap();
        assert_eq!(
            (info.name.as_str(), info.id.as_str(), info.version.as_str()),
            ("s", "i", "1.0.0")
        );
        assert_eq!(
            info.metadata,
            ServiceMetadata::from([("planck".into(), "1".into())])
        );
        assert_eq!(info.endpoints.len(), 2);
    }

    #[test]
    fn info_with_only_the_required_keys_is_read() {
        let text = r#"{"name":"s","id":"i","version":"1","metadata":null,"endpoints":[{"name":"one","subject":"a.one"}]}"#;
        let info: ServiceInfo = serde_json::from_str(text).unwrap();
        assert_eq!(
            (info.metadata, info.endpoints.len()),
            (ServiceMetadata::new(), 1)
        );
    }
}
