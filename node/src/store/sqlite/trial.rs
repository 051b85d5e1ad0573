//! Tries whether a node could write to the store of a folder, without changing it.

use std::path::{Path, PathBuf};

use sqlx::{ConnectOptions as _, Connection as _, Executor as _};
use tokio::time::timeout_at;

use super::{
    SqliteOptions,
    db::DbOptions,
    fault::{self, SqliteFault},
    folder::StoreFolder,
    index, lock, view,
};
use crate::{folder_trial, store::StoreError};

const WRITABLE: &str =
    "give this user write permission to it, or name another store with `--store sqlite:DIR`";

/// The result of trying a folder.
#[derive(Debug)]
pub enum SqliteTrial {
    /// The folder does not exist; the first session makes it. The nearest existing folder above it
    /// can be written.
    Missing { above: PathBuf },
    /// The folder exists.
    There(Result<TrialWrite, StoreError>),
}

/// What could be written.
#[derive(Debug, PartialEq, Eq)]
pub enum TrialWrite {
    /// The folder. The index in it can be opened for writing.
    Folder,
    /// The index, by a transaction that was rolled back.
    Index,
}

pub async fn run(options: SqliteOptions) -> Result<SqliteTrial, StoreError> {
    let folder = &options.folder;
    let nearest = folder_trial::nearest(folder)
        .await
        .map_err(|error| fault::refused(folder, &error, WRITABLE))?;
    let place = match &options.own_place {
        Some(own_place) => own_place.find(folder)?,
        None if nearest == *folder => Some(StoreFolder::open(folder)?),
        None => None,
    };
    match place {
        Some(place) => Ok(SqliteTrial::There(write(&place, &options).await)),
        None => {
            try_folder(&nearest).await?;
            Ok(SqliteTrial::Missing { above: nearest })
        }
    }
}

async fn write(place: &StoreFolder, options: &SqliteOptions) -> Result<TrialWrite, StoreError> {
    try_folder(place.path()).await?;
    // A node makes its lock in this folder.
    if let Some(locks) = place.find_folder(lock::FOLDER)? {
        try_folder(locks.path()).await?;
    }
    let index = options.folder.join(index::NAME);
    let has_journal = ["-wal", "-shm"]
        .iter()
        .all(|end| view::beside(&index, end).exists());
    let is_there = place.find_file(index::NAME)?.is_some();
    // If no node is running, SQLite would make a journal for the trial, or apply the journal of a
    // killed node.
    if !is_there || !has_journal || !lock::is_in_use(place) {
        return Ok(TrialWrite::Folder);
    }
    roll_back(&index, options).await?;
    Ok(TrialWrite::Index)
}

async fn try_folder(folder: &Path) -> Result<(), StoreError> {
    let tried = folder_trial::try_write(folder).await;
    tried.map_err(|error| fault::refused(folder, &error, WRITABLE))
}

async fn roll_back(index: &Path, options: &SqliteOptions) -> Result<(), SqliteFault> {
    let opening = DbOptions {
        busy: options.busy,
        full_sync: options.full_sync,
        look: false,
    };
    let tried = async {
        let mut connection = opening.connect(index, false).connect().await?;
        let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
        transaction.execute("UPDATE store SET id = id").await?;
        transaction.rollback().await?;
        connection.close().await
    };
    let late = |_| {
        let what = format!("{} did not answer in time", index.display());
        SqliteFault::from(StoreError::Away(what))
    };
    timeout_at(opening.deadline(), tried)
        .await
        .map_err(late)?
        .map_err(|error| fault::sort(&error, index))
}
