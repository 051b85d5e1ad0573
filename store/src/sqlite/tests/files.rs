//! Tests of lock files, of rebuilding the index, and of the pool of open files.

use std::{fs, os::unix::fs::PermissionsExt as _, sync::Arc};

use planck_common::{
    NodeId, SessionId,
    command::{AgentState, ListSessions, SessionActivity},
    event::InputKind,
};
use planck_migrations::{Migration, SQLITE_INDEX, SQLITE_SESSION};
use sqlx::Row as _;
use tokio::task::JoinSet;

use super::{
    super::{
        db::{Db, DbOptions},
        fault::SqliteFault,
    },
    Folder, SqliteOptions, SqliteStore,
};
use crate::{
    Created, Leases as _, Log as _, SessionRecords as _, SessionStore, StoreError,
    conformance::{Team, team, team::turn_start},
};

#[tokio::test]
async fn work_of_a_process_that_ended_is_listed_as_interrupted() {
    let folder = Folder::new();
    let team = Team::start(&folder, 1).await;
    let prev = team.record(0).await.last_seq;
    let turn = team.batch(0, prev, vec![turn_start(1)]);
    team.write(turn.with(|save| save.state = AgentState::Streaming))
        .await;
    let other = folder.store(&NodeId::mint()).await;
    let activity = async || {
        let listed = other.sessions(ListSessions::default()).await.unwrap();
        listed.sessions[0].activity
    };
    assert_eq!(activity().await, SessionActivity::Working);
    drop(team);
    assert_eq!(activity().await, SessionActivity::Interrupted);
}

#[tokio::test]
async fn a_lock_tells_whether_its_node_lives() {
    let folder = Folder::new();
    let (me, other) = (NodeId::mint(), NodeId::mint());
    let (mine, others) = (folder.store(&me).await, folder.store(&other).await);
    assert!(matches!(
        SqliteStore::open(folder.options(), &other).await,
        Err(StoreError::Busy(_))
    ));
    assert_eq!(mine.node_lives(&other).await.unwrap(), Some(true));
    drop(others);
    let left = |node: &NodeId| folder.path().join(format!(".nodes/{node}.lock")).exists();
    assert!(left(&other));
    drop(folder.store(&NodeId::mint()).await);
    assert!(
        left(&me) && !left(&other),
        "locks of the dead are tidied away"
    );
    assert_eq!(mine.node_lives(&other).await.unwrap(), Some(false));
    assert_eq!(mine.node_lives(&NodeId::mint()).await.unwrap(), Some(false));
    let lock = fs::read_to_string(folder.path().join(format!(".nodes/{me}.lock"))).unwrap();
    assert_eq!(
        lock.split_whitespace().next(),
        Some(std::process::id().to_string().as_str())
    );
}

/// Asserts the results of all queries of the index.
async fn assert_found(store: &SqliteStore, team: &Team, store_id: &str) {
    assert_eq!(store.id().await.unwrap(), store_id);
    let record = store.session(&team.session).await.unwrap().unwrap();
    assert_eq!(
        store.session(&record.name).await.unwrap().unwrap().id,
        team.session
    );
    assert_eq!(
        store
            .find_agent(&team.agents[1])
            .await
            .unwrap()
            .unwrap()
            .session,
        team.session
    );
    let strays = store.sweep(std::slice::from_ref(&team.node)).await.unwrap();
    assert_eq!(
        strays.iter().map(|stray| &stray.agent).collect::<Vec<_>>(),
        [&team.agents[1]]
    );
    assert_eq!(store.held_by(&team.node).await.unwrap().len(), 1);
    assert_eq!(
        store
            .sessions(ListSessions {
                state: None,
                limit: None,
                after: None
            })
            .await
            .unwrap()
            .sessions
            .len(),
        1
    );
}

