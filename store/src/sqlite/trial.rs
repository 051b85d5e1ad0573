//! Checks whether a node could write to the store of a folder, without changing it.

use std::path::{Path, PathBuf};

use sqlx::{ConnectOptions as _, Connection as _, Executor as _};
use tokio::time::timeout_at;

use super::{
    SqliteOptions,
    db::DbOptions,
    fault::{self, SqliteFault},
    folder::StoreFolder,
    index, lock, read_only,
};
use crate::StoreError;
use planck_host::folder_trial;

const WRITABLE: &str =
    "give this user write permission to it, or name another store with `--store sqlite:DIR`";

/// The result of checking a folder.
#[derive(Debug)]
pub enum SqliteTrial {
    /// The folder does not exist, and a node would create it. Its nearest existing parent, `above`,
    /// is writable.
    Missing { above: PathBuf },
    /// The folder exists. The value tells what the check could write, or why it could not write.
    There(Result<TrialWrite, StoreError>),
}

/// The files to which the check could write.
#[derive(Debug, PartialEq, Eq)]
pub enum TrialWrite {
    /// Files in the folder. If there is an index, it could be opened for writing, but no
    /// transaction on it was tried.
    Folder,
    /// The index, in a transaction that was rolled back.
    Index,
}

pub async fn run(options: SqliteOptions) -> Result<SqliteTrial, StoreError> {
    let folder = &options.folder;
    let nearest = folder_trial::nearest(folder)
        .await
        .map_err(|error| fault::refused(folder, &error, WRITABLE))?;
    let place = match &options.own_place {
        Some(own_place) => own_place.find(folder)?,
        None if nearest == *folder => Some(StoreFolder::open(folder)?.owned()?),
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
    // A node creates its lock file in this folder.
    if let Some(locks) = place.find_folder(lock::FOLDER)? {
        try_folder(locks.path()).await?;
    }
    let index = options.folder.join(index::NAME);
    let has_journal = ["-wal", "-shm"]
        .iter()
        .all(|end| read_only::beside(&index, end).exists());
    let is_there = place.find_file(index::NAME)?.is_some();
    // While no node is running, SQLite would create a journal for the transaction, or apply the
    // journal of a killed node. No transaction is tried then.
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
