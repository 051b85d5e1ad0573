//! Records a new session: reserves its name in the index and then creates its file.

use planck_common::{NodeId, SessionName, Timestamp, event::json};
use sqlx::query;

use crate::{
    Created, NewAgent, NewInput, NewSession, SessionRecords as _, StoreError, max_agents, name,
    refusal,
    sqlite::{SqliteStore, db::SqliteStatement, files::NewFile, inbox, index::Reserved},
    stored,
};

/// How long, in milliseconds, a name stays reserved for a session whose file was not created.
const ABANDONED_MS: i64 = 60_000;

pub async fn create(
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
        .ok_or_else(|| refusal::no_session(&session.id))
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
    for attempt in 0..name::TRIES {
        let name = session
            .name
            .clone()
            .unwrap_or_else(|| name::make_up(attempt));
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
                return Err(refusal::name_taken(&name));
            }
            Reserved::Taken(_) => {}
        }
    }
    Err(refusal::no_free_name())
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
    let rest = std::iter::once(agents(session, node)).chain(prompt);
    (first, rest.collect())
}

fn agents(session: &NewSession, node: &NodeId) -> SqliteStatement<'static> {
    const INSERT: &str = "INSERT INTO agents (id, name, type, role, spec, node_id, incarnation)
        SELECT value->>0, value->>1, value->>2, value->>3, value->>4, ?2, key = 0 FROM json_each(?1) ORDER BY key";
    let rows: Vec<_> = session
        .agents
        .iter()
        .zip(session.agent_names())
        .map(|(NewAgent { id, spec, .. }, name)| {
            let role = stored::role_name(spec.role);
            (id, name, &spec.r#type, role, json(spec))
        })
        .collect();
    query(INSERT).bind(json(&rows)).bind(node.to_string())
}
