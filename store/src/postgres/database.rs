//! The connections to the database, their time-outs, and the classification of errors.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use sqlx::{
    Connection as _, PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgArguments, PgConnectOptions, PgConnection, PgPoolOptions, PgRow},
    query::Query,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use planck_common::SessionId;

use super::{PostgresOptions, StoreError};

/// The server settings of each connection. If a node vanishes, the server ends its open transaction
/// after a second of silence, and drops the connection after about ten seconds.
const SETTINGS: [(&str, &str); 6] = [
    ("idle_in_transaction_session_timeout", "1s"),
    ("tcp_keepalives_idle", "5"),
    ("tcp_keepalives_interval", "2"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "10s"),
    ("default_transaction_isolation", "read committed"),
];

/// How much longer the node waits for a statement than the server does, so that normally the server
/// cancels a slow statement.
const BEYOND: Duration = Duration::from_secs(2);
/// The idle time after which a connection is tested before it gets a statement.
const STALE: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(2);

pub type PgStatement<'q> = Query<'q, Postgres, PgArguments>;

#[derive(Debug, Clone)]
pub struct Database {
    pool: PgPool,
    options: Arc<PgConnectOptions>,
    deadline: Duration,
    trouble: Trouble,
    turns: Turns,
}

/// The time of the latest failure that may come from a broken connection. Connections that were
/// idle at that time may be broken too.
#[derive(Debug, Clone, Default)]
struct Trouble(Arc<Mutex<Option<Instant>>>);

impl Trouble {
    fn came(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Returns whether a connection that was idle for this long can be used without a test.
    fn trusts(&self, idle: Duration) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        idle < STALE && last.is_none_or(|last| idle < last.elapsed())
    }
}

impl Database {
    /// Creates the pool of connections. No connection is opened yet.
    pub fn connect(options: &PostgresOptions) -> Result<Self, StoreError> {
        let connect: PgConnectOptions =
            options.url.parse().map_err(|error| malformed_url(&error))?;
        let limit = [(
            "statement_timeout",
            options.statement_timeout.as_millis().to_string(),
        )];
        let connect = connect
            .application_name(&options.application_name)
            .options(SETTINGS)
            .options(limit);
        let connect = match options.read_only {
            true => connect.options([("default_transaction_read_only", "on")]),
            false => connect,
        };
        let trouble = Trouble::default();
        let of_pool = trouble.clone();
        let pool = PgPoolOptions::new()
            .max_connections(options.connections)
            .acquire_timeout(options.acquire_timeout)
            .test_before_acquire(false)
            .before_acquire(move |connection, meta| {
                is_usable(connection, of_pool.trusts(meta.idle_for))
            })
            .connect_lazy_with(connect.clone());
        Ok(Self {
            pool,
            options: Arc::new(connect),
            deadline: options.statement_timeout + BEYOND,
            trouble,
            turns: Turns::default(),
        })
    }

    /// Waits for the turn of a write that locks the row of its session, for as long as a statement
    /// waits for a connection. Drop the permit after the write.
    pub async fn turn(&self, session: &SessionId) -> Result<OwnedSemaphorePermit, StoreError> {
        let patience = self.pool.options().get_acquire_timeout();
        self.turns.take(session, patience).await
    }

    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// Opens a connection outside the pool, for statements that may take long.
    pub async fn dedicated(&self) -> Result<PgConnection, StoreError> {
        let opened =
            tokio::time::timeout(self.deadline, PgConnection::connect_with(&self.options)).await;
        opened
            .map_err(|_| too_slow(self.deadline))?
            .map_err(|error| classify(&error))
    }

    pub async fn all(&self, statement: PgStatement<'_>) -> Result<Vec<PgRow>, StoreError> {
        self.try_all(statement)
            .await
            .map_err(StatementError::into_error)
    }

    pub async fn optional(&self, statement: PgStatement<'_>) -> Result<Option<PgRow>, StoreError> {
        Ok(self.all(statement).await?.into_iter().next())
    }

    /// Runs a statement that always returns a row, and returns that row.
    pub async fn one(&self, statement: PgStatement<'_>) -> Result<PgRow, StoreError> {
        let row = self.optional(statement).await?;
        row.ok_or_else(|| {
            StoreError::Broken("the database gave no row where there is always one".into())
        })
    }

    /// Runs a statement and returns its rows, or the error before it is classified.
    pub async fn try_all(&self, statement: PgStatement<'_>) -> Result<Vec<PgRow>, StatementError> {
        let mut connection = self.pool.acquire().await.map_err(StatementError::Sql)?;
        match tokio::time::timeout(self.deadline, statement.fetch_all(&mut *connection)).await {
            Ok(result) => result.map_err(|error| self.failed(error)),
            Err(_) => {
                self.trouble.came();
                abandon(connection);
                Err(StatementError::TooSlow(self.deadline))
            }
        }
    }

    /// Runs a statement and returns its rows. The inner `Err` is the server's message if the server
    /// refused the values of the statement.
    pub async fn all_or_refused(
        &self,
        statement: PgStatement<'_>,
    ) -> Result<Result<Vec<PgRow>, String>, StoreError> {
        match self.try_all(statement).await {
            Ok(rows) => Ok(Ok(rows)),
            Err(failed) => match failed.refused_data() {
                Some(message) => Ok(Err(message)),
                None => Err(failed.into_error()),
            },
        }
    }

    fn failed(&self, error: sqlx::Error) -> StatementError {
        if matches!(classify(&error), StoreError::Away(_)) {
            self.trouble.came();
        }
        StatementError::Sql(error)
    }
}

/// Why a statement failed.
pub enum StatementError {
    Sql(sqlx::Error),
    TooSlow(Duration),
}

