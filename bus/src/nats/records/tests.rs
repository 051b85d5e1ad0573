//! The conformance suite on one server and on a cluster of three, and tests of what only real
//! servers do: a bucket with other settings, lost data, outages and elections.

mod faults;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use planck_common::subject::Prefix;
use planck_tests::nats::{NatsCluster, NatsServer};
use tokio::time::{Duration, Instant, sleep};

use super::*;
use crate::{
    NatsBus, NatsOptions,
    records::conformance::{World, cases, in_turn, tests},
};

async fn connect(url: String, prefix: &str, replicas: usize) -> NatsRecords {
    let prefix = Prefix::parse(prefix).unwrap();
    let bus = NatsBus::connect(NatsOptions {
        prefix,
        ..NatsOptions::new(url)
    })
    .await
    .unwrap();
    bus.records(replicas)
}

/// Opens the bucket, and tries again while JetStream elects a leader.
async fn opened(records: NatsRecords) -> NatsRecords {
    let until = Instant::now() + Duration::from_secs(30);
    while let Err(error) = records.open().await {
        assert!(
            matches!(error, RecordsError::Away(_)) && Instant::now() < until,
            "{error}"
        );
        sleep(Duration::from_millis(100)).await;
    }
    records
}

struct Alone(NatsServer);

#[async_trait]
impl World for Alone {
    async fn end(&self) -> Arc<dyn Records> {
        Arc::new(opened(connect(self.0.url(), "eu.test", 1).await).await)
    }
}

mod on_one_server {
    use super::*;

    cases!(tests, Alone(NatsServer::start().unwrap()));
}

/// Records on several servers, which elect a new leader when one of them is slow, as on a busy
/// machine. Operations refused during an election had no effect, so they are repeated.
struct Electing(NatsRecords);

macro_rules! patiently {
    ($ask:expr) => {{
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            match $ask.await {
                Err(RecordsError::Away(_)) if Instant::now() < until => {
                    sleep(Duration::from_millis(100)).await;
                }
                settled => return settled,
            }
        }
    }};
}

#[async_trait]
impl Records for Electing {
    async fn open(&self) -> Result<Duration, RecordsError> {
        patiently!(self.0.open())
    }

    async fn read(&self, key: &str) -> Result<Record, RecordsError> {
        patiently!(self.0.read(key))
    }

    async fn read_all(&self, pattern: &str) -> Result<Vec<Record>, RecordsError> {
        patiently!(self.0.read_all(pattern))
    }

    async fn write(&self, writes: Vec<Write>) -> Result<u64, RecordsError> {
        patiently!(self.0.write(writes.clone()))
    }

    fn watch(&self, pattern: &str) -> BoxStream<'static, Hint> {
        self.0.watch(pattern)
    }
}

/// A separate bucket on a cluster of three servers. Each further connection uses the next server.
struct Three<'a> {
    cluster: &'a NatsCluster,
    prefix: &'a str,
    ends: AtomicUsize,
}

#[async_trait]
impl World for Three<'_> {
    async fn end(&self) -> Arc<dyn Records> {
        let server = &self.cluster.servers[self.ends.fetch_add(1, Ordering::Relaxed) % 3];
        Arc::new(Electing(
            opened(connect(server.url(), self.prefix, 3).await).await,
        ))
    }
}

#[tokio::test]
async fn records_conform_on_three_servers() {
    let cluster = NatsCluster::start().unwrap();
    let world = |prefix| Three {
        cluster: &cluster,
        prefix,
        ends: AtomicUsize::new(0),
    };
    cases!(in_turn, world);
}
