//! The records of sessions and agents, in SQLite.

use std::fs;

use async_trait::async_trait;
use serde_json::{Map, Value};
use sqlx::query;

use planck_common::{
    AgentId, NodeId, SessionId, SessionName, Timestamp,
    command::{ListSessions, RemovedCounts, SessionActivity, SessionRow, SessionState, Sessions},
    event::{WorkerExit, json},
    spec::AgentSpec,
};

use super::{
    SqliteStore,
    db::{Db, SqliteStatement},
    files::InUse,
    lock,
};
use crate::{
    AgentCreation, AgentRecord, Created, HeldLease, Inbox as _, LeadIncarnation, NAMESAKES,
    NewAgent, NewInput, NewMember, NewSession, SessionRecord, SessionRecords, StoreError,
    max_agents, name_taken, no_agent, no_free_name, no_session,
    page::{self, SessionCursor},
    preview::{self, PreviewBodies, SessionPreview},
    records::{NAME_TRIES, make_up_name},
    row::{role_name, session_state_name},
    sqlite::{files::NewFile, inbox, index::Reserved},
    stale_lead, stale_lease, still_open,
};

const RECORD: &str =
    "SELECT s.*, a.node_id AS owner FROM sessions s JOIN agents a ON a.id = s.lead";

const EXITS: &str = "SELECT a.id, a.name, coalesce((SELECT l.body->>'reason' FROM log l
      WHERE l.agent_id = a.id AND l.kind = 'agent_stopped' ORDER BY l.seq DESC LIMIT 1), 'stopped') AS reason
    FROM agents a JOIN sessions s ON a.id <> s.lead WHERE a.state = 'stopped' AND NOT EXISTS (
      SELECT 1 FROM log l WHERE l.agent_id = s.lead AND l.body->>'id' = a.id
        AND (l.kind = 'worker_exit' OR l.kind = 'worker_spawned' AND l.hidden_by IS NOT NULL))
    ORDER BY a.n";

#[async_trait]
impl SessionRecords for SqliteStore {
    async fn create(&self, session: NewSession, node: &NodeId) -> Result<Created, StoreError> {
        create(self, session, node).await
    }

    async fn session(&self, id_or_name: &str) -> Result<Option<SessionRecord>, StoreError> {
        let open = match SessionId::parse(id_or_name) {
            Ok(id) => self.files.open_one(&id).await?,
            Err(_name) => None,
        };
        if let Some(file) = open {
            return record_in(&file.db).await;
        }
        let Some((id, _)) = self.index.find(id_or_name).await? else {
            return Ok(None);
        };
        let Some(file) = self.file_if_any(&id).await? else {
            return Ok(None);
        };
        record_in(&file.db).await
    }

    async fn recorded(&self, id: &SessionId) -> Result<Option<SessionRecord>, StoreError> {
        if self.index.find_indexed(id.as_str()).await?.is_none() {
            return Ok(None);
        }
        self.session(id.as_str()).await
    }

    async fn sessions(&self, filter: ListSessions) -> Result<Sessions, StoreError> {
        sessions(self, filter).await
    }

    async fn session_names(&self, limit: u32) -> Result<Vec<String>, StoreError> {
        let listed = self.index.page(None, None, limit).await?;
        Ok(listed
            .into_iter()
            .map(|listed| listed.name.to_string())
            .collect())
    }

    async fn set_state(
        &self,
        session: &SessionId,
        epoch: i64,
        state: SessionState,
    ) -> Result<(), StoreError> {
        const CHANGE: &str = "UPDATE sessions SET state = ?1
            WHERE EXISTS (SELECT 1 FROM agents WHERE id = sessions.lead AND epoch = ?2)";
        let file = self.file(session).await?;
        if file
            .db
            .execute(query(CHANGE).bind(session_state_name(state)).bind(epoch))
            .await?
            == 0
        {
            return Err(stale_lead(session));
        }
        self.index.state(session, state, Timestamp::now()).await
    }

    async fn set_metadata(
        &self,
        session: &SessionId,
        metadata: &Map<String, Value>,
    ) -> Result<(), StoreError> {
        let file = self.file(session).await?;
        let set = query("UPDATE sessions SET metadata = ?1").bind(json(&metadata));
        file.db.execute(set).await?;
        Ok(())
    }