impl StatementError {
    pub fn into_error(self) -> StoreError {
        match self {
            Self::Sql(error) => classify(&error),
            Self::TooSlow(deadline) => too_slow(deadline),
        }
    }

    /// Returns the server's message if the server refused the values of the statement, otherwise
    /// `None`.
    fn refused_data(&self) -> Option<String> {
        let Self::Sql(sqlx::Error::Database(error)) = self else {
            return None;
        };
        let code = error.code()?;
        let of_data = ["22", "23", "54"]
            .iter()
            .any(|class| code.starts_with(class));
        of_data.then(|| error.message().to_owned())
    }
}

/// Closes the socket without cancelling the statement, which continues on the server. Its outcome
/// is unknown.
fn abandon(connection: PoolConnection<Postgres>) {
    drop(connection.detach());
}

fn is_usable(
    connection: &mut PgConnection,
    trusted: bool,
) -> BoxFuture<'_, Result<bool, sqlx::Error>> {
    Box::pin(async move {
        if trusted {
            return Ok(true);
        }
        Ok(matches!(
            tokio::time::timeout(PING_TIMEOUT, connection.ping()).await,
            Ok(Ok(()))
        ))
    })
}

/// A row whose columns are read by name.
pub type PgRowReader<'a> = crate::row::RowReader<'a, PgRow>;

pub fn reader(row: &PgRow) -> PgRowReader<'_> {
    PgRowReader { row, file: None }
}

/// Returns the error for a result of an SQL function that this version does not know.
pub fn unknown_verdict(verdict: &str) -> StoreError {
    StoreError::Broken(format!("unknown verdict `{verdict}` of the database"))
}

fn too_slow(deadline: Duration) -> StoreError {
    StoreError::Away(format!(
        "no answer from Postgres for {} s",
        deadline.as_secs_f64()
    ))
}

fn malformed_url(error: &sqlx::Error) -> StoreError {
    StoreError::Broken(format!("malformed Postgres URL: {error}"))
}

/// Classifies an error. An error that neither the server nor this crate caused comes from the
/// connection or the pool, and is [`StoreError::Away`].
pub fn classify(error: &sqlx::Error) -> StoreError {
    use sqlx::Error::{ColumnDecode, ColumnNotFound, Configuration, Database, Decode, Encode};
    if let Database(refusal) = error {
        let code = refusal.code().unwrap_or_default().into_owned();
        return of_code(&code, format!("{} ({code})", refusal.message()));
    }
    if matches!(
        error,
        ColumnDecode { .. } | ColumnNotFound(_) | Decode(_) | Encode(_) | Configuration(_)
    ) {
        return StoreError::Broken(format!("cannot use the database: {error}"));
    }
    StoreError::Away(error.to_string())
}

/// Classifies an error by its SQLSTATE:
/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
fn of_code(code: &str, message: String) -> StoreError {
    match code {
        // The disk is full. The statement was rolled back, so it can be repeated once there is
        // space.
        "53100" => StoreError::Full(message),
        "23505" => StoreError::Exists(message),
        // The server is a standby and therefore read-only.
        "25006" => StoreError::Away(message),
        _ => match code.get(..2) {
            // These classes are, in order: connection, transaction rollback (deadlock), resources,
            // object state, and operator intervention (time-out, shutdown, kill).
            Some("08" | "40" | "53" | "55" | "57") => StoreError::Away(message),
            Some("22" | "23" | "54") => StoreError::BadRequest(message),
            _ => StoreError::Broken(message),
        },
    }
}

// Turns of the writes that lock the row of their session. They wait for each other anyway. If they
// did so in the database, each would hold a connection meanwhile, and the writes to one busy session
// would keep all others of the node waiting.

/// The maximum number of connections that wait for the row of one session: one that works, and one
/// that is next.
const AT_ONCE: usize = 2;

/// The number of sessions from which those without a write are forgotten.
const MANY: usize = 1_024;

/// The turns of a node's writes. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Turns(Arc<Mutex<HashMap<SessionId, Weak<Semaphore>>>>);

impl Turns {
    /// Waits for the turn of a write to this session. Drop the permit after the write.
    pub async fn take(
        &self,
        session: &SessionId,
        patience: Duration,
    ) -> Result<OwnedSemaphorePermit, StoreError> {
        let turn = timeout(patience, self.of(session).acquire_owned()).await;
        match turn {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(StoreError::Away(format!(
                "other writes to the session took longer than {} ms",
                patience.as_millis()
            ))),
        }
    }

    fn of(&self, session: &SessionId) -> Arc<Semaphore> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(session).and_then(Weak::upgrade) {
            return known;
        }
        if all.len() >= MANY {
            all.retain(|_, turns| turns.strong_count() > 0);
        }
        let new = Arc::new(Semaphore::new(AT_ONCE));
        all.insert(session.clone(), Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saves_wait_for_space_on_a_full_disk() {
        let error = |code: &str| of_code(code, "no space".into());
        assert!(matches!(error("53100"), StoreError::Full(_)));
        assert!(matches!(error("53200"), StoreError::Away(_)));
        assert!(matches!(error("XX001"), StoreError::Broken(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn writes_to_one_session_wait_for_each_other() {
        let (turns, patience) = (Turns::default(), Duration::from_secs(5));
        let [busy, other] = ["busy", "other"].map(|id| SessionId::parse(id).unwrap());
        let first = turns.take(&busy, patience).await.unwrap();
        let _second = turns.take(&busy, patience).await.unwrap();
        drop(turns.take(&other, patience).await.unwrap());
        let third = turns.take(&busy, patience).await;
        assert!(matches!(third, Err(StoreError::Away(_))));
        drop(first);
        drop(turns.take(&busy, patience).await.unwrap());
    }
}
