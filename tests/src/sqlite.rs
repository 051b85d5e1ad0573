//! Session files of SQLite that refuse something.

use std::path::Path;

use anyhow::Result;
use sqlx::{ConnectOptions as _, Connection as _, query, sqlite::SqliteConnectOptions};

/// Makes a session's file refuse its removal, as a damaged one may.
pub async fn refuse_removal(path: &Path) -> Result<()> {
    let refuse = "CREATE TRIGGER refused BEFORE DELETE ON sessions BEGIN SELECT RAISE(ABORT, 'refused'); END";
    execute(path, refuse).await
}

/// Makes a session's file refuse to record the session as closed.
pub async fn refuse_close(path: &Path) -> Result<()> {
    let refuse =
        "CREATE TRIGGER refused BEFORE UPDATE OF state ON sessions WHEN NEW.state = 'closed'
        BEGIN SELECT RAISE(ABORT, 'refused'); END";
    execute(path, refuse).await
}

async fn execute(path: &Path, statement: &'static str) -> Result<()> {
    let options = SqliteConnectOptions::new().filename(path);
    let mut connection = options.connect().await?;
    query(statement).execute(&mut connection).await?;
    Ok(connection.close().await?)
}
