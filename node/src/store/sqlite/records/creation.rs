//! Records a new session: reserves its name in the index and then creates its file.

use planck_common::{NodeId, SessionName, Timestamp, event::json};
use sqlx::query;

use crate::store::{
    Created, NewAgent, NewInput, NewSession, SessionRecords as _, StoreError, max_agents, name,
    refusal,
    sqlite::{SqliteStore, db::SqliteStatement, inbox, index::Reserved, records::record_in},
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
    let file = store.files.create(&session.id, &name).await?;
    let first = insert(store, &session, &name).await?;
    let is_new = file.db.all_or_nothing(first, rest(&session, node)).await?;
    store.index.state_of_new(&session.id).await?;
    let missing = || refusal::no_session(&session.id);
    if is_new {
        let record = record_in(&file.db).await?.ok_or_else(missing)?;
        store.files.keep(file, &session);
        return Ok(Created::New(record));
    }
    drop(file);
    let record = store.session(session.id.as_str()).await?;
    record.ok_or_else(missing).map(Created::Known)
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

async fn insert(
    store: &SqliteStore,
    session: &NewSession,
    name: &SessionName,
) -> Result<SqliteStatement<'static>, StoreError> {
    const INSERT: &str =
        "INSERT INTO sessions (only, id, store_id, name, state, spec, lead, metadata, max_agents, created_at, updated_at)
        VALUES (1, ?1, ?2, ?3, 'open', ?4, ?5, ?6, ?7, ?8, ?8) ON CONFLICT DO NOTHING";
    Ok(query(INSERT)
        .bind(session.id.to_string())
        .bind(store.index.store_id().await?)
        .bind(name.to_string())
        .bind(json(&session.spec))
        .bind(session.spec.lead.to_string())
        .bind(json(&session.metadata))
        .bind(max_agents(&session.spec.limits))
        .bind(session.at.millis()))
}

fn rest(session: &NewSession, node: &NodeId) -> Vec<SqliteStatement<'static>> {
    let names = session.agent_names();
    let agents = session.agents.iter().zip(names).enumerate();
    let agents =
        agents.map(|(n, (agent, name))| insert_agent(agent, &name, node, i64::from(n == 0)));
    agents
        .chain(session.prompt.iter().map(inbox::insert))
        .collect()
}

fn insert_agent(
    agent: &NewAgent,
    name: &str,
    node: &NodeId,
    incarnation: i64,
) -> SqliteStatement<'static> {
    const INSERT: &str = "INSERT INTO agents (id, name, type, role, spec, node_id, incarnation)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    query(INSERT)
        .bind(agent.id.to_string())
        .bind(name.to_owned())
        .bind(agent.spec.r#type.clone())
        .bind(stored::role_name(agent.spec.role))
        .bind(json(&agent.spec))
        .bind(node.to_string())
        .bind(incarnation)
}
