//! The store the configuration names.

use std::sync::Arc;

use planck_common::{NodeId, command::ListSessions};

use super::AssemblyError;
use crate::{
    config::{Config, StoreKind, Synchronous},
    store::{
        SessionStore, StoreError,
        postgres::{PostgresOptions, PostgresStore},
        sqlite::{SqliteOptions, SqliteStore},
    },
};

pub(super) async fn open(config: &Config, node: &NodeId) -> Result<Arc<dyn SessionStore>, AssemblyError> {
    match config.store.kind() {
        Some(StoreKind::Postgres) => Ok(Arc::new(PostgresStore::connect(postgres(config)).await?)),
        Some(StoreKind::Sqlite) => Ok(Arc::new(SqliteStore::open(sqlite(config), node).await?)),
        None => Err(AssemblyError::Config(
            "store.url is neither `sqlite:DIR` nor `postgres://…`; `planck config show --origin` tells where it is set".into(),
        )),
    }
}

fn postgres(config: &Config) -> PostgresOptions {
    let mut options = PostgresOptions::new(config.store.url.reveal());
    options.statement_timeout = config.store.statement_timeout.0;
    if let Some(pool) = config.store.pool {
        options.connections = pool;
    }
    options
}

fn sqlite(config: &Config) -> SqliteOptions {
    let mut options = SqliteOptions::new(config.store.folder().unwrap_or_default());
    options.full_sync = config.store.synchronous == Synchronous::Full;
    if let Some(pool) = config.store.pool {
        options.open_files = pool as usize;
    }
    options
}

/// What the store says of itself when it is reached, without changing it; `None` where there is nothing yet.
pub(crate) async fn inspect(config: &Config) -> Result<Option<String>, StoreError> {
    match config.store.kind() {
        Some(StoreKind::Postgres) => match PostgresStore::schema(&postgres(config)).await? {
            (0, _) => Ok(Some("reached, without tables yet; the first node makes them".into())),
            (found, known) if found > known => Err(StoreError::Broken(format!(
                "the database has schema version {found}, this planck knows versions up to {known}: run a newer planck"
            ))),
            (found, known) if found < known => Ok(Some(format!("reached, schema {found}; the next node raises it to {known}"))),
            (found, _) => Ok(Some(format!("reached, schema {found}"))),
        },
        Some(StoreKind::Sqlite) if sqlite(config).folder.is_dir() => {
            let store = SqliteStore::open(sqlite(config), &NodeId::mint()).await?;
            let every = ListSessions { state: None, limit: Some(1_000), after: None };
            let page = store.sessions(every).await?;
            let more = if page.next.is_some() { "more than " } else { "" };
            Ok(Some(format!("{more}{} sessions", page.sessions.len())))
        }
        Some(StoreKind::Sqlite) | None => Ok(None),
    }
}