    /// Removes a session. The record and the agents are deleted before the file is removed, so that
    /// a process that still has the file open finds no agent in it.
    async fn delete(&self, session: &SessionId) -> Result<RemovedCounts, StoreError> {
        const COUNT: &str = "SELECT s.state, (SELECT count(*) FROM agents) AS agents, (SELECT count(*) FROM log) AS events,
            (SELECT count(*) FROM inputs) AS inputs FROM sessions s";
        let file = self.file(session).await?;
        let row = file
            .db
            .row(query(COUNT))
            .await?
            .ok_or_else(|| no_session(session))?;
        let row = file.reader(&row);
        let removed = RemovedCounts {
            agents: row.amount("agents")?,
            events: row.amount("events")?,
            inputs: row.amount("inputs")?,
        };
        let emptied = file
            .db
            .all_or_nothing(
                query("DELETE FROM sessions WHERE state = 'closed'"),
                vec![query("DELETE FROM agents")],
            )
            .await?;
        if !emptied {
            return Err(still_open(session));
        }
        let path = file.db.path().to_owned();
        drop(file);
        self.files.forget(session);
        self.index.forget(session).await?;
        for end in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{end}", path.display()));
        }
        Ok(removed)
    }

    async fn expired(&self, before: Timestamp) -> Result<Vec<SessionId>, StoreError> {
        let mut old = vec![];
        for id in self.index.closed_before(before).await? {
            match self.session(id.as_str()).await {
                Ok(record) => old.extend(
                    record
                        .filter(|r| r.state == SessionState::Closed && r.updated_at < before)
                        .map(|r| r.id),
                ),
                Err(error) => {
                    tracing::warn!(session = %id, %error, "left a session out of the expired ones: its file cannot be read")
                }
            }
        }
        Ok(old)
    }

    async fn find_agent(&self, agent: &AgentId) -> Result<Option<AgentRecord>, StoreError> {
        let Some(session) = self.index.session_of(agent).await? else {
            return Ok(None);
        };
        let Some(file) = self.file_if_any(&session).await? else {
            return Ok(None);
        };
        file.agent(agent).await
    }

    async fn agents(&self, session: &SessionId) -> Result<Vec<AgentRecord>, StoreError> {
        let all = query("SELECT * FROM agents ORDER BY n");
        agents(&self.file(session).await?, all).await
    }

    async fn agents_named(
        &self,
        session: &SessionId,
        id_or_name: &str,
    ) -> Result<Vec<AgentRecord>, StoreError> {
        let named = query("SELECT * FROM agents WHERE id = ?1 OR name = ?1").bind(id_or_name);
        agents(&self.file(session).await?, named).await
    }

    async fn agents_of_type(
        &self,
        session: &SessionId,
        r#type: &str,
    ) -> Result<Vec<AgentRecord>, StoreError> {
        const TYPED: &str =
            "SELECT * FROM agents WHERE type = ?1 ORDER BY state = 'stopped', n LIMIT ?2";
        let of_type = query(TYPED).bind(r#type).bind(NAMESAKES);
        agents(&self.file(session).await?, of_type).await
    }

    async fn create_agents(
        &self,
        session: &SessionId,
        members: &[NewMember],
        lead: &LeadIncarnation,
        node: &NodeId,
    ) -> Result<Vec<AgentCreation>, StoreError> {
        create_agents(self, session, members, lead, node).await
    }

    async fn replace_spec(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        spec: &AgentSpec,
    ) -> Result<(), StoreError> {
        const RESPEC: &str =
            "UPDATE agents SET type = ?3, role = ?4, spec = ?5 WHERE id = ?1 AND epoch = ?2";
        let file = self.file(session).await?;
        let statement = query(RESPEC).bind(agent.as_str()).bind(epoch);
        let statement = statement
            .bind(spec.r#type.as_str())
            .bind(role_name(spec.role))
            .bind(json(spec));
        if file.db.execute(statement).await? > 0 {
            return Ok(());
        }
        match file.agent(agent).await? {
            Some(_) => Err(stale_lease(agent)),
            None => Err(no_agent(agent, session)),
        }
    }

    async fn unreported_exits(&self, session: &SessionId) -> Result<Vec<WorkerExit>, StoreError> {
        let file = self.file(session).await?;
        let rows = file.db.rows(query(EXITS)).await?;
        rows.iter().map(|row| file.reader(row).exit()).collect()
    }
}

pub(super) async fn record_in(db: &Db) -> Result<Option<SessionRecord>, StoreError> {
    let row = db.row(query(RECORD)).await.map_err(StoreError::from)?;
    row.map(|row| db.reader(&row).session()).transpose()
}

async fn agents<'q>(
    file: &InUse,
    statement: SqliteStatement<'q>,
) -> Result<Vec<AgentRecord>, StoreError> {
    let rows = file.db.rows(statement).await?;
    let agent = |row| file.reader(row).agent(file.id.clone(), file.team.clone());
    rows.iter().map(agent).collect()
}

