//! Opens the configured store, checks whether a node could use it, and answers commands from it
//! without a node.

use std::sync::Arc;

use planck_common::{NodeId, command::ListSessions};
use planck_providers::Llm;
use planck_store::{
    InboxBounds, SessionRecords as _, SessionStore, StoreError,
    postgres::{PostgresOptions, PostgresStore, PostgresTrial},
    sqlite::{OwnPlace, SqliteOptions, SqliteStore, SqliteTrial, TrialWrite},
};

use super::{AssemblyError, models};
use crate::{
    bus::{Bus, ServiceGuard},
    config::{Config, InboxLimits, Size, StoreKind, Synchronous},
    gateway,
    server_clock::ServerClock,
};

pub(super) async fn open(
    config: &Config,
    node: &NodeId,
) -> Result<Arc<dyn SessionStore>, AssemblyError> {
    match config.store.kind() {
        Some(StoreKind::Postgres) => {
            let connected = PostgresStore::connect(postgres(config)).await;
            Ok(Arc::new(
                connected.map_err(|error| unreached(config, error))?,
            ))
        }
        Some(StoreKind::Sqlite) => Ok(Arc::new(SqliteStore::open(sqlite(config)?, node).await?)),
        None => Err(neither()),
    }
}

/// Opens the store read-only. A store that does not exist yet counts as empty.
async fn open_read_only(config: &Config) -> Result<Arc<dyn SessionStore>, AssemblyError> {
    match config.store.kind() {
        Some(StoreKind::Postgres) => {
            match PostgresStore::look(postgres(config))
                .await
                .map_err(|error| unreached(config, error))?
            {
                Some(store) => Ok(Arc::new(store)),
                None => Ok(Arc::new(SqliteStore::nothing().await?)),
            }
        }
        Some(StoreKind::Sqlite) => Ok(Arc::new(SqliteStore::look(sqlite(config)?).await?)),
        None => Err(neither()),
    }
}

/// Adds the address of the database, without its password, to an error of the connection. Adds a
/// remedy if the database is unreachable.
fn unreached(config: &Config, error: StoreError) -> StoreError {
    let url = &config.store.url;
    match error {
        StoreError::Away(why) => {
            StoreError::Away(format!("{url}: {why}; {}", StoreError::UNREACHED))
        }
        StoreError::Broken(why) => StoreError::Broken(format!("{url}: {why}")),
        other @ (StoreError::NotFound(_)
        | StoreError::Exists(_)
        | StoreError::StaleEpoch(_)
        | StoreError::BadRequest(_)
        | StoreError::Limit(_)
        | StoreError::Busy(_)
        | StoreError::Full(_)) => other,
    }
}

const NEITHER: &str = "store.url is neither `sqlite:DIR` nor `postgres://…`; `planck config show --origin` tells where it is set";

fn neither() -> AssemblyError {
    AssemblyError::Config(NEITHER.into())
}

fn postgres(config: &Config) -> PostgresOptions {
    let mut options = PostgresOptions::new(config.store.url.reveal());
    options.statement_timeout = config.store.statement_timeout.0;
    options.inbox = inbox(&config.limits.inbox);
    if let Some(pool) = config.store.pool {
        options.connections = pool;
    }
    options
}

fn inbox(limits: &InboxLimits) -> InboxBounds {
    let bytes = |size: Size| i64::try_from(size.0).unwrap_or(i64::MAX);
    InboxBounds {
        agent_bytes: bytes(limits.max_bytes),
        agent_inputs: limits.max_inputs.into(),
        session_bytes: bytes(limits.max_session_bytes),
    }
}

pub fn sqlite(config: &Config) -> Result<SqliteOptions, StoreError> {
    let homeless = || {
        StoreError::Broken(
            "sessions have no place, because HOME is not set; set it, or name a store with `--store sqlite:DIR`".into(),
        )
    };
    let mut options = SqliteOptions::new(config.store.folder().ok_or_else(homeless)?);
    options.own_place = config.store.project().map(|place| OwnPlace {
        data: place.data.clone(),
        project: place.project.clone(),
    });
    options.inbox = inbox(&config.limits.inbox);
    options.full_sync = config.store.synchronous == Synchronous::Full;
    if let Some(pool) = config.store.pool {
        options.open_files = pool as usize;
    }
    Ok(options)
}

