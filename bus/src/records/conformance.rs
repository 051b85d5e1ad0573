//! The cases that every bucket of records passes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a case fails by a panic"
)]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{
    StreamExt,
    future::join_all,
    stream::{self, BoxStream},
};
use tokio::time::{Instant, sleep, timeout};

use super::{Hint, Record, Records, RecordsError, Write};

const SOON: Duration = Duration::from_secs(10);

/// An open bucket, to which the cases connect any number of times.
#[async_trait]
pub trait World: Send + Sync {
    async fn end(&self) -> Arc<dyn Records>;
}

/// Passes every case to the macro `$each`, together with `$world`, with which that macro makes a
/// world for each case.
#[doc(hidden)]
#[macro_export]
macro_rules! records_cases {
    ($each:ident, $world:expr) => {
        $each! { $world,
            missing_record_has_revision_0, record_is_created_once, write_at_an_old_revision_is_refused, write_can_depend_on_another_key, batch_is_written_whole_or_not_at_all,
            one_condition_guards_a_batch, one_of_several_creators_succeeds, removed_record_has_no_value, record_with_a_lifetime_expires, records_are_read_in_order, watch_reports_changes, every_watch_gets_every_change
        }
    };
}
pub use crate::records_cases as cases;

/// Defines one test per case. Each test runs its case on a new world, made by `$world`.
#[doc(hidden)]
#[macro_export]
macro_rules! records_tests {
    ($world:expr, $($case:ident),+) => {
        $(#[tokio::test]
        async fn $case() {
            $crate::records::conformance::$case(&$world).await;
        })+
    };
}
pub use crate::records_tests as tests;

/// Runs the cases one after the other, each on the world that `$world` returns for the case's name.
#[doc(hidden)]
#[macro_export]
macro_rules! records_in_turn {
    ($world:expr, $($case:ident),+) => {
        $($crate::records::conformance::$case(&$world(stringify!($case))).await;)+
    };
}
pub use crate::records_in_turn as in_turn;

async fn value(records: &Arc<dyn Records>, key: &str) -> Option<String> {
    let record = records.read(key).await.unwrap();
    record
        .value
        .map(|value| String::from_utf8(value.to_vec()).unwrap())
}

async fn put(records: &Arc<dyn Records>, write: Write) -> Result<u64, RecordsError> {
    records.write(vec![write]).await
}

pub async fn missing_record_has_revision_0(world: &impl World) {
    let records = world.end().await;
    assert_eq!(
        records.read("node.a").await.unwrap(),
        Record {
            key: "node.a".into(),
            revision: 0,
            value: None
        }
    );
    assert_eq!(records.read_all("node.*").await.unwrap(), []);
    assert!(
        records.open().await.unwrap() < Duration::from_secs(60),
        "the bucket was just created"
    );
}

pub async fn record_is_created_once(world: &impl World) {
    let (one, two) = (world.end().await, world.end().await);
    let revision = put(&one, Write::put("node.a", "one").at(0)).await.unwrap();
    assert_eq!(
        put(&two, Write::put("node.a", "two").at(0)).await,
        Err(RecordsError::Refused)
    );
    let found = two.read("node.a").await.unwrap();
    assert_eq!(
        found,
        Record {
            key: "node.a".into(),
            revision,
            value: Some("one".into())
        }
    );
}

pub async fn write_at_an_old_revision_is_refused(world: &impl World) {
    let (one, two) = (world.end().await, world.end().await);
    let first = put(&one, Write::put("team.t.1", "born").at(0))
        .await
        .unwrap();
    put(&one, Write::put("team.u.1", "other")).await.unwrap();
    let second = put(&two, Write::put("team.t.1", "moved").at(first))
        .await
        .unwrap();
    assert!(second > first);
    assert_eq!(
        put(&one, Write::put("team.t.1", "stale").at(first)).await,
        Err(RecordsError::Refused)
    );
    assert_eq!(value(&one, "team.t.1").await.as_deref(), Some("moved"));
}

pub async fn write_can_depend_on_another_key(world: &impl World) {
    let (one, two) = (world.end().await, world.end().await);
    let alive = put(&one, Write::put("team.t.1", "alive").at(0))
        .await
        .unwrap();
    put(
        &two,
        Write::put("member.t.1.a", "a").while_at("team.t.1", alive),
    )
    .await
    .unwrap();
    put(
        &two,
        Write::put("member.t.1.a", "a again").while_at("team.t.1", alive),
    )
    .await
    .unwrap();
    put(&one, Write::put("team.t.1", "dead").at(alive))
        .await
        .unwrap();
    let late = put(
        &two,
        Write::put("member.t.1.b", "b").while_at("team.t.1", alive),
    )
    .await;
    assert_eq!(late, Err(RecordsError::Refused));
    assert_eq!(value(&one, "member.t.1.b").await, None);
    assert_eq!(
        value(&one, "member.t.1.a").await.as_deref(),
        Some("a again")
    );
}

