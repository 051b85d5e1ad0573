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

use super::{SqliteOptions, SqliteStore};
use crate::{SessionStore, conformance};

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

#[async_trait]
impl conformance::World for Folder {
    async fn open(&self, node: &NodeId) -> Arc<dyn SessionStore> {
        Arc::new(self.store(node).await)
    }
}

conformance::suite!(Folder::new());
