//! Leases of agents: claim, release, and who should be looked after.

use planck_common::{
    AgentId, NodeId, SessionId,
    event::{WorkerExit, json},
    spec::AgentSpec,
};
use sqlx::postgres::PgRow;

use super::{
    AgentRecord, Claim, Lease, NAMESAKES, StoreError, Stray,
    database::Database,
    rows::{self, Columns},
};

/// Columns are named one by one: a statement that was prepared with `*` fails when a newer node
/// adds one.
macro_rules! agents {
    ($which:literal) => {
        concat!(
            "SELECT a.session_id, a.id, a.name, a.spec, a.state, a.input_tokens, a.output_tokens, a.cache_read_tokens, ",
            "a.cache_write_tokens, a.cost_usd, a.node_id, a.epoch, a.last_seq, a.incarnation, s.team_id ",
            "FROM agents a JOIN sessions s ON s.id = a.session_id ",
            $which
        )
    };
}

const AGENT: &str = agents!("WHERE a.id = $1");
const AGENTS: &str = agents!("WHERE a.session_id = $1 ORDER BY a.born");

const NAMED: &str = agents!("WHERE a.session_id = $1 AND (a.id = $2 OR a.name = $2)");
const TYPED: &str = agents!(
    "WHERE a.session_id = $1 AND a.type = $2 ORDER BY a.state = 'stopped', a.born LIMIT $3"
);

const CLAIM_LEAD: &str = "
UPDATE agents SET node_id = $4, epoch = epoch + 1, incarnation = incarnation + $5
WHERE session_id = $1 AND id = $2 AND epoch = $3 RETURNING epoch, last_seq, incarnation";

const CLAIM_MEMBER: &str = "
WITH lead AS MATERIALIZED (SELECT 1 FROM agents WHERE session_id = $1 AND id = $5 AND incarnation = $6 FOR SHARE)
UPDATE agents a SET node_id = $4, epoch = a.epoch + 1 FROM lead
WHERE a.session_id = $1 AND a.id = $2 AND a.epoch = $3 RETURNING a.epoch, a.last_seq, a.incarnation";

/// A claim whose answer was lost.
const CLAIMED: &str = "
SELECT epoch, last_seq, incarnation FROM agents WHERE session_id = $1 AND id = $2 AND epoch = $3 + 1 AND node_id = $4";

const RESPEC: &str =
    "UPDATE agents SET spec = $4 WHERE session_id = $1 AND id = $2 AND epoch = $3 RETURNING 1";

const EXITS: &str = "
SELECT a.id, a.name, coalesce((SELECT l.body::json ->> 'reason' FROM log l
  WHERE l.session_id = $1 AND l.agent_id = a.id AND l.kind = 'agent_stopped' ORDER BY l.seq DESC LIMIT 1), 'stopped') AS reason
FROM agents a JOIN sessions s ON s.id = a.session_id AND s.lead <> a.id
WHERE a.session_id = $1 AND a.state = 'stopped' AND NOT EXISTS (SELECT 1 FROM log l
  WHERE l.session_id = $1 AND l.agent_id = s.lead AND l.body::json ->> 'id' = a.id
    AND (l.kind = 'worker_exit' OR l.kind = 'worker_spawned' AND l.hidden_by IS NOT NULL))
ORDER BY a.born";

const SWEEP: &str = "
SELECT session_id, id, node_id, epoch FROM agents WHERE node_id <> ALL ($1)
UNION ALL SELECT DISTINCT a.session_id, a.id, a.node_id, a.epoch FROM inputs i JOIN agents a ON a.session_id = i.session_id AND a.id = i.agent_id
WHERE i.outcome IS NULL AND i.turn IS NULL AND (a.node_id IS NULL OR a.node_id = ANY ($1)) AND a.state <> 'stopped'";

const HELD: &str = "SELECT session_id, id, node_id, epoch FROM agents WHERE node_id = $1";

pub async fn find_agent(
    database: &Database,
    agent: &AgentId,
) -> Result<Option<AgentRecord>, StoreError> {
    database
        .optional(sqlx::query(AGENT).bind(agent.as_str()))
        .await?
        .as_ref()
        .map(rows::agent)
        .transpose()
}

pub async fn agents(
    database: &Database,
    session: &SessionId,
) -> Result<Vec<AgentRecord>, StoreError> {
    let found = database
        .all(sqlx::query(AGENTS).bind(session.as_str()))
        .await?;
    found.iter().map(rows::agent).collect()
}