pub async fn batch_is_written_whole_or_not_at_all(world: &impl World) {
    let records = world.end().await;
    let observer = put(&records, Write::put("node.observer", "alive").at(0))
        .await
        .unwrap();
    let suspect = put(&records, Write::put("node.suspect", "alive").at(0))
        .await
        .unwrap();
    let verdict = |observer: u64, suspect: u64| {
        vec![
            Write::put("proof.observer", "").while_at("node.observer", observer),
            Write::put("node.suspect", "dead").at(suspect),
        ]
    };
    assert_eq!(
        records.write(verdict(observer + 50, suspect)).await,
        Err(RecordsError::Refused),
        "a dead observer"
    );
    assert_eq!(
        records.write(verdict(observer, suspect + 50)).await,
        Err(RecordsError::Refused),
        "a suspect whose record changed"
    );
    assert_eq!(value(&records, "proof.observer").await, None);
    assert_eq!(
        value(&records, "node.suspect").await.as_deref(),
        Some("alive")
    );

    let last = records.write(verdict(observer, suspect)).await.unwrap();
    assert_eq!(records.read("node.suspect").await.unwrap().revision, last);
    assert_eq!(
        records.read("proof.observer").await.unwrap().revision,
        last - 1
    );
    assert_eq!(
        records.write(verdict(observer, suspect)).await,
        Err(RecordsError::Refused),
        "once"
    );
    let unseen = vec![
        Write::put("proof.observer", "").while_at("node.observer", observer),
        Write::put("node.unknown", "dead")
            .at(0)
            .lasting(Duration::from_secs(60)),
    ];
    records.write(unseen).await.unwrap();
    assert_eq!(
        value(&records, "node.unknown").await.as_deref(),
        Some("dead")
    );
}

/// Checks that the first write's condition applies to all writes of a batch, and that a batch can
/// write existing keys again.
pub async fn one_condition_guards_a_batch(world: &impl World) {
    let records = world.end().await;
    let alive = put(&records, Write::put("team.t.1", "alive").at(0))
        .await
        .unwrap();
    let born = |value: &'static str| {
        let mut writes: Vec<Write> = (0..64)
            .map(|n| Write::put(format!("member.t.1.w{n}"), value))
            .collect();
        writes[0] = writes[0].clone().while_at("team.t.1", alive);
        writes
    };
    for value in ["born", "again"] {
        records.write(born(value)).await.unwrap();
        let there = records.read_all("member.t.1.*").await.unwrap();
        assert_eq!(
            there
                .iter()
                .filter(|record| record.value.as_deref() == Some(value.as_bytes()))
                .count(),
            64
        );
    }
    put(&records, Write::put("team.t.1", "dead").at(alive))
        .await
        .unwrap();
    assert_eq!(
        records.write(born("late")).await,
        Err(RecordsError::Refused)
    );
    assert!(
        records
            .read_all("member.t.1.*")
            .await
            .unwrap()
            .iter()
            .all(|record| record.value.as_deref() == Some(b"again"))
    );
}

pub async fn one_of_several_creators_succeeds(world: &impl World) {
    let ends = join_all((0..8).map(|_| world.end())).await;
    let create = |(n, end): (usize, &Arc<dyn Records>)| {
        let (end, value) = (end.clone(), n.to_string());
        async move { put(&end, Write::put("store", value).at(0)).await }
    };
    let created = join_all(ends.iter().enumerate().map(create)).await;
    assert_eq!(
        created.iter().filter(|result| result.is_ok()).count(),
        1,
        "{created:?}"
    );
    assert_eq!(
        created
            .iter()
            .filter(|result| **result == Err(RecordsError::Refused))
            .count(),
        7,
        "{created:?}"
    );
}

