//! The registry's bucket. The first node creates it with exact settings, and every node checks
//! them.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use planck_common::{Timestamp, server_clock::ServerClock};

use super::{JetStreamError, NatsRecords, parse};
use crate::records::{DEADLINE, RecordsError};

/// How long creating the bucket may take, because a cluster elects a leader before it answers.
const MAKING: Duration = Duration::from_secs(5);

/// The maximum size of a record in bytes. A much larger record, which no node writes, could not be
/// read within a server's `max_payload`. A bucket that an older version created has no such limit.
const LARGEST: i32 = 256 * 1024;

#[derive(Deserialize)]
struct BucketInfo {
    config: Value,
    created: String,
    /// The time on the server's clock.
    ts: String,
}

/// Creates the bucket if it does not exist, checks its settings, and returns its age.
pub(super) async fn open(records: &NatsRecords) -> Result<Duration, RecordsError> {
    let info = match info(records).await {
        Err(RecordsError::Missing(_)) => make(records).await?,
        found => found?,
    };
    check(records, &info.config)?;
    Ok(info.age())
}

/// Returns the clock of the server that leads the bucket, after a check of the bucket's settings.
/// Returns `None` if there is no bucket.
pub(super) async fn clock(records: &NatsRecords) -> Result<Option<ServerClock>, RecordsError> {
    let asked = Timestamp::now();
    let found = info(records).await;
    let answered = Timestamp::now();
    let info = match found {
        Err(RecordsError::Missing(_)) => return Ok(None),
        found => found?,
    };
    check(records, &info.config)?;
    let told = Timestamp::parse(&info.ts).map_err(|error| {
        RecordsError::Unfit(format!(
            "cannot read the time that JetStream reports: {error}"
        ))
    })?;
    Ok(Some(ServerClock::read(asked, told, answered)))
}

impl BucketInfo {
    fn age(&self) -> Duration {
        let at = |text: &str| Timestamp::parse(text).unwrap_or_default();
        Duration::from_millis(at(&self.ts).millis_since(at(&self.created)))
    }
}

async fn info(records: &NatsRecords) -> Result<BucketInfo, RecordsError> {
    let answer = records.ask("INFO", Bytes::new(), DEADLINE).await?;
    parse(&answer, &records.bucket).map_err(JetStreamError::into_error)
}

/// Creates the bucket. Another node may do the same at once, because JetStream then returns the
/// existing bucket.
async fn make(records: &NatsRecords) -> Result<BucketInfo, RecordsError> {
    let config = json!(settings(records));
    let answer = records
        .ask("CREATE", config.to_string().into(), MAKING)
        .await?;
    let made: Result<BucketInfo, _> = parse(&answer, &records.bucket);
    match made.map_err(JetStreamError::into_error) {
        // Another client has created a bucket with other settings, or the cluster is too small.
        Err(RecordsError::Unfit(why)) => info(records)
            .await
            .map_err(|_| RecordsError::Unfit(format!("{why}; {SMALL}"))),
        made => made,
    }
}

const SMALL: &str = "`nats.replicas` copies need as many NATS servers in one cluster";

fn settings(records: &NatsRecords) -> Config {
    Config {
        name: records.stream(),
        description: Some("Planck: who is where and who is alive".into()),
        subjects: vec![records.subject(">")],
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        num_replicas: records.replicas,
        max_messages_per_subject: 1,
        max_messages: -1,
        max_bytes: -1,
        max_consumers: -1,
        max_message_size: LARGEST,
        discard: DiscardPolicy::New,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        allow_message_ttl: true,
        allow_atomic_publish: true,
        duplicate_window: Duration::from_secs(120),
        ..Config::default()
    }
}

/// Returns the name and the value of each required setting. The value is null if the server must
/// leave the setting out.
fn must(records: &NatsRecords) -> Vec<(&'static str, Value)> {
    vec![
        ("subjects", json!([records.subject(">")])),
        ("retention", json!("limits")),
        ("storage", json!("file")),
        ("num_replicas", json!(records.replicas)),
        ("max_msgs_per_subject", json!(1)),
        ("max_msgs", json!(-1)),
        ("max_bytes", json!(-1)),
        ("max_age", json!(0)),
        ("discard", json!("new")),
        ("allow_rollup_hdrs", json!(true)),
        ("deny_delete", json!(true)),
        ("allow_msg_ttl", json!(true)),
        ("allow_atomic", json!(true)),
        ("mirror", Value::Null),
        ("sources", Value::Null),
        ("republish", Value::Null),
    ]
}

fn check(records: &NatsRecords, found: &Value) -> Result<(), RecordsError> {
    let has = |name: &str| found.get(name).cloned().unwrap_or(Value::Null);
    let differs = |(name, wanted): (&str, Value)| {
        (has(name) != wanted).then(|| format!("{name} is {}, not {wanted}", has(name)))
    };
    let differences: Vec<String> = must(records).into_iter().filter_map(differs).collect();
    if differences.is_empty() {
        return Ok(());
    }
    Err(RecordsError::Unfit(format!(
        "the bucket {bucket} has other settings than Planck needs: {}. Change them with `nats stream edit {}`, or stop all nodes and remove it with `nats kv del {bucket}`: the next node makes it anew and nothing is lost. If only num_replicas differs, `nats.replicas` may be what is wrong",
        differences.join("; "),
        records.stream(),
        bucket = records.bucket
    )))
}