/// The result of checking the store.
pub struct StoreTrial {
    /// What the store contains, or `None` if it does not exist yet.
    pub finding: Option<String>,
    /// A text about the data that the check could write, or the error that prevented it. The check
    /// leaves the store unchanged.
    pub write: Result<String, StoreError>,
    /// The clock of the database server, or `None` if the store has no server.
    pub clock: Option<ServerClock>,
}

/// Checks whether a node could use the store, without changing or creating anything.
pub async fn try_out(config: &Config) -> Result<StoreTrial, StoreError> {
    match config.store.kind() {
        Some(StoreKind::Postgres) => try_postgres(config).await,
        Some(StoreKind::Sqlite) => try_sqlite(config).await,
        None => Err(StoreError::Broken(NEITHER.into())),
    }
}

async fn try_postgres(config: &Config) -> Result<StoreTrial, StoreError> {
    let PostgresTrial {
        found,
        known,
        clock,
        write,
    } = PostgresStore::try_out(&postgres(config)).await?;
    if found > known {
        return Err(StoreError::Broken(format!(
            "the database has schema version {found}, this planck knows versions up to {known}: run a newer planck"
        )));
    }
    let (finding, written) = match found {
        0 => (
            "reached, without tables yet; the first node makes them".into(),
            "made a table and a row, and rolled back",
        ),
        _ if found < known => (
            format!("reached, schema {found}; the next node raises it to {known}"),
            WRITTEN,
        ),
        _ => (format!("reached, schema {found}"), WRITTEN),
    };
    Ok(StoreTrial {
        finding: Some(finding),
        write: write.map(|()| written.into()),
        clock: Some(clock),
    })
}

const WRITTEN: &str = "wrote to every table, and rolled back";

async fn try_sqlite(config: &Config) -> Result<StoreTrial, StoreError> {
    let options = sqlite(config)?;
    let (finding, write) = match SqliteStore::try_out(options.clone()).await? {
        SqliteTrial::Missing { above } => (None, Ok(format!("{} can be written", above.display()))),
        SqliteTrial::There(write) => (Some(sessions(options).await?), write.map(told_of)),
    };
    Ok(StoreTrial {
        finding,
        write,
        clock: None,
    })
}

fn told_of(written: TrialWrite) -> String {
    let finding = match written {
        TrialWrite::Folder => "wrote a page to its folder, and kept no file",
        TrialWrite::Index => "wrote to its index beside the node that uses it, and rolled back",
    };
    finding.into()
}

async fn sessions(options: SqliteOptions) -> Result<String, StoreError> {
    let store = SqliteStore::look(options).await?;
    let every = ListSessions {
        state: None,
        limit: Some(1_000),
        after: None,
    };
    let page = store.sessions(every).await?;
    Ok(match (page.sessions.len(), page.next) {
        (1, None) => "1 session".into(),
        (count, None) => format!("{count} sessions"),
        (count, Some(_)) => format!("more than {count} sessions"),
    })
}

/// Starts to answer the commands that only read the sessions of the configured store, on the given
/// bus. None of these commands changes a session.
pub async fn look(
    config: &Config,
    bus: &Arc<dyn Bus>,
) -> Result<Box<dyn ServiceGuard>, AssemblyError> {
    serve_store(config, bus, open_read_only(config).await?, None).await
}

/// Does the same as [`look`], and also stores answers to waits. No agent runs in this process, so no
/// call that an answer allows begins here, where it would end with the command.
pub async fn take_answers(
    config: &Config,
    bus: &Arc<dyn Bus>,
) -> Result<Box<dyn ServiceGuard>, AssemblyError> {
    let store = open(config, &NodeId::mint()).await?;
    serve_store(config, bus, store, Some(config.limits.max_prompt.0)).await
}

async fn serve_store(
    config: &Config,
    bus: &Arc<dyn Bus>,
    store: Arc<dyn SessionStore>,
    answers: Option<u64>,
) -> Result<Box<dyn ServiceGuard>, AssemblyError> {
    let models = Arc::new(Llm::new(models::options(config)));
    let read_only = gateway::ReadOnly {
        store,
        context_window: {
            let models = Arc::clone(&models);
            Arc::new(move |model| models.card(model).context_window)
        },
        models: Arc::new(move || models.list()),
        answers,
    };
    Ok(bus
        .serve(&NodeId::mint(), gateway::read_only_handler(read_only))
        .await?)
}