#[tokio::test]
async fn the_index_is_rebuilt() {
    let folder = Folder::new();
    let team = Team::start(&folder, 2).await;
    team.store
        .release(&team.session, &team.agents[1], 1, false)
        .await
        .unwrap();
    team.put(&team.said_by(0, 1, InputKind::Task)).await;
    let id = team.store.id().await.unwrap();

    for damage in [
        None,
        Some(&b"no database at all, but long enough to be one"[..]),
        Some(&[0xff; 8192][..]),
    ] {
        for rest in ["index.db", "index.db-wal", "index.db-shm"] {
            let _ = fs::remove_file(folder.path().join(rest));
        }
        if let Some(damage) = damage {
            fs::write(folder.path().join("index.db"), damage).unwrap();
        }
        let other = folder.store(&NodeId::mint()).await;
        assert_found(&other, &team, &id).await;
    }
    let (first, second) = (
        folder.store(&NodeId::mint()).await,
        Team::start(&folder, 1).await,
    );
    assert!(first.session(&second.session).await.unwrap().is_some());
    assert!(
        team.store.session(&second.session).await.unwrap().is_some(),
        "a store that was open sees the new index"
    );
}

#[tokio::test]
async fn a_file_that_was_copied_here_is_found() {
    let (there, here) = (Folder::new(), Folder::new());
    let team = Team::start(&there, 1).await;
    let record = team.store.session(&team.session).await.unwrap().unwrap();
    let store = here.store(&NodeId::mint()).await;
    assert!(store.session(&record.name).await.unwrap().is_none());
    drop(team.store);
    let file = format!("{}_{}.db", record.id, record.name);
    Db::open(&there.path().join(&file), opening(), false, SQLITE_SESSION)
        .await
        .unwrap()
        .execute(
            sqlx::query("VACUUM INTO ?1")
                .bind(here.path().join(&file).to_str().unwrap().to_owned()),
        )
        .await
        .unwrap();
    assert_eq!(
        store.session(&record.name).await.unwrap().unwrap().id,
        record.id
    );
}

/// A write that changes nothing.
const NOTHING: &str = "UPDATE sessions SET id = id";