pub async fn removed_record_has_no_value(world: &impl World) {
    let records = world.end().await;
    let revision = put(&records, Write::put("member.t.1.a", "a"))
        .await
        .unwrap();
    let gone = put(
        &records,
        Write::remove("member.t.1.a").lasting(Duration::from_secs(60)),
    )
    .await
    .unwrap();
    let found = records.read("member.t.1.a").await.unwrap();
    assert_eq!(
        found,
        Record {
            key: "member.t.1.a".into(),
            revision: gone,
            value: None
        }
    );
    assert_eq!(records.read_all("member.t.1.*").await.unwrap(), []);
    assert_eq!(
        put(&records, Write::put("member.t.1.a", "b").at(0)).await,
        Err(RecordsError::Refused)
    );
    assert_eq!(
        put(&records, Write::put("member.t.1.a", "b").at(revision)).await,
        Err(RecordsError::Refused)
    );
    put(&records, Write::put("member.t.1.a", "b").at(gone))
        .await
        .unwrap();
    assert_eq!(value(&records, "member.t.1.a").await.as_deref(), Some("b"));
}

pub async fn record_with_a_lifetime_expires(world: &impl World) {
    let records = world.end().await;
    let stays = put(&records, Write::put("node.b", "alive").at(0))
        .await
        .unwrap();
    put(
        &records,
        Write::put("node.a", "left").lasting(Duration::from_secs(1)),
    )
    .await
    .unwrap();
    assert_eq!(value(&records, "node.a").await.as_deref(), Some("left"));
    put(
        &records,
        Write::remove("node.b")
            .at(stays)
            .lasting(Duration::from_secs(1)),
    )
    .await
    .unwrap();
    let until = Instant::now() + SOON;
    for key in ["node.a", "node.b"] {
        while records.read(key).await.unwrap().revision != 0 {
            assert!(Instant::now() < until, "{key} is still there");
            sleep(Duration::from_millis(50)).await;
        }
        put(&records, Write::put(key, "again").at(0)).await.unwrap();
    }
}

pub async fn records_are_read_in_order(world: &impl World) {
    let records = world.end().await;
    for n in 0..50 {
        put(&records, Write::put(format!("node.n{n}"), n.to_string()))
            .await
            .unwrap();
        put(&records, Write::put(format!("proof.n{n}"), ""))
            .await
            .unwrap();
    }
    put(&records, Write::put("node.n7", "later")).await.unwrap();
    put(&records, Write::remove("node.n8")).await.unwrap();
    let found = records.read_all("node.*").await.unwrap();
    let keys: Vec<&str> = found.iter().map(|record| record.key.as_str()).collect();
    let expected = (0..50)
        .filter(|n| ![7, 8].contains(n))
        .chain([7])
        .map(|n| format!("node.n{n}"));
    assert_eq!(keys, expected.collect::<Vec<_>>());
    assert_eq!(
        found.last().unwrap().value.as_deref(),
        Some("later".as_bytes())
    );
    assert!(found.is_sorted_by_key(|record| record.revision));
    assert_eq!(records.read_all(">").await.unwrap().len(), 99);
}

async fn next(hints: &mut BoxStream<'static, Hint>) -> Hint {
    timeout(SOON, hints.next())
        .await
        .expect("nothing was told")
        .expect("the watch ended")
}

pub async fn watch_reports_changes(world: &impl World) {
    let records = world.end().await;
    let before = put(&records, Write::put("node.a", "before")).await.unwrap();
    let mut hints = records.watch("node.*");
    assert_eq!(next(&mut hints).await, Hint::Restarted);
    let told = |revision, value: Option<&'static str>| {
        Hint::Changed(Record {
            key: "node.a".into(),
            revision,
            value: value.map(Into::into),
        })
    };
    assert_eq!(next(&mut hints).await, told(before, Some("before")));
    put(&records, Write::put("proof.a", "")).await.unwrap();
    let after = put(&records, Write::put("node.a", "after")).await.unwrap();
    assert_eq!(next(&mut hints).await, told(after, Some("after")));
    let gone = put(&records, Write::remove("node.a")).await.unwrap();
    assert_eq!(next(&mut hints).await, told(gone, None));
}

pub async fn every_watch_gets_every_change(world: &impl World) {
    let records = world.end().await;
    let mut watches: Vec<_> = (0..4).map(|_| records.watch(">")).collect();
    for hints in &mut watches {
        assert_eq!(next(hints).await, Hint::Restarted);
    }
    let revision = put(&records, Write::put("team.t.1", "alive"))
        .await
        .unwrap();
    let told = stream::iter(watches)
        .then(|mut hints| async move { next(&mut hints).await })
        .collect::<Vec<_>>()
        .await;
    let expected = Hint::Changed(Record {
        key: "team.t.1".into(),
        revision,
        value: Some("alive".into()),
    });
    assert_eq!(told, vec![expected; 4]);
}
