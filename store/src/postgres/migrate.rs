//! Migrates the schema. Migrations only go forward, one node at a time, and a node refuses a schema
//! that is newer than its own.

use std::time::Duration;

use planck_migrations::Migration;
use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _};

use super::{
    StoreError,
    database::{Database, classify},
};

/// The key of the advisory lock that a migration holds: `planck` in ASCII.
const LOCK: i64 = 0x706c_616e_636b;
/// How long a node may take to wait for another node's migration and to run its own, or only to
/// read the version.
const TIMEOUT: Duration = Duration::from_secs(120);

pub async fn run(database: &Database, migrations: &[Migration]) -> Result<(), StoreError> {
    let mut connection = database.dedicated().await?;
    let done = tokio::time::timeout(TIMEOUT, migrate(&mut connection, migrations)).await;
    done.map_err(|_| StoreError::Away("the migration of the database did not end".into()))?
}

/// Returns the version of the database's schema and the newest version that this node knows.
/// Changes nothing.
pub async fn versions(
    database: &Database,
    migrations: &[Migration],
) -> Result<(u32, u32), StoreError> {
    let mut connection = database.dedicated().await?;
    let found = tokio::time::timeout(TIMEOUT, version(&mut connection)).await;
    let found = found.map_err(|_| {
        StoreError::Away("the database does not tell its schema's version".into())
    })??;
    Ok((found, newest(migrations)))
}

pub(super) fn newest(migrations: &[Migration]) -> u32 {
    migrations
        .iter()
        .map(|migration| migration.version)
        .max()
        .unwrap_or(0)
}

async fn migrate(
    connection: &mut PgConnection,
    migrations: &[Migration],
) -> Result<(), StoreError> {
    let known = newest(migrations);
    if version(connection).await? == known {
        return Ok(());
    }
    connection
        .execute(AssertSqlSafe(format!(
            "SET statement_timeout = '{}s'",
            TIMEOUT.as_secs()
        )))
        .await
        .map_err(|error| classify(&error))?;
    connection
        .execute(AssertSqlSafe(format!("SELECT pg_advisory_lock({LOCK})")))
        .await
        .map_err(|error| classify(&error))?;
    let found = version(connection).await?;
    if found > known {
        return Err(StoreError::Broken(format!(
            "the database has schema version {found}, this node knows versions up to {known}: run a newer planck"
        )));
    }
    for migration in migrations
        .iter()
        .filter(|migration| migration.version > found)
    {
        match apply(connection, migration).await {
            // A node without the right to change the schema can still use the version just before
            // its own.
            Err(error) if is_denied(&error) && found > 0 && found + 1 == known => {
                tracing::warn!(
                    version = found,
                    "this node may not change the schema; it uses the version before its own"
                );
            }
            result => result.map_err(|error| classify(&error))?,
        }
    }
    Ok(())
}

pub(super) async fn version(connection: &mut PgConnection) -> Result<u32, StoreError> {
    let table = "SELECT to_regclass('planck_schema') IS NOT NULL";
    let exists: bool = connection
        .fetch_one(table)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(|error| classify(&error))?;
    if !exists {
        return Ok(0);
    }
    let newest = "SELECT coalesce(max(version), 0) FROM planck_schema";
    let found: i32 = connection
        .fetch_one(newest)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(|error| classify(&error))?;
    Ok(u32::try_from(found).unwrap_or(0))
}

/// Applies a migration. Postgres runs all statements of one message in one transaction.
async fn apply(connection: &mut PgConnection, migration: &Migration) -> Result<(), sqlx::Error> {
    let Migration { version, sql } = migration;
    let create = "CREATE TABLE IF NOT EXISTS planck_schema (version int PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());";
    let script =
        format!("{create}\n{sql}\n;INSERT INTO planck_schema (version) VALUES ({version});");
    connection
        .execute(sqlx::raw_sql(AssertSqlSafe(script)))
        .await?;
    Ok(())
}

fn is_denied(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(|refusal| refusal.code())
        .is_some_and(|code| code == "42501")
}
