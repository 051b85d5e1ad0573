//! Checks that each fault of the bucket or its server is reported by a different error.

use futures_util::StreamExt;
use tokio::time::timeout;

use super::*;

const SOON: Duration = Duration::from_secs(20);

async fn alone() -> (NatsServer, NatsRecords) {
    let server = NatsServer::start().unwrap();
    let records = connect(server.url(), "", 1).await;
    (server, records)
}

#[tokio::test]
async fn bucket_with_other_settings_is_refused() {
    let (_server, records) = alone().await;
    let jetstream = async_nats::jetstream::new(records.link.client.clone());
    let bucket = records.bucket.clone();
    let config = async_nats::jetstream::kv::Config {
        bucket,
        history: 5,
        ..Default::default()
    };
    jetstream.create_key_value(config).await.unwrap();
    let error = records.open().await.unwrap_err().to_string();
    for named in [
        "max_msgs_per_subject is 5, not 1",
        "allow_atomic is null, not true",
        "nats kv del planck_registry",
    ] {
        assert!(error.contains(named), "{error}");
    }
}

#[tokio::test]
async fn bucket_with_another_number_of_copies_is_refused() {
    let (server, records) = alone().await;
    opened(records).await;
    let error = connect(server.url(), "", 3)
        .await
        .open()
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("num_replicas is 1, not 3"), "{error}");
    let error = connect(server.url(), "other", 3)
        .await
        .open()
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("nats.replicas"), "{error}");
}

#[tokio::test]
async fn removed_bucket_is_missing_until_it_is_created_again() {
    let (_server, records) = alone().await;
    assert_eq!(
        records.read("node.a").await,
        Err(RecordsError::Missing("planck_registry".into()))
    );
    let records = opened(records).await;
    let mut hints = records.watch("node.*");
    assert_eq!(hints.next().await, Some(Hint::Restarted));
    let jetstream = async_nats::jetstream::new(records.link.client.clone());
    jetstream.delete_key_value(&records.bucket).await.unwrap();
    let write = || vec![Write::put("node.a", "a").at(0)];
    assert_eq!(
        records.write(write()).await,
        Err(RecordsError::Missing("planck_registry".into()))
    );
    assert_eq!(
        records.read_all("node.*").await,
        Err(RecordsError::Missing("planck_registry".into()))
    );
    records.open().await.unwrap();
    records.write(write()).await.unwrap();
}

#[tokio::test]
async fn server_that_is_away_or_frozen_has_an_error_of_its_own() {
    let (mut server, records) = alone().await;
    let records = opened(records).await;
    let mut hints = records.watch("node.*");
    assert_eq!(hints.next().await, Some(Hint::Restarted));

    server.pause().unwrap();
    let written = records.write(vec![Write::put("node.a", "frozen")]).await;
    assert!(
        matches!(written, Err(RecordsError::Unknown(_))),
        "{written:?}"
    );
    server.kill().unwrap();
    let until = Instant::now() + SOON;
    while records.link.is_up() {
        assert!(Instant::now() < until);
        sleep(Duration::from_millis(10)).await;
    }
    let written = records.write(vec![Write::put("node.a", "away")]).await;
    assert!(matches!(written, Err(RecordsError::Away(_))), "{written:?}");

    server.restart().unwrap();
    let records = opened(records).await;
    let revision = records
        .write(vec![Write::put("node.b", "back")])
        .await
        .unwrap();
    let told = async {
        while let Some(hint) = hints.next().await {
            if matches!(&hint, Hint::Changed(record) if record.revision == revision && record.key == "node.b")
            {
                return;
            }
        }
        panic!("the watch ended");
    };
    timeout(SOON, told)
        .await
        .expect("the watch reports nothing");
}

#[tokio::test]
async fn records_work_again_after_the_leader_was_killed() {
    let mut cluster = NatsCluster::start().unwrap();
    let records = opened(connect(cluster.url(), "", 3).await).await;
    let first = written(&records, || vec![Write::put("node.a", "a")]).await;
    let leader = leader(&records).await;
    let number: usize = leader.trim_start_matches('n').parse().unwrap();
    cluster.servers[number - 1].kill().unwrap();

    let proof = || vec![Write::put("proof.a", "").while_at("node.a", first)];
    let revision = written(&records, proof).await;
    assert!(revision > first);
    assert_eq!(
        records.read("node.a").await.unwrap().value.as_deref(),
        Some("a".as_bytes())
    );
}

/// Writes as soon as the bucket has a leader.
async fn written(records: &NatsRecords, writes: impl Fn() -> Vec<Write>) -> u64 {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match records.write(writes()).await {
            Ok(revision) => return revision,
            Err(RecordsError::Away(_) | RecordsError::Unknown(_)) => {
                assert!(Instant::now() < until, "no leader");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

async fn leader(records: &NatsRecords) -> String {
    let jetstream = async_nats::jetstream::new(records.link.client.clone());
    let mut stream = jetstream.get_stream(records.stream()).await.unwrap();
    stream
        .info()
        .await
        .unwrap()
        .cluster
        .clone()
        .unwrap()
        .leader
        .unwrap()
}
