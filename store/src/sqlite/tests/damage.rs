//! Tests of damaged session files. Each file causes an error that names the file and a remedy, and
//! no thread panics.

use std::{fs, path::PathBuf};

use planck_common::{
    AgentId, NodeId,
    command::{ListSessions, ListWaits},
    wait::{WaitAnswer, WaitDecision, WaitScope, WaitState},
};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, sqlite::SqliteConnectOptions};

use super::{Folder, SqliteStore};
use crate::{
    Inbox as _, Leases as _, Log as _, SessionRecords as _, StoreError, Waits as _,
    conformance::{Team, team::warnings, waits},
};

/// A session with rows in its log, and the path of its file.
struct Written {
    folder: Folder,
    team: Team,
    file: PathBuf,
}

impl Written {
    async fn new() -> Self {
        let folder = Folder::new();
        let team = Team::start(&folder, 2).await;
        team.log(0, warnings(3)).await;
        let record = team.store.session(&team.session).await.unwrap().unwrap();
        let file = folder
            .path()
            .join(format!("{}_{}.db", record.id, record.name));
        Self { folder, team, file }
    }

    /// Changes the file as another program would.
    async fn change(&self, sql: &str) {
        let options = SqliteConnectOptions::new()
            .filename(&self.file)
            .pragma("writable_schema", "ON");
        let mut connection = options.connect().await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();
    }

    /// Returns the errors of all reads of the session, both by a node and by a command that opens
    /// the file read-only.
    async fn refusals(&self) -> Vec<String> {
        let (session, agent) = (&self.team.session, self.team.lead());
        let node = self.folder.store(&NodeId::mint()).await;
        let looking = SqliteStore::look(self.folder.options()).await.unwrap();
        let mut refusals = vec![];
        for store in [node, looking] {
            let refused = [
                store.session(session.as_str()).await.err(),
                store.agents(session).await.err(),
                store.events(session, 1, 100, None).await.err(),
                store.messages(session, Some(agent), None, None).await.err(),
                store.load(session, agent).await.err(),
                store.open_inputs(session, agent).await.err(),
                store.head(session).await.err(),
            ];
            for error in refused.into_iter().flatten() {
                let StoreError::Broken(why) = error else {
                    panic!("{error:?}")
                };
                assert!(
                    why.contains(self.file.to_str().unwrap()) && why.contains("damaged"),
                    "{why}"
                );
                assert!(why.contains("put it aside, or recover it"), "{why}");
                refusals.push(why);
            }
        }
        refusals
    }
}

#[tokio::test]
async fn changed_schema_is_refused_before_its_tables_are_read() {
    for change in [
        // The thread of sqlx would panic when it prepares a statement with this column.
        "UPDATE sqlite_schema SET sql = CAST(replace(CAST(sql AS BLOB), 'spec TEXT', X'7370656320FFFEFF54') AS TEXT)
           WHERE name = 'agents'",
        "UPDATE sqlite_schema SET sql = CAST(X'FF' AS TEXT) WHERE name = 'append'",
        "CREATE TRIGGER theirs AFTER UPDATE ON agents BEGIN DELETE FROM log; END",
        "CREATE VIEW theirs AS SELECT 1",
        "DROP TRIGGER agent_stopped",
        "CREATE INDEX theirs ON log (body)",
        "ALTER TABLE agents ADD COLUMN theirs TEXT",
        "PRAGMA user_version = 0",
    ] {
        let written = Written::new().await;
        written.change(change).await;
        let refusals = written.refusals().await;
        let named =
            |why: &String| why.contains("its tables are not those of schema") || why.contains("malformed database schema");
        assert!(refusals.len() >= 12 && refusals.iter().all(named), "{change}: {refusals:?}");
    }
}

#[tokio::test]
async fn tables_of_sqlites_own_tools_are_ignored() {
    let written = Written::new().await;
    written
        .change("CREATE TABLE lost_and_found (rootpgno INTEGER, c0); ANALYZE")
        .await;
    assert_eq!(written.refusals().await, Vec::<String>::new());
}

