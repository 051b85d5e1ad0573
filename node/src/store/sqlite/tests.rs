//! Tests of what only SQLite has: lock files, several processes, damaged files and full disks.

mod adopting;
mod damage;
mod disk;
mod files;
mod processes;
mod waits;

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use planck_common::NodeId;
use sqlx::{ConnectOptions as _, Connection as _, query, sqlite::SqliteConnectOptions};

use super::{SqliteOptions, SqliteStore};
use crate::store::{SessionStore, conformance};

/// A temporary folder for a store.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn options(&self) -> SqliteOptions {
        SqliteOptions::new(self.path())
    }

    pub async fn store(&self, node: &NodeId) -> SqliteStore {
        SqliteStore::open(self.options(), node).await.unwrap()
    }
}

/// Makes a session's file refuse its removal, as a damaged one may.
pub(crate) async fn refuse_removal(path: &Path) {
    let options = SqliteConnectOptions::new().filename(path);
    let mut connection = options.connect().await.unwrap();
    let refuse = "CREATE TRIGGER refused BEFORE DELETE ON sessions BEGIN SELECT RAISE(ABORT, 'refused'); END";
    query(refuse).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

#[async_trait]
impl conformance::World for Folder {
    async fn open(&self, node: &NodeId) -> Arc<dyn SessionStore> {
        Arc::new(self.store(node).await)
    }
}

conformance::suite!(Folder::new());