pub async fn meant(
    database: &Database,
    session: &SessionId,
    text: &str,
) -> Result<Vec<AgentRecord>, StoreError> {
    let mut found = database
        .all(sqlx::query(NAMED).bind(session.as_str()).bind(text))
        .await?;
    let mut meant = found
        .iter()
        .map(rows::agent)
        .collect::<Result<Vec<_>, _>>()?;
    if !meant.iter().any(AgentRecord::is_there) {
        found = database
            .all(
                sqlx::query(TYPED)
                    .bind(session.as_str())
                    .bind(text)
                    .bind(i64::from(NAMESAKES)),
            )
            .await?;
        meant.extend(
            found
                .iter()
                .map(rows::agent)
                .collect::<Result<Vec<_>, _>>()?,
        );
    }
    Ok(meant)
}

pub async fn claim(
    database: &Database,
    session: &SessionId,
    agent: &AgentId,
    seen: i64,
    claim: Claim,
    node: &NodeId,
) -> Result<Option<Lease>, StoreError> {
    let text = match &claim {
        Claim::Lead { .. } => CLAIM_LEAD,
        Claim::Member(_) => CLAIM_MEMBER,
    };
    let statement = sqlx::query(text)
        .bind(session.as_str())
        .bind(agent.as_str())
        .bind(seen)
        .bind(node.as_str());
    let statement = match &claim {
        Claim::Lead { after_death } => statement.bind(i64::from(*after_death)),
        Claim::Member(under) => statement.bind(under.lead.as_str()).bind(under.incarnation),
    };
    let mut claimed = database.optional(statement).await?;
    if claimed.is_none() {
        let before = sqlx::query(CLAIMED)
            .bind(session.as_str())
            .bind(agent.as_str())
            .bind(seen)
            .bind(node.as_str());
        claimed = database.optional(before).await?;
    }
    claimed.as_ref().map(lease).transpose()
}

fn lease(row: &PgRow) -> Result<Lease, StoreError> {
    let row = Columns(row);
    Ok(Lease {
        epoch: row.get("epoch")?,
        last_seq: row.get("last_seq")?,
        incarnation: row.get("incarnation")?,
    })
}

pub async fn release(
    database: &Database,
    session: &SessionId,
    agent: &AgentId,
    epoch: i64,
    stopped: bool,
) -> Result<(), StoreError> {
    let statement = sqlx::query("SELECT planck_release($1, $2, $3, $4) AS verdict");
    let statement = statement
        .bind(session.as_str())
        .bind(agent.as_str())
        .bind(epoch)
        .bind(stopped);
    let row = database.one(statement).await?;
    match Columns(&row).get::<&str>("verdict")? {
        "released" => Ok(()),
        "not_found" => Err(StoreError::NotFound(format!(
            "no agent {agent} in session {session}"
        ))),
        "stale_epoch" => Err(StoreError::StaleEpoch(agent.to_string())),
        other => Err(StoreError::Broken(format!(
            "unknown verdict `{other}` of the database"
        ))),
    }
}

pub async fn respec(
    database: &Database,
    session: &SessionId,
    agent: &AgentId,
    epoch: i64,
    spec: &AgentSpec,
) -> Result<(), StoreError> {
    let statement = sqlx::query(RESPEC)
        .bind(session.as_str())
        .bind(agent.as_str())
        .bind(epoch)
        .bind(json(spec));
    if database.optional(statement).await?.is_some() {
        return Ok(());
    }
    match find_agent(database, agent).await? {
        Some(_) => Err(StoreError::StaleEpoch(agent.to_string())),
        None => Err(StoreError::NotFound(format!(
            "no agent {agent} in session {session}"
        ))),
    }
}

pub async fn untold_exits(
    database: &Database,
    session: &SessionId,
) -> Result<Vec<WorkerExit>, StoreError> {
    let found = database
        .all(sqlx::query(EXITS).bind(session.as_str()))
        .await?;
    let exit = |row| {
        let row = Columns(row);
        Ok(WorkerExit {
            id: row.parse("id")?,
            name: row.get("name")?,
            reason: row.get("reason")?,
        })
    };
    found.iter().map(exit).collect()
}

pub async fn sweep(database: &Database, alive: &[NodeId]) -> Result<Vec<Stray>, StoreError> {
    let alive: Vec<&str> = alive.iter().map(NodeId::as_str).collect();
    let found = database.all(sqlx::query(SWEEP).bind(alive)).await?;
    found.iter().map(stray).collect()
}

pub async fn held(database: &Database, node: &NodeId) -> Result<Vec<Stray>, StoreError> {
    let found = database.all(sqlx::query(HELD).bind(node.as_str())).await?;
    found.iter().map(stray).collect()
}

fn stray(row: &PgRow) -> Result<Stray, StoreError> {
    let row = Columns(row);
    Ok(Stray {
        session: row.parse("session_id")?,
        agent: row.parse("id")?,
        node: row.parse_optional("node_id")?,
        epoch: row.get("epoch")?,
    })
}
