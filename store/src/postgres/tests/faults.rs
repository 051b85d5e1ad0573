//! Tests of faults that only Postgres can have: other schemas, closed connections, an exhausted
//! pool, and bytes that a text column cannot hold.

use std::time::Duration;

use planck_common::{SessionId, wait::WaitState};
use planck_migrations::Migration;
use sqlx::Executor as _;

use super::{PostgresOptions, PostgresStore, Private, SessionStore};
use crate::{
    BatchOutcome, NewInput, StoreError,
    conformance::{Team, message, waits, whole_log},
    postgres::{database::Database, migrate},
};

const BASE: Migration = Migration {
    version: 1,
    sql: "CREATE TABLE one (x int)",
};
const NEXT: Migration = Migration {
    version: 2,
    sql: "CREATE TABLE two (x int)",
};

#[tokio::test]
async fn schemas_go_forward_only() {
    let world = Private::create().await;
    let database = Database::connect(&PostgresOptions::new(world.0.url())).unwrap();
    migrate::run(&database, &[BASE]).await.unwrap();
    migrate::run(&database, &[BASE]).await.unwrap();
    migrate::run(&database, &[BASE, NEXT]).await.unwrap();
    world
        .0
        .connect()
        .await
        .unwrap()
        .execute("SELECT FROM one, two")
        .await
        .unwrap();
    let Err(StoreError::Broken(why)) = migrate::run(&database, &[BASE]).await else {
        panic!("took a newer schema")
    };
    assert!(
        why.contains("schema version 2") && why.contains("up to 1"),
        "{why}"
    );
}

#[tokio::test]
async fn a_migration_that_fails_leaves_nothing() {
    let world = Private::create().await;
    let database = Database::connect(&PostgresOptions::new(world.0.url())).unwrap();
    let broken = Migration {
        version: 2,
        sql: "CREATE TABLE two (x int); SELECT 1 / 0",
    };
    assert!(migrate::run(&database, &[BASE, broken]).await.is_err());
    migrate::run(&database, &[BASE, NEXT]).await.unwrap();
}

#[tokio::test]
async fn a_node_that_may_not_migrate_works_with_the_schema_before() {
    let world = Private::create().await;
    let mut admin = world.0.connect().await.unwrap();
    migrate::run(
        &Database::connect(&PostgresOptions::new(world.0.url())).unwrap(),
        &[BASE],
    )
    .await
    .unwrap();
    let role = format!("reader_{}", std::process::id());
    let grant =
        format!("CREATE ROLE {role} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}");
    admin
        .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(grant)))
        .await
        .unwrap();
    let (before, after) = world
        .0
        .url()
        .split_once("planck@")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let reader =
        Database::connect(&PostgresOptions::new(format!("{before}{role}@{after}"))).unwrap();
    let third = Migration {
        version: 3,
        sql: "CREATE TABLE three (x int)",
    };
    let (next, far) = (
        migrate::run(&reader, &[BASE, NEXT]).await,
        migrate::run(&reader, &[BASE, NEXT, third]).await,
    );
    let drop = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    admin
        .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(drop)))
        .await
        .unwrap();
    next.unwrap();
    assert!(matches!(far, Err(StoreError::Broken(_))), "{far:?}");
}

#[tokio::test]
async fn nodes_that_start_together_migrate_once() {
    let world = Private::create().await;
    let stores = futures_util::future::join_all((0..4).map(|_| world.store())).await;
    let ids = futures_util::future::join_all(stores.iter().map(|store| store.id())).await;
    assert!(
        ids.iter()
            .all(|id| id.as_ref().unwrap() == ids[0].as_ref().unwrap())
    );
}

#[tokio::test]
async fn ended_connections_are_replaced() {
    let world = Private::create().await;
    let store = world.store().await;
    let mut admin = world.0.connect().await.unwrap();
    for _ in 0..5 {
        let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
        admin.execute(others).await.unwrap();
        let mut tries = 1;
        while let Err(error) = store.id().await {
            assert!(matches!(error, StoreError::Away(_)), "{error}");
            tries += 1;
        }
        assert!(tries <= 5, "{tries} tries");
    }
}

