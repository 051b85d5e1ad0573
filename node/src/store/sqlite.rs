//! SQLite for every node process of one host: a file for each session, and an index of them.

mod adopt;
mod db;
mod decode;
mod fault;
mod files;
mod folder;
mod inbox;
mod index;
mod leases;
mod lock;
mod log;
mod own_place;
mod records;
mod schema;
mod trial;
mod view;

#[cfg(test)]
mod tests;

use std::{path::PathBuf, time::Duration};

use async_trait::async_trait;
use planck_common::{NodeId, SessionId};

pub use adopt::{StraySession, stray_sessions};
pub use own_place::OwnPlace;
pub use trial::{SqliteTrial, TrialWrite};

use self::{
    db::DbOptions,
    files::{InUse, SessionFiles},
    folder::StoreFolder,
    index::Index,
    lock::NodeLock,
};
use super::{InboxBounds, SessionStore, StoreError, refusal};

/// Where the files are, and how they are opened.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    pub folder: PathBuf,
    /// Where the folder is the default place: what makes it one. `None` for a folder that the user
    /// named.
    pub own_place: Option<OwnPlace>,
    /// Whether what is acknowledged survives a power cut, not only the death of every process.
    pub full_sync: bool,
    /// How many session files are open at once; each is a thread.
    pub open_files: usize,
    /// How long to wait for another process's write. A call ends after twice as long.
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

/// The store of one folder, as one node process has it.
#[derive(Debug)]
pub struct SqliteStore {
    node: NodeId,
    folder: PathBuf,
    opening: DbOptions,
    inbox: InboxBounds,
    index: Index,
    files: SessionFiles,
    /// None where the store is only looked at.
    _lock: Option<NodeLock>,
}

impl SqliteStore {
    /// Takes the node's lock, and makes sure that the folder can be used.
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
            None => StoreFolder::create(&folder)?,
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
            _lock: Some(lock),
        })
    }

    /// A store without sessions, for a database that has no tables yet.
    pub async fn nothing() -> Result<Self, StoreError> {
        Self::look(SqliteOptions::new("")).await
    }

    /// Tries whether a node could write to the store. Nothing in it is changed, and a folder that is
    /// missing is not made.
    pub async fn try_out(options: SqliteOptions) -> Result<SqliteTrial, StoreError> {
        trial::run(options).await
    }

    /// Opens the folder only to look at it: takes no lock, creates, migrates, repairs and removes
    /// nothing, and refuses every change. A folder that is missing holds no sessions.
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
            None if folder.symlink_metadata().is_ok() => Some(StoreFolder::open(&folder)?),
            None => None,
        };
        if let Some(place) = place {
            // No lock is needed; what stands in their place is refused as it is for a node.
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
            _lock: None,
        })
    }

    /// The open file of a session.
    async fn file(&self, id: &SessionId) -> Result<InUse, StoreError> {
        if let Some(open) = self.files.open_one(id).await? {
            return Ok(open);
        }
        let unknown = || refusal::no_session(id);
        let (found, name) = self.index.find(id.as_str()).await?.ok_or_else(unknown)?;
        if found != *id {
            return Err(unknown());
        }
        match self.files.open(id, &name).await {
            Err(StoreError::NotFound(_)) => Err(unknown()),
            other => other,
        }
    }

    /// The same; `None` where the session is gone.
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