// Records a new session: reserves its name in the index and then creates its file.

/// How long, in milliseconds, a name stays reserved for a session whose file was not created.
const ABANDONED_MS: i64 = 60_000;

async fn create(
    store: &SqliteStore,
    session: NewSession,
    node: &NodeId,
) -> Result<Created, StoreError> {
    session.check()?;
    let name = reserve(store, &session, node).await?;
    let file = file_with(store, &session, &name, node).await?;
    store.index.state_of_new(&session.id).await?;
    if let Some(file) = file {
        store.files.keep(file, &session);
        return Ok(session.created(name, node));
    }
    let record = store.session(session.id.as_str()).await?;
    record
        .map(Created::Known)
        .ok_or_else(|| no_session(&session.id))
}

/// Creates the session's file with the session in it. Returns `None` if the file holds the session
/// already.
async fn file_with(
    store: &SqliteStore,
    session: &NewSession,
    name: &SessionName,
    node: &NodeId,
) -> Result<Option<NewFile>, StoreError> {
    let store_id = store.index.store_id().await?;
    let (first, rest) = rows(session, name, node, &store_id);
    let all = std::iter::once(first).chain(rest).collect();
    let filled = store.files.create_filled(&session.id, name, all).await?;
    if filled.is_some() {
        return Ok(filled);
    }
    let file = store.files.create(&session.id, name).await?;
    let (first, rest) = rows(session, name, node, &store_id);
    let is_new = file.db.all_or_nothing(first, rest).await?;
    Ok(is_new.then_some(file))
}

/// Reserves a name, and adds the session's agents, lease and prompt to the index.
async fn reserve(
    store: &SqliteStore,
    session: &NewSession,
    node: &NodeId,
) -> Result<SessionName, StoreError> {
    let now = Timestamp::now();
    for attempt in 0..NAME_TRIES {
        let name = session
            .name
            .clone()
            .unwrap_or_else(|| make_up_name(attempt));
        match store.index.reserve_new(session, &name, node).await? {
            Reserved::Yes => return Ok(name),
            // Another attempt to create the same session may have chosen other ids for the agents,
            // so the index gets the ids of this attempt too.
            Reserved::Known(name) => {
                let agents = session.agents.iter().map(|agent| &agent.id);
                store.index.add(&session.id, agents, node).await?;
                if let Some(NewInput { id, agent, .. }) = &session.prompt {
                    let inputs = [(id, agent)];
                    let now = Timestamp::now();
                    store.index.pending(&session.id, &inputs, now).await?;
                }
                return Ok(name);
            }
            Reserved::Gone => {}
            Reserved::Taken(by)
                if store
                    .index
                    .abandoned(&by, now.millis() - ABANDONED_MS)
                    .await? =>
            {
                store.index.forget(&by).await?;
            }
            Reserved::Taken(_) if session.name.is_some() => {
                return Err(name_taken(&name));
            }
            Reserved::Taken(_) => {}
        }
    }
    Err(no_free_name())
}

/// Returns the statement that inserts a session unless there is one, and those that insert its
/// agents and its prompt.
fn rows(
    session: &NewSession,
    name: &SessionName,
    node: &NodeId,
    store_id: &str,
) -> (SqliteStatement<'static>, Vec<SqliteStatement<'static>>) {
    const INSERT: &str =
        "INSERT INTO sessions (only, id, store_id, name, state, spec, lead, metadata, max_agents, created_at, updated_at)
        VALUES (1, ?1, ?2, ?3, 'open', ?4, ?5, ?6, ?7, ?8, ?8) ON CONFLICT DO NOTHING";
    let first = query(INSERT)
        .bind(session.id.to_string())
        .bind(store_id.to_owned())
        .bind(name.to_string())
        .bind(json(&session.spec))
        .bind(session.spec.lead.to_string())
        .bind(json(&session.metadata))
        .bind(max_agents(&session.spec.limits))
        .bind(session.at.millis());
    let prompt = session.prompt.iter().map(inbox::insert);
    let rest = std::iter::once(insert_agents(session, node)).chain(prompt);
    (first, rest.collect())
}

