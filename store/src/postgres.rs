//! The store in Postgres, for any number of hosts. All sessions share the tables. The methods run
//! statements and functions of `migrations/postgres`, and each statement has a deadline.

mod baselines;
mod database;
mod migrate;

mod inbox;
mod leases;
mod log;
mod records;
mod waits;

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _};

use planck_common::{SessionId, Timestamp, server_clock::ServerClock};
use planck_migrations::Migration;

use self::{
    database::{Database, classify, reader},
    migrate::{newest, version},
};
use crate::{InboxBounds, SessionStore, StoreError};

/// The settings with which a node connects to its database.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    pub url: String,
    /// The maximum number of connections of this node.
    pub connections: u32,
    /// How long a statement waits for a free connection.
    pub acquire_timeout: Duration,
    pub statement_timeout: Duration,
    /// The name that the server shows for this node's connections.
    pub application_name: String,
    /// Whether the server refuses every change.
    pub read_only: bool,
    pub inbox: InboxBounds,
}

impl PostgresOptions {
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            connections: 10,
            acquire_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(5),
            application_name: "planck".into(),
            read_only: false,
            inbox: InboxBounds::default(),
        }
    }
}

/// The store in Postgres. Clones share the connections.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    database: Database,
    inbox: InboxBounds,
}

impl PostgresStore {
    /// Connects to the database and migrates its schema to this version. A node that may not change
    /// the schema uses the version before its own if the database has that version.
    pub async fn connect(options: PostgresOptions) -> Result<Self, StoreError> {
        let database = Database::connect(&options)?;
        migrate::run(&database, planck_migrations::POSTGRES).await?;
        Ok(Self {
            database,
            inbox: options.inbox,
        })
    }

    /// Connects read-only: the schema is not migrated, and the server refuses every change. Returns
    /// `None` if the database has no tables yet. Fails if its schema has another version than this
    /// node's.
    pub async fn look(options: PostgresOptions) -> Result<Option<Self>, StoreError> {
        let options = PostgresOptions {
            read_only: true,
            ..options
        };
        let (found, known) = Self::schema(&options).await?;
        if found == 0 {
            return Ok(None);
        }
        if found != known {
            let way_out = if found > known {
                "run a newer planck"
            } else {
                "the next node on it brings it up to date"
            };
            return Err(StoreError::Broken(format!(
                "the database has schema version {found}, this planck needs version {known} to look at it: {way_out}"
            )));
        }
        Ok(Some(Self {
            database: Database::connect(&options)?,
            inbox: options.inbox,
        }))
    }

    /// Checks whether a node could use the database, without changing it.
    pub async fn try_out(options: &PostgresOptions) -> Result<PostgresTrial, StoreError> {
        try_database(&Database::connect(options)?, planck_migrations::POSTGRES).await
    }

    /// Returns the version of the database's schema (0 if there is none) and the newest version
    /// that this node knows. Changes nothing.
    pub async fn schema(options: &PostgresOptions) -> Result<(u32, u32), StoreError> {
        migrate::versions(&Database::connect(options)?, planck_migrations::POSTGRES).await
    }
}

#[async_trait]
impl SessionStore for PostgresStore {
    async fn id(&self) -> Result<String, StoreError> {
        let found = sqlx::query("SELECT id FROM store");
        reader(&self.database.one(found).await?).text("id")
    }

    async fn close(&self) {
        self.database.close().await;
    }
}

// Checks whether a node could use a database: the schema, the clock, and writes that are rolled
// back.

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

async fn try_database(
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

#[cfg(test)]
mod tests;
