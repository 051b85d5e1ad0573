//! Tests of the index of waits.

use std::{fs, slice};

use planck_common::{
    NodeId,
    command::ListWaits,
    wait::{WaitDecision, WaitState},
};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _, sqlite::SqliteConnectOptions,
};

use super::{Folder, SqliteStore};
use crate::{
    BatchOutcome, Waits as _,
    conformance::{Team, waits},
};

/// Runs a statement on the index as another process would, and returns the first column of each
/// row.
async fn in_index(folder: &Folder, sql: &str) -> Vec<i64> {
    let options = SqliteConnectOptions::new().filename(folder.path().join("index.db"));
    let mut connection = options.connect().await.unwrap();
    let rows = sqlx::query(AssertSqlSafe(sql.to_owned()))
        .fetch_all(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn listed(store: &SqliteStore, state: WaitState) -> Vec<planck_common::CallId> {
    let page = store.waits(None, &waits::of_state(state)).await.unwrap();
    page.waits.into_iter().map(|wait| wait.id).collect()
}

#[tokio::test]
async fn a_rebuilt_index_lists_all_waits() {
    let folder = Folder::new();
    let team = Team::start(&folder, 1).await;
    let (open, answered, over) = (waits::approval(), waits::approval(), waits::approval());
    for wait in [&open, &answered, &over] {
        team.open_wait(0, wait).await;
    }
    team.allow(0, &answered).await;
    team.log(0, vec![waits::closed(&over, WaitDecision::Deny)])
        .await;
    for rest in ["index.db", "index.db-wal", "index.db-shm"] {
        let _ = fs::remove_file(folder.path().join(rest));
    }
    let looking = SqliteStore::look(folder.options()).await.unwrap();
    assert!(!folder.path().join("index.db").exists());
    let rebuilt = folder.store(&NodeId::mint()).await;
    for store in [looking, rebuilt] {
        assert_eq!(
            listed(&store, WaitState::Open).await,
            slice::from_ref(&open.id)
        );
        assert_eq!(
            listed(&store, WaitState::Answered).await,
            slice::from_ref(&answered.id)
        );
        assert_eq!(
            listed(&store, WaitState::Closed).await,
            slice::from_ref(&over.id)
        );
    }
    assert_eq!(team.swept().await, team.agents);
    let looking = SqliteStore::look(folder.options()).await.unwrap();
    assert_eq!(listed(&looking, WaitState::Open).await, [open.id]);
}

#[tokio::test]
async fn a_sweep_looks_at_a_wait_when_it_is_due() {
    let folder = Folder::new();
    let team = Team::start(&folder, 1).await;
    let wait = waits::approval();
    team.open_wait(0, &wait).await;
    let due = async || in_index(&folder, "SELECT due FROM waits WHERE due IS NOT NULL").await;
    let first = due().await;
    assert_eq!(team.swept().await, []);
    assert_eq!(due().await, first, "the wait was announced just now");
    in_index(&folder, "UPDATE waits SET due = 1").await;
    assert_eq!(team.swept().await, []);
    assert!(due().await[0] > first[0], "an open wait is looked at later");
    team.allow(0, &wait).await;
    assert_eq!(team.swept().await, team.agents);
    assert_eq!(due().await, [0]);
    team.log(0, vec![waits::closed(&wait, WaitDecision::Allow)])
        .await;
    assert_eq!(team.swept().await, []);
    assert!(due().await.is_empty(), "the wait has ended");
}

/// A sweep looks at a wait before an answer is stored, and writes the result after it.
#[tokio::test]
async fn a_sweep_does_not_put_off_what_was_announced_meanwhile() {
    let folder = Folder::new();
    let team = Team::start(&folder, 1).await;
    let store = folder.store(&NodeId::mint()).await;
    let wait = waits::approval();
    team.open_wait(0, &wait).await;
    in_index(&folder, "UPDATE waits SET due = 0").await;
    let seen = store
        .index
        .due_waits(planck_common::Timestamp::now())
        .await
        .unwrap();
    team.allow(0, &wait).await;
    let later = Some(i64::MAX);
    let session = &team.session;
    store
        .index
        .looked_at_waits(session, &[(&seen[0], later)])
        .await
        .unwrap();
    store
        .index
        .forget_waits(session, &[&seen[0]])
        .await
        .unwrap();
    assert_eq!(in_index(&folder, "SELECT due FROM waits").await, [0]);
    assert_eq!(team.swept().await, team.agents);
}

#[tokio::test]
async fn a_wait_that_was_never_opened_is_forgotten() {
    let folder = Folder::new();
    let team = Team::start(&folder, 1).await;
    let refused = team
        .append(team.batch(0, 7, vec![waits::opened(&waits::approval())]))
        .await;
    assert_eq!(refused, BatchOutcome::StaleEpoch);
    let count = async || in_index(&folder, "SELECT count(*) FROM waits").await;
    in_index(&folder, "UPDATE waits SET due = 0").await;
    assert_eq!(team.swept().await, []);
    assert_eq!(count().await, [1], "the append may still be on its way");
    assert!(team.list(ListWaits::default()).await.is_empty());
    in_index(&folder, "UPDATE waits SET at = at - 60001").await;
    assert_eq!(team.swept().await, []);
    assert_eq!(count().await, [0]);
}