fn insert_agents(session: &NewSession, node: &NodeId) -> SqliteStatement<'static> {
    const INSERT: &str = "INSERT INTO agents (id, name, type, role, spec, node_id, incarnation)
        SELECT value->>0, value->>1, value->>2, value->>3, value->>4, ?2, key = 0 FROM json_each(?1) ORDER BY key";
    let rows: Vec<_> = session
        .agents
        .iter()
        .zip(session.agent_names())
        .map(|(NewAgent { id, spec, .. }, name)| {
            let role = role_name(spec.role);
            (id, name, &spec.r#type, role, json(spec))
        })
        .collect();
    query(INSERT).bind(json(&rows)).bind(node.to_string())
}

// Records new members of a running session.

/// The statement that records a member under the first free name in the order of
/// [`crate::records::nth`].
const CREATE: &str = "INSERT INTO agents (id, name, type, role, spec, node_id)
    SELECT ?1, (WITH RECURSIVE tried(n, name) AS (
        SELECT 1, ?2
        UNION ALL SELECT n + 1, substr(?2, 1, 63 - length(n + 1)) || '-' || (n + 1) FROM tried
          WHERE EXISTS (SELECT 1 FROM agents WHERE agents.name = tried.name))
      SELECT name FROM tried ORDER BY n DESC LIMIT 1), ?3, ?4, ?5, ?6
    FROM sessions s JOIN agents l ON l.id = s.lead
    WHERE s.lead = ?7 AND s.state = 'open' AND l.incarnation = ?8 AND s.agents < s.max_agents
    ON CONFLICT (id) DO NOTHING RETURNING name";

/// Adds all members to the index, and then creates them one after the other, because a file has
/// only one writer at a time.
async fn create_agents(
    store: &SqliteStore,
    session: &SessionId,
    members: &[NewMember],
    lead: &LeadIncarnation,
    node: &NodeId,
) -> Result<Vec<AgentCreation>, StoreError> {
    let file = store.file(session).await?;
    let ids = members.iter().map(|member| &member.agent.id);
    store.index.add(session, ids, node).await?;
    let mut outcomes = Vec::with_capacity(members.len());
    for member in members {
        let outcome = match member.refusal() {
            Some(refused) => refused,
            None => create_agent(&file, &member.agent, lead, node).await?,
        };
        if let (AgentCreation::Created { .. }, Some(task)) = (&outcome, &member.task) {
            store.put(session, task.clone()).await?;
        }
        outcomes.push(outcome);
    }
    store.index.leased(session, node).await?;
    Ok(outcomes)
}

