//! Births: agents that come to be together, in one statement.

use planck_common::{NodeId, SessionId, event::json};

use super::{
    Birth, Lease, Newborn, StoreError, Under,
    append::column,
    database::{Database, Statement},
    lease::find_agent,
    rows::{self, Columns},
};

/// Unless the session's limits say so.
const MAX_AGENTS: i32 = 1_000;

const BIRTHS: &str = "
WITH b AS MATERIALIZED (SELECT * FROM planck_births($1, $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $2, $3, $4, $5)),
i AS (INSERT INTO inputs (session_id, id, agent_id, kind, mode, sender, sender_name, content, at, head)
  SELECT $1, t.task, t.agent, 'task', 'queue', t.sender, t.sender_name, t.content, t.at, (SELECT next_seq - 1 FROM sessions WHERE id = $1)
  FROM b JOIN unnest($6::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::bigint[])
    WITH ORDINALITY AS t(agent, task, sender, sender_name, content, at, n) USING (n)
  WHERE b.verdict = 'born' AND t.task IS NOT NULL ORDER BY n ON CONFLICT DO NOTHING)
SELECT verdict, detail, most FROM b ORDER BY n";

pub async fn births(
    database: &Database,
    session: &SessionId,
    born: &[Newborn],
    under: &Under,
    node: &NodeId,
) -> Result<Vec<Birth>, StoreError> {
    match state(database, session, born, under, node).await? {
        Ok(births) => Ok(births),
        Err(refusal) if born.len() == 1 => Ok(vec![Birth::Refused(refusal)]),
        // One by one, so that only whose data it is has to bear it.
        Err(_) => {
            let mut births = Vec::with_capacity(born.len());
            for one in born {
                let birth =
                    state(database, session, std::slice::from_ref(one), under, node).await?;
                births.extend(birth.unwrap_or_else(|refusal| vec![Birth::Refused(refusal)]));
            }
            Ok(births)
        }
    }
}

/// The statement. The inner error is the server's refusal of the data.
async fn state(
    database: &Database,
    session: &SessionId,
    born: &[Newborn],
    under: &Under,
    node: &NodeId,
) -> Result<Result<Vec<Birth>, String>, StoreError> {
    let statement = sqlx::query(BIRTHS)
        .bind(session.as_str())
        .bind(under.lead.as_str())
        .bind(under.incarnation)
        .bind(node.as_str())
        .bind(MAX_AGENTS);
    let rows = match database
        .try_all(bind_tasks(bind_agents(statement, born), born))
        .await
    {
        Ok(rows) => rows,
        Err(failed) => {
            return failed
                .refused_data()
                .map(Err)
                .ok_or_else(|| failed.into_error());
        }
    };
    let mut births = Vec::with_capacity(born.len());
    for (row, Newborn { agent, .. }) in rows.iter().zip(born) {
        let row = Columns(row);
        births.push(match row.get::<&str>("verdict")? {
            "born" => Birth::Born {
                lease: Lease {
                    epoch: 1,
                    last_seq: 0,
                    incarnation: 0,
                },
                name: row.get("detail")?,
            },
            "known" => match find_agent(database, &agent.id).await? {
                Some(record) if record.session == *session => Birth::Known(Box::new(record)),
                Some(_) | None => {
                    Birth::Refused(format!("no agent {} in session {session}", agent.id))
                }
            },
            "team_dead" => Birth::TeamDead,
            "full" => Birth::Full {
                max: row.count("most")?,
            },
            other => {
                return Err(StoreError::Broken(format!(
                    "unknown verdict `{other}` of the database"
                )));
            }
        });
    }
    Ok(Ok(births))
}

fn bind_agents<'q>(statement: Statement<'q>, born: &[Newborn]) -> Statement<'q> {
    statement
        .bind(column(born, |born| born.agent.id.as_str()))
        .bind(column(born, |born| born.agent.spec.name.as_str()))
        .bind(column(born, |born| born.agent.spec.r#type.as_str()))
        .bind(column(born, |born| rows::role_name(born.agent.spec.role)))
        .bind(column(born, |born| json(&born.agent.spec)))
}

fn bind_tasks<'q>(statement: Statement<'q>, born: &[Newborn]) -> Statement<'q> {
    let sender = |born: &Newborn| born.task.as_ref().and_then(|task| task.sender.clone());
    statement
        .bind(column(born, |born| {
            born.task.as_ref().map(|task| task.id.as_str())
        }))
        .bind(column(born, |born| {
            sender(born).map(|sender| sender.id.to_string())
        }))
        .bind(column(born, |born| sender(born).map(|sender| sender.name)))
        .bind(column(born, |born| {
            born.task.as_ref().map(|task| task.content.as_str())
        }))
        .bind(column(born, |born| {
            born.task.as_ref().map(|task| task.at.millis())
        }))
}
