//! A private Postgres database for each test. It is on the server that `DATABASE_URL` names, or
//! else on one server per run of tests, or on a server of its own. When the run ends, however it
//! ends, a shell stops the servers that the tests started and removes their files.

mod programs;
mod server;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use anyhow::{Context as _, Result};
pub use server::Paused;
use server::Server;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection,
    postgres::PgConnectOptions,
};

use crate::run;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// An empty database of one test. Dropping this value drops the database.
pub struct Database {
    server: Arc<PgConnectOptions>,
    name: String,
    /// The server, if only this test uses it.
    own: Option<Server>,
}

impl Database {
    /// Creates an empty database. If there is no Postgres, the error says how to install one.
    pub async fn create() -> Result<Self> {
        Self::create_on(options().await?, None).await
    }

    /// Creates a database on a server of its own, which a test can therefore freeze.
    pub async fn create_alone() -> Result<Self> {
        let own = Server::start().await?;
        Self::create_on(own.options(), Some(own)).await
    }

    async fn create_on(server: PgConnectOptions, own: Option<Server>) -> Result<Self> {
        let server = Arc::new(server);
        let name = format!(
            "planck_test_{}_{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let mut admin = PgConnection::connect_with(&server)
            .await
            .context("cannot connect to the test server")?;
        let create = AssertSqlSafe(format!(
            "CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'"
        ));
        admin
            .execute(create)
            .await
            .with_context(|| format!("cannot create database {name}"))?;
        admin.close().await?;
        Ok(Self { server, name, own })
    }

    /// Returns the URL of the database for a node's configuration.
    pub fn url(&self) -> String {
        let mut url = self.server.to_url_lossy();
        url.set_path(&self.name);
        url.into()
    }

    /// Freezes the server, which must belong to this test, until the returned value is dropped.
    pub fn pause(&self) -> Result<Paused> {
        self.own
            .as_ref()
            .context("the server is others' too")?
            .pause()
    }

    /// Ends every connection of others to this database.
    pub async fn end_connections(&self) -> Result<()> {
        let mut own = self.connect().await?;
        own.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
            .await?;
        own.close().await?;
        Ok(())
    }

    /// Opens a connection for the test itself, to read rows or to end other backends.
    pub async fn connect(&self) -> Result<PgConnection> {
        let options = (*self.server).clone().database(&self.name);
        Ok(PgConnection::connect_with(&options).await?)
    }
}

async fn options() -> Result<PgConnectOptions> {
    if let Ok(url) = std::env::var("DATABASE_URL") {
        return url.parse().context("DATABASE_URL is no Postgres URL");
    }
    let start = || {
        let folder = tokio::runtime::Handle::current().block_on(server::start_for_run())?;
        Ok(folder.to_str().context("the folder is no text")?.to_owned())
    };
    let folder = tokio::task::spawn_blocking(move || run::once("postgres", start)).await??;
    Ok(server::options(Path::new(&folder)))
}

impl Drop for Database {
    fn drop(&mut self) {
        let (server, drop) = (
            self.server.clone(),
            format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name),
        );
        let dropped = std::thread::spawn(move || -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let mut admin = PgConnection::connect_with(&server).await?;
                admin.execute(AssertSqlSafe(drop)).await?;
                Ok(())
            })
        });
        if !matches!(dropped.join(), Ok(Ok(()))) {
            eprintln!("could not drop the test database {}", self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_test_has_its_own_database() {
        let (one, other) = (
            Database::create().await.unwrap(),
            Database::create().await.unwrap(),
        );
        one.connect()
            .await
            .unwrap()
            .execute("CREATE TABLE t (x int)")
            .await
            .unwrap();
        assert!(
            other
                .connect()
                .await
                .unwrap()
                .execute("SELECT x FROM t")
                .await
                .is_err()
        );
        let mut by_url = PgConnection::connect(&one.url()).await.unwrap();
        by_url.execute("SELECT x FROM t").await.unwrap();
    }
}