#[tokio::test]
async fn values_that_make_no_sense_are_refused() {
    for change in [
        "UPDATE sessions SET next_seq = -9223372036854775808",
        "UPDATE sessions SET next_seq = 9223372036854775807",
        "UPDATE sessions SET created_at = 9223372036854775807",
        "UPDATE sessions SET cost_usd = 9e999",
        "UPDATE sessions SET spec = '{'",
        "UPDATE sessions SET spec = CAST(X'FFFE' AS TEXT)",
        "UPDATE sessions SET name = X'00'",
        "UPDATE sessions SET id = 'ses_01890a5d-ac96-774b-bcce-b302099a8057'",
        "UPDATE agents SET epoch = -1",
        "UPDATE agents SET spec = zeroblob(10)",
        "UPDATE agents SET state = 'asleep'",
        "UPDATE log SET body = '{'",
        "UPDATE log SET body = CAST(X'22FF22' AS TEXT)",
        "UPDATE log SET at = -1",
        "UPDATE log SET turn = 1e300",
        "UPDATE log SET node_id = 'a b'",
        "UPDATE log SET prev = -2",
    ] {
        let written = Written::new().await;
        written.change(change).await;
        assert!(
            !written.refusals().await.is_empty(),
            "{change} was read as if nothing were wrong"
        );
    }
}

#[tokio::test]
async fn one_damaged_file_hides_no_other_session() {
    let written = Written::new().await;
    let team = Team::start(&written.folder, 1).await;
    written.change("DROP VIEW append").await;
    let store = written.folder.store(&NodeId::mint()).await;
    let every = ListSessions {
        state: None,
        limit: None,
        after: None,
    };
    let listed = store.sessions(every).await.unwrap().sessions;
    assert_eq!(
        listed.iter().map(|session| &session.id).collect::<Vec<_>>(),
        [&team.session]
    );
    let held = |team: &Team| (team.node.clone(), team.agents.clone());
    let (node, agents) = held(&team);
    let ids = |strays: Vec<crate::Stray>| {
        strays
            .into_iter()
            .map(|stray| stray.agent)
            .collect::<Vec<AgentId>>()
    };
    assert_eq!(ids(store.held_by(&node).await.unwrap()), agents);
    assert_eq!(ids(store.held_by(&written.team.node).await.unwrap()), []);
    assert_eq!(ids(store.sweep(&[]).await.unwrap()), agents);
}

#[tokio::test]
async fn cut_files_are_refused() {
    let written = Written::new().await;
    written.change("PRAGMA wal_checkpoint(TRUNCATE)").await;
    let whole = fs::read(&written.file).unwrap();
    for length in [1, 100, 5_000, whole.len() / 2] {
        let copy = Folder::new();
        let name = written.file.file_name().unwrap();
        fs::write(copy.path().join(name), &whole[..length]).unwrap();
        let store = copy.store(&NodeId::mint()).await;
        let read = store.session(written.team.session.as_str()).await;
        assert!(
            !matches!(read, Ok(Some(_))),
            "{length} bytes were read as a session"
        );
    }
}

#[tokio::test]
async fn damaged_waits_are_refused() {
    for change in [
        "UPDATE waits SET answer = '{'",
        "UPDATE waits SET state = 'asleep'",
        "UPDATE log SET body = '{}' WHERE kind = 'wait_opened'",
    ] {
        let written = Written::new().await;
        let (team, wait) = (&written.team, waits::session_wide());
        let other = Team::start(&written.folder, 1).await;
        team.open_wait(0, &wait).await;
        other.open_wait(0, &wait).await;
        let answer = WaitAnswer {
            scope: Some(WaitScope::Session),
            ..waits::says(WaitDecision::Allow, "ann")
        };
        team.answer(&wait, &answer).await;
        written.change(change).await;
        let store = written.folder.store(&NodeId::mint()).await;
        let answered = waits::of_state(WaitState::Answered);
        let refused = [
            store.wait(&team.session, &wait.id).await.err(),
            store.answers(&team.session, team.lead()).await.err(),
            store.session_rules(&team.session).await.err(),
            store.waits(Some(&team.session), &answered).await.err(),
        ];
        let refused: Vec<_> = refused.into_iter().flatten().collect();
        assert!(
            !refused.is_empty(),
            "{change} was read as if nothing were wrong"
        );
        for error in refused {
            let StoreError::Broken(why) = error else {
                panic!("{error:?}")
            };
            assert!(why.contains(team.session.as_str()), "{why}");
        }
        assert_eq!(other.list(ListWaits::default()).await, [wait.id]);
    }
}
