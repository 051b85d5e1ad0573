//! Records a new session with one statement.

use planck_common::{NodeId, SessionName, event::json};

use super::find;
use crate::{
    Created, NewAgent, NewSession, StoreError, name,
    postgres::database::{Database, PgStatement},
    refusal, stored,
};

const CREATE: &str = "
WITH s AS (INSERT INTO sessions (id, name, team_id, lead, spec, metadata, agents, created_at, updated_at)
  SELECT $1, $2, $3, $4, $5, $6, cardinality($9::text[]), $7, $7 ON CONFLICT DO NOTHING RETURNING id),
a AS (INSERT INTO agents (session_id, id, name, type, role, spec, node_id, incarnation)
  SELECT s.id, a.id, a.name, a.type, a.role, a.spec, $8, CASE WHEN a.id = $4 THEN 1 ELSE 0 END
  FROM s, unnest($9::text[], $10::text[], $11::text[], $12::text[], $13::text[]) WITH ORDINALITY AS a(id, name, type, role, spec, n) ORDER BY a.n),
i AS (INSERT INTO inputs (session_id, id, agent_id, kind, mode, sender_name, content, fresh, at, head)
  SELECT s.id, $14, $15, $16, $17, $18, $19, $20, $21, 0 FROM s WHERE $14::text IS NOT NULL)
SELECT id FROM s";

pub async fn create(
    database: &Database,
    session: NewSession,
    node: &NodeId,
) -> Result<Created, StoreError> {
    session.check()?;
    for attempt in 0..name::TRIES {
        let name = session
            .name
            .clone()
            .unwrap_or_else(|| name::make_up(attempt));
        let inserted = database
            .optional(insert(&session, &name, node))
            .await?
            .is_some();
        if inserted {
            return Ok(session.created(name, node));
        }
        match find(database, &session.id).await? {
            Some(record) if record.id == session.id => return Ok(Created::Known(record)),
            Some(_) | None if session.name.is_some() => {
                return Err(refusal::name_taken(&name));
            }
            Some(_) | None => {}
        }
    }
    Err(refusal::no_free_name())
}

fn insert<'q>(session: &NewSession, name: &SessionName, node: &NodeId) -> PgStatement<'q> {
    let statement = sqlx::query(CREATE)
        .bind(session.id.to_string())
        .bind(name.to_string())
        .bind(session.spec.team_id.to_string())
        .bind(session.spec.lead.to_string())
        .bind(json(&session.spec))
        .bind(json(&session.metadata))
        .bind(session.at.millis())
        .bind(node.to_string());
    bind_prompt(bind_agents(statement, session), session)
}

fn bind_agents<'q>(statement: PgStatement<'q>, session: &NewSession) -> PgStatement<'q> {
    let column =
        |value: fn(&NewAgent) -> String| session.agents.iter().map(value).collect::<Vec<_>>();
    statement
        .bind(column(|agent| agent.id.to_string()))
        .bind(session.agent_names())
        .bind(column(|agent| agent.spec.r#type.clone()))
        .bind(column(|agent| {
            stored::role_name(agent.spec.role).to_owned()
        }))
        .bind(column(|agent| json(&agent.spec)))
}

fn bind_prompt<'q>(statement: PgStatement<'q>, session: &NewSession) -> PgStatement<'q> {
    let prompt = session.prompt.as_ref();
    statement
        .bind(prompt.map(|prompt| prompt.id.to_string()))
        .bind(prompt.map(|prompt| prompt.agent.to_string()))
        .bind(prompt.map(|prompt| prompt.kind.name()))
        .bind(prompt.map(|prompt| prompt.mode.name()))
        .bind(prompt.and_then(|prompt| prompt.sender_name().map(str::to_owned)))
        .bind(prompt.map(|prompt| prompt.content.clone()))
        .bind(prompt.is_some_and(|prompt| prompt.fresh))
        .bind(prompt.map(|prompt| prompt.at.millis()))
}