fn opening() -> DbOptions {
    DbOptions {
        busy: std::time::Duration::from_secs(3),
        full_sync: false,
        look: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sessions_share_few_open_files() {
    let folder = Folder::new();
    let node = NodeId::mint();
    let options = SqliteOptions {
        open_files: 256,
        ..folder.options()
    };
    let store = Arc::new(SqliteStore::open(options, &node).await.unwrap());
    let mut ids: Vec<SessionId> = vec![];
    for _ in 0..300 {
        let Created::New(record, _) = store.create(team::new_session(1), &node).await.unwrap()
        else {
            panic!("known")
        };
        ids.push(record.id);
    }
    assert!(store.files.open_count() <= 256);
    let mut puts = JoinSet::new();
    for id in ids.iter().chain(&ids) {
        let (store, id) = (store.clone(), id.clone());
        puts.spawn(async move {
            let agent = store.agents(&id).await.unwrap().remove(0);
            assert_eq!(store.head(&id).await.unwrap(), agent.last_seq);
        });
    }
    puts.join_all().await;
    assert!(
        store.files.open_count() <= 256,
        "{}",
        store.files.open_count()
    );
    store
        .files
        .close_unused(std::time::Duration::from_secs(3_600));
    assert!(
        store.files.open_count() > 0,
        "what was used lately stays open"
    );
    store.files.close_unused(std::time::Duration::ZERO);
    assert_eq!(store.files.open_count(), 0);
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let folder = Folder::new();
    let team = Team::start(&folder, 1).await;
    let record = team.store.session(&team.session).await.unwrap().unwrap();
    let session_file = format!("{}_{}.db", record.id, record.name);
    for (file, schema) in [
        (session_file, SQLITE_SESSION),
        ("index.db".into(), SQLITE_INDEX),
    ] {
        let path = folder.path().join(&file);
        let db = Db::open(&path, opening(), false, &[]).await;
        assert!(
            matches!(db, Err(SqliteFault::Store(StoreError::Broken(_)))),
            "1 is newer than nothing"
        );
        let newer = [
            schema,
            &[Migration {
                version: 99,
                sql: "",
            }],
        ]
        .concat();
        Db::open(&path, opening(), false, &newer).await.unwrap();
        let opened = SqliteStore::open(folder.options(), &NodeId::mint()).await;
        let refused = if schema.as_ptr() == SQLITE_SESSION.as_ptr() {
            opened.unwrap().session(&team.session).await.map(drop)
        } else {
            opened.map(drop)
        };
        let Err(StoreError::Broken(why)) = refused else {
            panic!("{refused:?}")
        };
        assert!(
            why.contains(&file) && why.contains("newer") && why.contains("run a newer planck"),
            "{why}"
        );
    }
}

/// SQLite does not wait when several connections switch a new file to WAL at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn file_that_many_create_at_once_opens_for_all() {
    let folder = Folder::new();
    for round in 0..50 {
        let path = folder.path().join(format!("{round}.db"));
        let opened = (0..8).map(|_| {
            let path = path.clone();
            tokio::spawn(async move { Db::open(&path, opening(), true, SQLITE_SESSION).await })
        });
        for opened in futures_util::future::join_all(opened).await {
            opened.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn a_new_file_is_complete_and_private() {
    let folder = Folder::new();
    let path = folder.path().join("new.db");
    let db = Db::create(&path, opening(), SQLITE_SESSION).await.unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let journal = db.row(sqlx::query("PRAGMA journal_mode")).await.unwrap();
    assert_eq!(journal.unwrap().get::<String, _>(0), "wal");
    let sessions = db.rows(sqlx::query("SELECT * FROM sessions")).await;
    assert!(sessions.unwrap().is_empty());
    // The second one opens the file of the first, and checks its schema.
    Db::create(&path, opening(), SQLITE_SESSION).await.unwrap();
}

/// If SQLite cannot open a file for writing, it opens the file read-only. The file can appear
/// between these two attempts, and its connection would then refuse every write.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_that_appears_while_it_is_opened_can_be_written() {
    let folder = Folder::new();
    for round in 0..200 {
        let path = folder.path().join(format!("{round}.db"));
        let mut others = JoinSet::new();
        for _ in 0..3 {
            let path = path.clone();
            others.spawn(async move {
                loop {
                    match Db::open(&path, opening(), false, SQLITE_SESSION).await {
                        Err(SqliteFault::Missing(_)) => tokio::task::yield_now().await,
                        opened => return opened.unwrap().execute(sqlx::query(NOTHING)).await,
                    }
                }
            });
        }
        let _new = Db::create(&path, opening(), SQLITE_SESSION).await.unwrap();
        for written in others.join_all().await {
            written.unwrap();
        }
    }
}

#[tokio::test]
async fn a_connection_that_cannot_write_is_opened_again() {
    let folder = Folder::new();
    let path = folder.path().join("new.db");
    Db::create(&path, opening(), SQLITE_SESSION).await.unwrap();
    let read_only = DbOptions {
        look: true,
        ..opening()
    };
    let db = Db::open(&path, read_only, false, SQLITE_SESSION)
        .await
        .unwrap();
    assert!(db.is_current());
    db.execute(sqlx::query(NOTHING)).await.unwrap_err();
    assert!(!db.is_current());
}

/// SQLite would apply a journal that a removed file left behind to a new file with content.
#[tokio::test]
async fn a_journal_that_was_left_behind_is_not_applied_to_a_new_file() {
    let folder = Folder::new();
    let team = Team::start(&folder, 1).await;
    let record = team.store.session(&team.session).await.unwrap().unwrap();
    let path = folder
        .path()
        .join(format!("{}_{}.db", record.id, record.name));
    let beside = |path: &std::path::Path| format!("{}-wal", path.display());
    let new = folder.path().join("new.db");
    fs::copy(beside(&path), beside(&new)).unwrap();
    let db = Db::create(&new, opening(), SQLITE_SESSION).await.unwrap();
    let sessions = db.rows(sqlx::query("SELECT * FROM sessions")).await;
    assert!(sessions.unwrap().is_empty());
}

#[tokio::test]
async fn a_folder_of_another_user_is_refused() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can give a folder to another user");
        return;
    }
    let folder = Folder::new();
    nix::unistd::chown(folder.path(), Some(65_534.into()), None).unwrap();
    let refused = [
        SqliteStore::open(folder.options(), &NodeId::mint())
            .await
            .map(drop),
        SqliteStore::look(folder.options()).await.map(drop),
        SqliteStore::try_out(folder.options()).await.map(drop),
    ];
    for refused in refused {
        let told = refused.unwrap_err().to_string();
        let (what, way_out) = ("belongs to another user", "--store sqlite:DIR");
        assert!(told.contains(what) && told.contains(way_out), "{told}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
