//! Session files of SQLite that refuse something.

use std::path::Path;

use anyhow::Result;
use sqlx::{ConnectOptions as _, Connection as _, query, sqlite::SqliteConnectOptions};

/// Makes a session's file refuse its removal, as a damaged one may.
pub async fn refuse_removal(path: &Path) -> Result<()> {
    let options = SqliteConnectOptions::new().filename(path);
    let mut connection = options.connect().await?;
    let refuse = "CREATE TRIGGER refused BEFORE DELETE ON sessions BEGIN SELECT RAISE(ABORT, 'refused'); END";
    query(refuse).execute(&mut connection).await?;
    Ok(connection.close().await?)
}
