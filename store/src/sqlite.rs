//! The store in SQLite, for all node processes of one host: one file for each session, and an index
//! of these files.

mod adopt;
mod baselines;
mod db;
mod fault;
mod files;
mod folder;
mod inbox;
mod index;
mod leases;
mod lock;
mod log;
mod read_only;
mod records;
mod schema;
mod trial;
mod waits;

#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;

use planck_common::{NodeId, SessionId};

use self::{
    db::DbOptions,
    files::{InUse, SessionFiles},
    folder::StoreFolder,
    index::Index,
    lock::NodeLock,
};
use super::{InboxBounds, SessionStore, StoreError};
use crate::no_session;

pub use self::folder::OwnPlace;
pub use adopt::{StraySession, stray_sessions};
pub use trial::{SqliteTrial, TrialWrite};

/// The folder of the session files, and how the files are opened.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    pub folder: PathBuf,
    /// The project whose default folder `folder` is, or `None` if the user named the folder.
    pub own_place: Option<OwnPlace>,
    /// Whether a committed write survives a power failure. Otherwise the write only survives the
    /// end of all processes.
    pub full_sync: bool,
    /// The maximum number of session files that are open at once. Each has a thread.
    pub open_files: usize,
    /// How long a call waits for another process's write. The call fails after twice this time.
    pub busy: Duration,
    pub inbox: InboxBounds,
}

impl SqliteOptions {
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let busy = Duration::from_secs(3);
        Self {
            folder: folder.into(),
            own_place: None,
            full_sync: false,
            open_files: 256,
            busy,
            inbox: InboxBounds::default(),
        }
    }
}

/// The store of one folder, opened by one node.
#[derive(Debug)]
pub struct SqliteStore {
    node: NodeId,
    folder: PathBuf,
    opening: DbOptions,
    inbox: InboxBounds,
    index: Index,
    files: SessionFiles,
    /// The sessions that this node's next sweep reads although the index may not name them. In each
    /// of them this node put an input for an agent of its own, or the last sweep found an agent.
    to_sweep: Mutex<BTreeSet<SessionId>>,
    /// The node's lock, or `None` if the store is opened read-only.
    _lock: Option<NodeLock>,
}

impl SqliteStore {
    /// Opens the store of a folder, and creates the folder if it does not exist. Takes the node's
    /// lock, removes the locks of dead nodes, and opens the index.
    pub async fn open(options: SqliteOptions, node: &NodeId) -> Result<Self, StoreError> {
        let SqliteOptions {
            folder,
            own_place,
            full_sync,
            open_files,
            busy,
            inbox,
        } = options;
        let place = match own_place {
            Some(own_place) => own_place.make(&folder)?,
            None => StoreFolder::create(&folder)?.owned()?,
        };
        let lock = NodeLock::take(&place, node)?;
        lock::tidy(&place);
        let opening = DbOptions {
            busy,
            full_sync,
            look: false,
        };
        let index = Index::new(folder.clone(), opening);
        index.store_id().await?;
        let files = SessionFiles::new(folder.clone(), opening, open_files);
        Ok(Self {
            node: node.clone(),
            folder,
            opening,
            inbox,
            index,
            files,
            to_sweep: Mutex::default(),
            _lock: Some(lock),
        })
    }

    /// Returns an empty store in memory, which callers use in place of a database that has no
    /// tables yet.
    pub async fn nothing() -> Result<Self, StoreError> {
        Self::look(SqliteOptions::new("")).await
    }

    /// Checks whether a node could write to the store. Changes nothing, and does not create a
    /// missing folder.
    pub async fn try_out(options: SqliteOptions) -> Result<SqliteTrial, StoreError> {
        trial::run(options).await
    }

    /// Opens the store read-only: takes no lock, changes no file, and refuses every write. A
    /// missing folder counts as an empty store.
    pub async fn look(options: SqliteOptions) -> Result<Self, StoreError> {
        let SqliteOptions {
            folder,
            own_place,
            full_sync,
            open_files,
            busy,
            inbox,
        } = options;
        let place = match own_place {
            Some(own_place) => own_place.find(&folder)?,
            None if folder.symlink_metadata().is_ok() => Some(StoreFolder::open(&folder)?.owned()?),
            None => None,
        };
        if let Some(place) = place {
            // A read-only store takes no lock, but the folder of the locks must be a real
            // directory, as for a node.
            place.find_folder(lock::FOLDER)?;
        }
        let opening = DbOptions {
            busy,
            full_sync,
            look: true,
        };
        let index = Index::new(folder.clone(), opening);
        index.store_id().await?;
        let files = SessionFiles::new(folder.clone(), opening, open_files);
        Ok(Self {
            node: NodeId::mint(),
            folder,
            opening,
            inbox,
            index,
            files,
            to_sweep: Mutex::default(),
            _lock: None,
        })
    }

    /// Returns the file of a session, and opens it if necessary. Fails with `NotFound` if the
    /// session does not exist.
    async fn file(&self, id: &SessionId) -> Result<InUse, StoreError> {
        if let Some(open) = self.files.open_one(id).await? {
            return Ok(open);
        }
        let unknown = || no_session(id);
        let (found, name) = self.index.find(id.as_str()).await?.ok_or_else(unknown)?;
        if found != *id {
            return Err(unknown());
        }
        match self.files.open(id, &name).await {
            Err(StoreError::NotFound(_)) => Err(unknown()),
            other => other,
        }
    }

    fn to_sweep(&self) -> MutexGuard<'_, BTreeSet<SessionId>> {
        self.to_sweep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the file of a session as [`Self::file`] does, or `None` if the session does not
    /// exist.
    async fn file_if_any(&self, id: &SessionId) -> Result<Option<InUse>, StoreError> {
        match self.file(id).await {
            Ok(file) => Ok(Some(file)),
            Err(StoreError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl SessionStore for SqliteStore {
    async fn id(&self) -> Result<String, StoreError> {
        self.index.store_id().await
    }
}