#[tokio::test]
async fn an_unreachable_server_is_away() {
    let options = PostgresOptions {
        acquire_timeout: Duration::from_millis(300),
        ..PostgresOptions::new("postgres://nobody@127.0.0.1:1/none")
    };
    assert!(matches!(
        PostgresStore::connect(options).await,
        Err(StoreError::Away(_))
    ));
    assert!(matches!(
        PostgresStore::connect(PostgresOptions::new("no url")).await,
        Err(StoreError::Broken(_))
    ));
}

#[tokio::test]
async fn a_lock_that_a_stopped_client_holds_is_freed() {
    let world = Private::create().await;
    let team = Team::start(&world, 1).await;
    let mut stopped = sqlx::postgres::PgPoolOptions::new()
        .max_connections(1)
        .connect(&world.0.url())
        .await
        .unwrap()
        .acquire()
        .await
        .unwrap();
    stopped
        .execute(
            "SET idle_in_transaction_session_timeout = '1s'; BEGIN; SELECT FROM agents FOR UPDATE",
        )
        .await
        .unwrap();
    team.log(0, vec![message("after")]).await;
    assert_eq!(whole_log(&team, None).await.len(), 1);
}

#[tokio::test]
async fn an_escaped_nul_is_text_and_a_raw_one_is_refused() {
    let world = Private::create().await;
    let team = Team::start(&world, 1).await;
    let escaped = r#"[{"type":"text","text":"a\u0000b"}]"#;
    team.put(&NewInput {
        content: escaped.into(),
        ..team.prompt(0)
    })
    .await;
    let open = team
        .store
        .open_inputs(&team.session, team.lead())
        .await
        .unwrap();
    assert_eq!(open[0].input.content, escaped);
    assert_eq!(
        team.append(team.batch(0, 0, vec![message("a\u{0}b")]))
            .await,
        BatchOutcome::Written(vec![1])
    );
    let raw = team
        .store
        .put(
            &team.session,
            NewInput {
                content: "a\0b".into(),
                ..team.prompt(0)
            },
        )
        .await;
    assert!(matches!(raw, Err(StoreError::BadRequest(_))), "{raw:?}");
    let nowhere = team.store.head(&SessionId::mint()).await;
    assert!(matches!(nowhere, Err(StoreError::NotFound(_))));
}

#[tokio::test]
async fn a_damaged_answer_names_its_session() {
    let world = Private::create().await;
    let (team, wait) = (Team::start(&world, 1).await, waits::approval());
    let (other, kept) = (Team::start(&world, 1).await, waits::approval());
    for (team, wait) in [(&team, &wait), (&other, &kept)] {
        team.open_wait(0, wait).await;
        team.allow(0, wait).await;
    }
    let damage = format!("UPDATE waits SET answer = '{{' WHERE id = '{}'", wait.id);
    let mut admin = world.0.connect().await.unwrap();
    admin
        .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(damage)))
        .await
        .unwrap();
    let answered = waits::of_state(WaitState::Answered);
    let store = &team.store;
    for refused in [
        store.wait(&team.session, &wait.id).await.map(drop),
        store.answers(&team.session, team.lead()).await.map(drop),
        store.waits(Some(&team.session), &answered).await.map(drop),
    ] {
        let Err(StoreError::Broken(why)) = refused else {
            panic!("{refused:?}")
        };
        assert!(why.contains(team.session.as_str()), "{why}");
    }
    assert_eq!(team.list(answered).await, [kept.id]);
}

#[tokio::test]
async fn number_out_of_range_is_refused_with_its_column_and_record() {
    let world = Private::create().await;
    let team = Team::start(&world, 1).await;
    let mut admin = world.0.connect().await.unwrap();
    for (column, bad, good) in [
        ("cost_usd", "'NaN'", "0"),
        ("input_tokens", "-1", "0"),
        ("last_seq", "9007199254740993", "0"),
    ] {
        for value in [bad, good] {
            let set = format!("UPDATE agents SET {column} = {value}");
            admin
                .execute(sqlx::raw_sql(sqlx::AssertSqlSafe(set)))
                .await
                .unwrap();
            let found = team.store.find_agent(team.lead()).await;
            match found {
                Ok(found) => assert!(value == good && found.is_some(), "{column}"),
                Err(StoreError::Broken(why)) => assert!(
                    value == bad && why.contains(column) && why.contains(team.lead().as_str()),
                    "{why}"
                ),
                Err(error) => panic!("{error}"),
            }
        }
    }
}
