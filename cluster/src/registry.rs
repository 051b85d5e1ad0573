//! The registry: the typed records of nodes, teams and members. Each write has a condition. If a
//! write was refused or not answered, reading the record shows its outcome.

mod nodes;
mod teams;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use planck_common::{
    event::json,
    registry::{Key, Keys, StoreRecord},
};
use serde::{Serialize, de::DeserializeOwned};

use planck_bus::{
    Records,
    records::{Record, RecordsError, Write},
};

pub(crate) use self::nodes::{NodeDeath, NodeHint};
pub use self::{
    nodes::placeholder_record,
    teams::{DeathOf, MembersCreated, TeamWritten},
};

/// How long the registry keeps final records, so that operators can read them.
const FINAL: Duration = Duration::from_secs(24 * 3600);
/// How long the registry keeps the removal of a member, and a proof that no later proof replaces.
const REMOVED: Duration = Duration::from_secs(3600);
/// The maximum number of attempts at a write whose condition changes meanwhile or whose outcome is
/// unknown.
const TRIES: u32 = 3;

/// A client of the registry. Cloning it is cheap.
#[derive(Clone)]
pub struct ClusterRegistry(Arc<dyn Records>);

/// A record, and the revision at which it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord<T> {
    pub revision: u64,
    pub record: T,
}

/// Why a request to the registry failed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    #[error(transparent)]
    Records(#[from] RecordsError),
    #[error(
        "this node's store is {mine}, and the nodes of this cluster share store {theirs}; give all nodes the same `store.url`, or give this one a cluster of its own with `nats.subject_prefix`"
    )]
    OtherStore {
        mine: Box<StoreRecord>,
        theirs: Box<StoreRecord>,
    },
}

impl RegistryError {
    /// Returns whether a condition did not hold, so that nothing was written.
    pub(crate) fn is_refused(&self) -> bool {
        *self == Self::Records(RecordsError::Refused)
    }

    /// Returns whether the request failed because there is no bucket.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Records(RecordsError::Missing(_)))
    }

    /// Returns whether repeating the request may help.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Records(RecordsError::Away(_) | RecordsError::Unknown(_) | RecordsError::Refused)
        )
    }
}

impl ClusterRegistry {
    /// Returns a client that reads and writes through `records`.
    pub fn new(records: Arc<dyn Records>) -> Self {
        Self(records)
    }

    /// Creates the bucket unless it exists, checks its settings, and returns its age.
    pub(crate) async fn open(&self) -> Result<Duration, RegistryError> {
        Ok(self.0.open().await?)
    }

    /// Fails if this node's store is not the one that the nodes of the cluster share. If no store
    /// is recorded, records this node's store as the shared one.
    pub(crate) async fn check_store(&self, mine: &StoreRecord) -> Result<(), RegistryError> {
        let found = match self.find::<StoreRecord>(&Key::Store).await? {
            Some(found) => found.record,
            None => self.name_store(mine).await?,
        };
        if found.id == mine.id {
            return Ok(());
        }
        Err(RegistryError::OtherStore {
            mine: Box::new(mine.clone()),
            theirs: Box::new(found),
        })
    }

    async fn name_store(&self, mine: &StoreRecord) -> Result<StoreRecord, RegistryError> {
        match self.put(&Key::Store, mine, None, None).await {
            Ok(_) => Ok(mine.clone()),
            Err(error) if error.is_refused() => Ok(self
                .find(&Key::Store)
                .await?
                .map_or_else(|| mine.clone(), |found| found.record)),
            Err(error) => Err(error),
        }
    }

    /// Records `mine` as the store that the nodes of the cluster share, if the record still names
    /// `theirs`. Otherwise does nothing.
    pub(crate) async fn replace_store(
        &self,
        theirs: &StoreRecord,
        mine: &StoreRecord,
    ) -> Result<(), RegistryError> {
        match self.find::<StoreRecord>(&Key::Store).await? {
            Some(found) if found.record == *theirs => match self
                .put(&Key::Store, mine, Some(found.revision), None)
                .await
            {
                Err(error) if !error.is_refused() => Err(error),
                Ok(_) | Err(_) => Ok(()),
            },
            Some(_) | None => Ok(()),
        }
    }

    /// Reads a record. A record that cannot be decoded counts as lost, and its owner writes it
    /// again.
    async fn find<T: DeserializeOwned>(
        &self,
        key: &Key,
    ) -> Result<Option<StoredRecord<T>>, RegistryError> {
        Ok(readable(self.0.read(&key.to_string()).await?))
    }

    /// Reads records. Leaves out those whose key or content cannot be decoded.
    async fn find_all<T: DeserializeOwned>(
        &self,
        keys: &Keys<'_>,
    ) -> Result<Vec<(Key, StoredRecord<T>)>, RegistryError> {
        let records = self.0.read_all(&keys.to_string()).await?.into_iter();
        let known = records.filter_map(|record| Some((Key::parse(&record.key)?, record)));
        Ok(known
            .filter_map(|(key, record)| Some((key, readable(record)?)))
            .collect())
    }

    /// Writes a record on condition that it is at `expects`. Without `expects`, there must be no
    /// record that can be decoded.
    async fn put<T: Serialize + DeserializeOwned>(
        &self,
        key: &Key,
        record: &T,
        expects: Option<u64>,
        lasts: Option<Duration>,
    ) -> Result<u64, RegistryError> {
        let expects = match expects {
            Some(revision) => revision,
            None => self.vacancy(key, |_: &T| true).await?,
        };
        let write = Write::put(key.to_string(), json(record)).at(expects);
        Ok(self.0.write(vec![Write { lasts, ..write }]).await?)
    }

    /// Returns the revision on which a write that creates a record must depend. It is 0 if there
    /// was never a record. Otherwise it is the revision of a record that was removed, cannot be
    /// decoded or is rejected by `stands`. Fails if there is any other record.
    async fn vacancy<T: DeserializeOwned>(
        &self,
        key: &Key,
        stands: impl Fn(&T) -> bool,
    ) -> Result<u64, RegistryError> {
        let record = self.0.read(&key.to_string()).await?;
        let revision = record.revision;
        match readable(record).filter(|found| stands(&found.record)) {
            None => Ok(revision),
            Some(_) => Err(RecordsError::Refused.into()),
        }
    }
}

/// Decodes a record. Returns `None` if it was removed or cannot be decoded.
fn readable<T: DeserializeOwned>(record: Record) -> Option<StoredRecord<T>> {
    let Record {
        key,
        revision,
        value,
    } = record;
    match serde_json::from_slice(&value?) {
        Ok(record) => Some(StoredRecord { revision, record }),
        Err(error) => {
            tracing::warn!(key, revision, %error, "a record of the registry cannot be read and counts as lost; its owner writes it again");
            None
        }
    }
}
