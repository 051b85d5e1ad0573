//! The store in Postgres, for any number of hosts. All sessions share the tables. The methods run
//! statements and functions of `migrations/postgres`, and each statement has a deadline.

mod baselines;
mod database;
mod migrate;

mod inbox;
mod leases;
mod log;
mod records;
mod trial;
mod turns;
mod waits;

#[cfg(test)]
mod tests;

use std::time::Duration;

use async_trait::async_trait;

use self::database::{Database, reader};
use super::{InboxBounds, SessionStore, StoreError};

pub use trial::PostgresTrial;

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
        trial::run(&Database::connect(options)?, planck_migrations::POSTGRES).await
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
