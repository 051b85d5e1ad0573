//! SQLite for every node process of one host: a file for each session, and an index of them.

mod adopt;
mod agents;
mod append;
mod create;
mod db;
mod decode;
mod fault;
mod files;
mod folder;
mod inbox;
mod index;
mod lease;
mod list;
mod lock;
mod log;
mod own_place;
mod rewind;
mod schema;
mod sweep;
mod trial;
mod view;

#[cfg(test)]
mod tests;

use std::{path::PathBuf, time::Duration};

use async_trait::async_trait;
use planck_common::{
    AgentId, InputId, NodeId, Seq, SessionId, Timestamp,
    command::{Events, ListSessions, Messages, RemovedCounts, SessionState, Sessions},
    event::WorkerExit,
    spec::AgentSpec,
};

pub use adopt::{StraySession, stray_sessions};
pub use own_place::OwnPlace;
pub use trial::{SqliteTrial, Written};

use self::{db::Opening, files::Files, folder::Folder, index::Index, lock::NodeLock};
use super::{
    AgentRecord, Appended, Asked, Batch, Birth, Claim, Created, InboxBounds, Lease, LogRow,
    NewInput, NewSession, Newborn, PutResult, Rewound, SessionRecord, SessionStore, StoreError,
    StoredInput, Stray, Task, Under,
};

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
    opening: Opening,
    inbox: InboxBounds,
    index: Index,
    files: Files,
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
            None => Folder::create(&folder)?,
        };
        let lock = NodeLock::take(&place, node)?;
        lock::tidy(&place);
        let opening = Opening {
            busy,
            full_sync,
            look: false,
        };
        let index = Index::new(folder.clone(), opening);
        index.store_id().await?;
        let files = Files::new(folder.clone(), opening, open_files);
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
            None if folder.symlink_metadata().is_ok() => Some(Folder::open(&folder)?),
            None => None,
        };
        if let Some(place) = place {
            // No lock is needed; what stands in their place is refused as it is for a node.
            place.find_folder(lock::FOLDER)?;
        }
        let opening = Opening {
            busy,
            full_sync,
            look: true,
        };
        let index = Index::new(folder.clone(), opening);
        index.store_id().await?;
        let files = Files::new(folder.clone(), opening, open_files);
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
}

#[async_trait]
impl SessionStore for SqliteStore {
    async fn id(&self) -> Result<String, StoreError> {
        self.index.store_id().await
    }

    async fn create(&self, session: NewSession, node: &NodeId) -> Result<Created, StoreError> {
        self.create_session(session, node).await
    }

    async fn session(&self, id_or_name: &str) -> Result<Option<SessionRecord>, StoreError> {
        self.record(id_or_name).await
    }

    async fn sessions(&self, filter: ListSessions) -> Result<Sessions, StoreError> {
        self.list(filter).await
    }

    async fn set_state(
        &self,
        session: &SessionId,
        epoch: i64,
        state: SessionState,
    ) -> Result<(), StoreError> {
        self.change_state(session, epoch, state).await
    }

    async fn delete(&self, session: &SessionId) -> Result<RemovedCounts, StoreError> {
        self.remove(session).await
    }

    async fn expired(&self, before: Timestamp) -> Result<Vec<SessionId>, StoreError> {
        self.closed_and_old(before).await
    }

    async fn find_agent(&self, agent: &AgentId) -> Result<Option<AgentRecord>, StoreError> {
        self.agent_record(agent).await
    }

    async fn agents(&self, session: &SessionId) -> Result<Vec<AgentRecord>, StoreError> {
        self.all_agents(session).await
    }

    async fn meant(&self, session: &SessionId, text: &str) -> Result<Vec<AgentRecord>, StoreError> {
        self.agents_meant(session, text).await
    }

    async fn births(
        &self,
        session: &SessionId,
        born: &[Newborn],
        under: &Under,
        node: &NodeId,
    ) -> Result<Vec<Birth>, StoreError> {
        self.bear_all(session, born, under, node).await
    }

    async fn claim(
        &self,
        session: &SessionId,
        agent: &AgentId,
        seen: i64,
        claim: Claim,
        node: &NodeId,
    ) -> Result<Option<Lease>, StoreError> {
        self.take(session, agent, seen, claim, node).await
    }

    async fn release(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        stopped: bool,
    ) -> Result<(), StoreError> {
        self.give_up(session, agent, epoch, stopped).await
    }

    async fn respec(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        spec: &AgentSpec,
    ) -> Result<(), StoreError> {
        self.replace_spec(session, agent, epoch, spec).await
    }

    async fn append(
        &self,
        session: &SessionId,
        node: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError> {
        self.append_all(session, node, batches).await
    }

    async fn put(&self, session: &SessionId, input: NewInput) -> Result<PutResult, StoreError> {
        self.put_input(session, input).await
    }

    async fn ask(
        &self,
        session: &SessionId,
        question: NewInput,
        asker_epoch: i64,
        max_depth: u32,
    ) -> Result<Asked, StoreError> {
        self.ask_question(session, question, asker_epoch, max_depth)
            .await
    }

    async fn withdraw(&self, session: &SessionId, question: &InputId) -> Result<bool, StoreError> {
        self.withdraw_question(session, question).await
    }

    async fn input(
        &self,
        session: &SessionId,
        id: &InputId,
    ) -> Result<Option<StoredInput>, StoreError> {
        let file = self.file(session).await?;
        self.input_in(&file, id).await
    }

    async fn open_inputs(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<StoredInput>, StoreError> {
        self.inputs_without_outcome(session, agent).await
    }

    async fn tasks(&self, session: &SessionId, agent: &AgentId) -> Result<Vec<Task>, StoreError> {
        self.tasks_of(session, agent).await
    }

    async fn load(&self, session: &SessionId, agent: &AgentId) -> Result<Vec<LogRow>, StoreError> {
        self.load_rows(session, agent).await
    }

    async fn head(&self, session: &SessionId) -> Result<Seq, StoreError> {
        self.last_seq(session).await
    }

    async fn events(
        &self,
        session: &SessionId,
        from: Seq,
        limit: u32,
        agent: Option<&AgentId>,
    ) -> Result<Events, StoreError> {
        self.page_of_events(session, from, limit, agent).await
    }

    async fn messages(
        &self,
        session: &SessionId,
        agent: Option<&AgentId>,
        before: Option<Seq>,
        limit: Option<u32>,
    ) -> Result<Messages, StoreError> {
        self.page_of_messages(session, agent, before, limit).await
    }

    async fn rewind(
        &self,
        session: &SessionId,
        lead_epoch: i64,
        to: Seq,
        by: &str,
    ) -> Result<Rewound, StoreError> {
        self.rewind_to(session, lead_epoch, to, by).await
    }

    async fn untold_exits(&self, session: &SessionId) -> Result<Vec<WorkerExit>, StoreError> {
        self.exits_not_told(session).await
    }

    async fn sweep(&self, alive: &[NodeId]) -> Result<Vec<Stray>, StoreError> {
        self.strays(alive).await
    }

    async fn held(&self, node: &NodeId) -> Result<Vec<Stray>, StoreError> {
        self.held_by(node).await
    }

    async fn node_lives(&self, node: &NodeId) -> Result<Option<bool>, StoreError> {
        lock::lives(&self.folder, node).map(Some)
    }

    async fn end_node(&self, node: &NodeId) -> Result<(), StoreError> {
        let (folder, node) = (self.folder.clone(), node.clone());
        let ended = tokio::task::spawn_blocking(move || lock::end(&folder, &node)).await;
        ended.map_err(|error| StoreError::Away(error.to_string()))?
    }
}
