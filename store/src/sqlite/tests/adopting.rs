//! Tests of sessions that another folder's store takes over.

use std::collections::BTreeMap;

use planck_common::{
    NodeId,
    event::InputKind,
    wait::{WaitAnswer, WaitDecision, WaitScope, WaitState},
};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _, SqliteConnection,
    sqlite::SqliteConnectOptions,
};

use super::{Folder, SqliteStore};
use crate::{
    SessionRecords as _, Waits as _,
    conformance::{Team, message, waits},
    sqlite::stray_sessions,
};

/// The columns to which the adoption gives new values.
const CHANGED: [(&str, &str); 7] = [
    ("sessions", "store_id"),
    ("sessions", "state"),
    ("agents", "state"),
    ("agents", "node_id"),
    ("agents", "epoch"),
    ("inputs", "outcome"),
    ("inputs", "waiting"),
];

async fn texts(file: &mut SqliteConnection, sql: String) -> Vec<String> {
    let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(file).await;
    rows.unwrap().iter().map(|row| row.get(0)).collect()
}

/// Returns the rows of each table in the only session file of a folder, without [`CHANGED`].
async fn tables(folder: &Folder) -> BTreeMap<String, Vec<String>> {
    let stray = stray_sessions(folder.path()).unwrap().remove(0);
    let path = folder
        .path()
        .join(format!("{}_{}.db", stray.id, stray.name));
    let options = SqliteConnectOptions::new().filename(path);
    let mut file = options.connect().await.unwrap();
    let names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    let mut found = BTreeMap::new();
    for table in texts(&mut file, names.to_owned()).await {
        let columns = format!("SELECT name FROM pragma_table_info('{table}') ORDER BY cid");
        let mut columns = texts(&mut file, columns).await;
        columns.retain(|column| !CHANGED.contains(&(&table, column)));
        let row = format!("SELECT json_array({}) FROM {table}", columns.join(", "));
        let rows = texts(&mut file, format!("{row} ORDER BY 1")).await;
        found.insert(table, rows);
    }
    file.close().await.unwrap();
    found
}

/// Moves the only session of a folder to another store.
async fn adopted(from: &Folder, to: &Folder) -> SqliteStore {
    let store = to.store(&NodeId::mint()).await;
    let stray = stray_sessions(from.path()).unwrap().remove(0);
    store.adopt(from.path(), &stray).await.unwrap();
    store
}

fn for_the_session() -> WaitAnswer {
    WaitAnswer {
        scope: Some(WaitScope::Session),
        ..waits::says(WaitDecision::Allow, "ann")
    }
}

#[tokio::test]
async fn an_adopted_session_has_all_of_its_rows() {
    let (from, to) = (Folder::new(), Folder::new());
    let team = Team::start(&from, 2).await;
    let (open, allowed, over) = (waits::approval(), waits::session_wide(), waits::approval());
    for wait in [&open, &allowed, &over] {
        team.open_wait(1, wait).await;
    }
    team.answer(&allowed, &for_the_session()).await;
    team.log(1, vec![waits::closed(&over, WaitDecision::Deny)])
        .await;
    team.put(&team.said_by(0, 1, InputKind::Task)).await;
    team.baseline(1, "call").await;
    let to_hide = team.log(0, vec![message("hidden")]).await[0];
    team.store
        .rewind(&team.session, 1, to_hide, "me")
        .await
        .unwrap();
    let session = team.session.clone();
    drop(team);
    let before = tables(&from).await;
    assert!(before.values().all(|rows| !rows.is_empty()), "{before:#?}");

    let store = adopted(&from, &to).await;
    assert!(store.session(&session).await.unwrap().is_some());
    drop(store);
    assert_eq!(tables(&to).await, before);
}

#[tokio::test]
async fn an_adopted_session_keeps_its_open_waits_and_its_rules() {
    let (from, to) = (Folder::new(), Folder::new());
    let team = Team::start(&from, 1).await;
    let (open, allowed) = (waits::approval(), waits::session_wide());
    for wait in [&open, &allowed] {
        team.open_wait(0, wait).await;
    }
    team.answer(&allowed, &for_the_session()).await;
    let session = team.session.clone();
    drop(team);

    let store = adopted(&from, &to).await;
    let page = store.waits(None, &waits::of_state(WaitState::Open)).await;
    let listed: Vec<_> = page
        .unwrap()
        .waits
        .into_iter()
        .map(|wait| wait.id)
        .collect();
    assert_eq!(listed, [open.id]);
    let rules = store.session_rules(&session).await.unwrap();
    let rules: Vec<_> = rules.into_iter().map(|rule| rule.wait).collect();
    assert_eq!(rules, [allowed.id]);
}