async fn create_agent(
    file: &InUse,
    agent: &NewAgent,
    lead: &LeadIncarnation,
    node: &NodeId,
) -> Result<AgentCreation, StoreError> {
    let created = query(CREATE)
        .bind(agent.id.as_str())
        .bind(agent.spec.name.as_str())
        .bind(agent.spec.r#type.as_str())
        .bind(role_name(agent.spec.role))
        .bind(json(&agent.spec))
        .bind(node.as_str())
        .bind(lead.lead.as_str())
        .bind(lead.incarnation);
    match file.db.row(created).await? {
        Some(row) => Ok(AgentCreation::Created {
            lease: HeldLease::FIRST,
            name: file.reader(&row).get("name")?,
        }),
        None => why_not_created(file, &agent.id, lead).await,
    }
}

async fn why_not_created(
    file: &InUse,
    agent: &AgentId,
    wanted: &LeadIncarnation,
) -> Result<AgentCreation, StoreError> {
    if let Some(known) = file.agent(agent).await? {
        return Ok(AgentCreation::Known(Box::new(known)));
    }
    let lead = file.agent(&file.lead).await?;
    if lead.is_none_or(|lead| lead.id != wanted.lead || lead.incarnation != wanted.incarnation) {
        return Ok(AgentCreation::TeamDead);
    }
    const MAX: &str = "SELECT max_agents FROM sessions WHERE state = 'open'";
    let Some(row) = file.db.row(query(MAX)).await? else {
        return Ok(AgentCreation::TeamDead);
    };
    Ok(AgentCreation::Full {
        max: file.reader(&row).get("max_agents")?,
    })
}

// Lists sessions in pages, each with its current activity.

/// The query for the activity of a session and for the rows of its log that describe it. A session is
/// not `failed` once a new turn began, because the latest of the orchestrator's rows that begin or end
/// a turn is then a `turn_start`.
const PREVIEW: &str = "SELECT CASE
  WHEN EXISTS (SELECT 1 FROM agents WHERE state IN ('streaming', 'executing_tools', 'compacting')) THEN 'working'
  WHEN EXISTS (SELECT 1 FROM inputs i JOIN agents a ON a.id = i.agent_id
    WHERE i.outcome IS NULL AND i.turn IS NULL AND a.state <> 'stopped')
    OR EXISTS (SELECT 1 FROM agents WHERE state = 'waiting') THEN 'waiting'
  WHEN (SELECT kind = 'error' OR kind = 'turn_end' AND body->>'outcome' IN ('limit', 'truncated') FROM log
    WHERE agent_id = s.lead AND kind IN ('turn_start', 'turn_end', 'error') AND hidden_by IS NULL
    ORDER BY seq DESC LIMIT 1) THEN 'failed'
  ELSE 'idle' END AS activity,
  (SELECT substr(body, 1, ?2) FROM log WHERE agent_id = s.lead AND kind = 'message' AND hidden_by IS NULL
    AND substr(body, 1, 14) = '{\"role\":\"user\"'
    AND seq <= coalesce((SELECT seq FROM log WHERE agent_id = s.lead ORDER BY seq LIMIT 1 OFFSET ?1), s.next_seq)
    ORDER BY seq LIMIT 1) AS prompt,
  (SELECT substr(body, 1, ?3) FROM log WHERE agent_id = s.lead AND kind = 'message' AND hidden_by IS NULL
    AND substr(body, 1, 19) = '{\"role\":\"assistant\"' AND instr(body, '\"type\":\"text\"')
    AND seq >= coalesce((SELECT seq FROM log WHERE agent_id = s.lead ORDER BY seq DESC LIMIT 1 OFFSET ?1), 0)
    ORDER BY seq DESC LIMIT 1) AS answer,
  (SELECT iif(kind = 'error' OR kind = 'turn_end' AND body->>'outcome' IN ('limit', 'truncated'), substr(body, 1, ?3), NULL) FROM log
    WHERE agent_id = s.lead AND kind IN ('turn_start', 'turn_end', 'error') AND hidden_by IS NULL
    ORDER BY seq DESC LIMIT 1) AS ended
  FROM sessions s";

async fn sessions(store: &SqliteStore, filter: ListSessions) -> Result<Sessions, StoreError> {
    let limit = page::sessions(filter.limit);
    let after = filter.after.as_deref().map(SessionCursor::parse);
    // The query reads one session more than fits, to find out whether another page follows.
    let mut listed = store
        .index
        .page(filter.state, after.transpose()?, limit + 1)
        .await?;
    let size = usize::try_from(limit).unwrap_or(usize::MAX);
    let is_more = listed.len() > size;
    listed.truncate(size);
    let next = listed
        .last()
        .filter(|_| is_more)
        .map(|last| last.cursor().to_string());
    let mut sessions = Vec::with_capacity(listed.len());
    for listed in listed {
        match row_of(store, &listed.id).await {
            Ok(row) => {
                sessions.extend(row.filter(|r| filter.state.is_none_or(|state| state == r.state)));
            }
            Err(error) => {
                tracing::warn!(session = %listed.id, name = %listed.name, %error, "left a session out of the list: its file cannot be read")
            }
        }
    }
    Ok(page::fit(sessions, next))
}

async fn row_of(
    store: &SqliteStore,
    session: &SessionId,
) -> Result<Option<SessionRow>, StoreError> {
    let Some(file) = store.file_if_any(session).await? else {
        return Ok(None);
    };
    let Some(record) = record_in(&file.db).await? else {
        return Ok(None);
    };
    let preview = query(PREVIEW)
        .bind(preview::ROWS)
        .bind(preview::PROMPT)
        .bind(preview::BODY);
    let Some(row) = file.db.row(preview).await? else {
        return Ok(None);
    };
    let row = file.reader(&row);
    let bodies = PreviewBodies {
        prompt: row.get("prompt")?,
        answer: row.get("answer")?,
        end: row.get("ended")?,
    };
    let mut activity = row.named("activity", SessionActivity::find)?;
    if activity == SessionActivity::Working && is_interrupted(store, &file).await? {
        activity = SessionActivity::Interrupted;
    }
    Ok(Some(record.row(SessionPreview::of(activity, bodies))))
}

/// Returns whether the processes of all nodes have ended whose agents are at work according to the
/// file. A process that was killed could not write that they are not.
async fn is_interrupted(store: &SqliteStore, file: &InUse) -> Result<bool, StoreError> {
    const AT_WORK: &str = "SELECT DISTINCT node_id FROM agents
        WHERE state IN ('streaming', 'executing_tools', 'compacting') AND node_id IS NOT NULL";
    for row in file.db.rows(query(AT_WORK)).await? {
        let node = file.reader(&row).parse::<NodeId>("node_id")?;
        if lock::lives(&store.folder, &node)? {
            return Ok(false);
        }
    }
    Ok(true)
}
