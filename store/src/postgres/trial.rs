//! Checks whether a node could use a database: the schema, the clock, and writes that are rolled
//! back.

use std::time::Duration;

use planck_common::{SessionId, Timestamp};
use planck_migrations::Migration;
use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _};

use super::{
    StoreError,
    database::{Database, classify},
    migrate::{newest, version},
};
use planck_common::server_clock::ServerClock;

/// The time-out of the check once the connection is open. In addition, the server limits each
/// statement.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The result of checking a database.
#[derive(Debug)]
pub struct PostgresTrial {
    /// The version of the schema, or 0 if there is none. `known` is the newest version that this
    /// node knows.
    pub found: u32,
    pub known: u32,
    pub clock: ServerClock,
    /// Whether the server accepts the writes of a node. Without a schema, these are only the
    /// creation of a table and an insert into it. On a newer schema the check is skipped, and the
    /// value is `Ok`.
    pub write: Result<(), StoreError>,
}

pub async fn run(
    database: &Database,
    migrations: &[Migration],
) -> Result<PostgresTrial, StoreError> {
    let mut connection = database.dedicated().await?;
    let late = |_| StoreError::Away(format!("Postgres did not answer within {TIMEOUT:?}"));
    tokio::time::timeout(TIMEOUT, try_out(&mut connection, newest(migrations)))
        .await
        .map_err(late)?
}

async fn try_out(connection: &mut PgConnection, known: u32) -> Result<PostgresTrial, StoreError> {
    let found = version(connection).await?;
    let clock = clock(connection).await?;
    let write = match found {
        0 => roll_back(connection, FIRST).await,
        _ if found > known => Ok(()),
        _ => roll_back(connection, &writes(&SessionId::mint())).await,
    };
    Ok(PostgresTrial {
        found,
        known,
        clock,
        write,
    })
}

async fn clock(connection: &mut PgConnection) -> Result<ServerClock, StoreError> {
    let asked = Timestamp::now();
    let server: i64 = connection
        .fetch_one("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
        .await
        .and_then(|row| row.try_get(0))
        .map_err(|error| classify(&error))?;
    let answered = Timestamp::now();
    Ok(ServerClock::read(
        asked,
        Timestamp::from_millis(server),
        answered,
    ))
}

/// Statements that check the right to create tables, which the first node of a cluster needs.
const FIRST: &str = "CREATE TABLE planck_trial (id text PRIMARY KEY); INSERT INTO planck_trial (id) VALUES ('trial')";

/// Returns statements that write to each table as a node does. Those for `agents` and `inputs`
/// insert no rows, because a rollback does not return the sequence numbers that an insert uses up.
/// Postgres checks the right to insert nevertheless.
fn writes(session: &SessionId) -> String {
    format!(
        "INSERT INTO sessions (id, name, team_id, lead, spec, created_at, updated_at)
           VALUES ('{session}', '{session}', '', '', '', 0, 0);
         INSERT INTO log (session_id, seq, agent_id, node_id, epoch, prev, kind, turn, request, at, body)
           VALUES ('{session}', 1, '', '', 0, 0, '', 0, 0, 0, '');
         INSERT INTO agents (session_id, id, name, type, role, spec) SELECT '', '', '', '', '', '' WHERE false;
         INSERT INTO inputs (session_id, id, agent_id, kind, content, head, at) SELECT '', '', '', '', '', 0, 0 WHERE false;
         UPDATE sessions SET state = 'closed' WHERE id = '{session}';
         UPDATE log SET hidden_by = 1 WHERE session_id = '{session}';
         UPDATE agents SET epoch = epoch WHERE session_id = '{session}';
         UPDATE inputs SET turn = turn WHERE session_id = '{session}';
         DELETE FROM inputs WHERE session_id = '{session}';
         DELETE FROM agents WHERE session_id = '{session}';
         DELETE FROM log WHERE session_id = '{session}';
         DELETE FROM sessions WHERE id = '{session}'"
    )
}

/// Runs statements and rolls them back. Postgres also rolls back if a statement fails or the
/// connection breaks.
async fn roll_back(connection: &mut PgConnection, statements: &str) -> Result<(), StoreError> {
    let script = format!("BEGIN; {statements}; ROLLBACK");
    let done = connection
        .execute(sqlx::raw_sql(AssertSqlSafe(script)))
        .await;
    done.map(drop).map_err(|error| classify(&error))
}
