//! Rewinds a session with one statement.

use planck_common::{
    Seq, Timestamp,
    event::{self, json},
};
use planck_migrations::SQLITE_REWIND;
use sqlx::query;

use crate::{
    RewindOutcome, StoreError, refusal,
    sqlite::{
        fault::{Abort, SqliteFault},
        files::InUse,
    },
};

const REWIND: &str = "INSERT INTO rewind (epoch, first, at, body) VALUES (?1, ?2, ?3, ?4)";

pub async fn rewind(
    file: &InUse,
    epoch: i64,
    to: Seq,
    by: &str,
) -> Result<RewindOutcome, StoreError> {
    let body = json(&event::Rewound {
        to,
        by: by.to_owned(),
    });
    let statement = query(REWIND)
        .bind(epoch)
        .bind(to)
        .bind(Timestamp::now().millis())
        .bind(body.as_str());
    let create_trigger = query(SQLITE_REWIND).persistent(false);
    file.db.execute(create_trigger).await?;
    match file.db.execute(statement).await {
        Ok(_) => {}
        Err(SqliteFault::Aborted(Abort::NoMessage)) => {
            return Err(refusal::no_message(to, &file.id));
        }
        // The answer to an earlier attempt may have been lost, so the rewind may already be carried
        // out.
        Err(SqliteFault::Aborted(_)) => {}
        Err(fault) => return Err(fault.into()),
    }
    match rewound_at(file, epoch, &body).await? {
        Some(head) => outcome(file, head).await,
        None => Err(refusal::stale_lead(&file.id)),
    }
}

/// Returns the row of this rewind if it was carried out and the orchestrator's lease has not
/// changed hands since.
async fn rewound_at(file: &InUse, epoch: i64, body: &str) -> Result<Option<Seq>, StoreError> {
    const FIND: &str = "SELECT l.seq FROM log l JOIN agents a ON a.id = l.agent_id
        WHERE l.agent_id = ?1 AND l.epoch = ?2 + 1 AND a.epoch = ?2 + 1 AND l.kind = 'rewound' AND l.body = ?3";
    let row = file
        .db
        .row(query(FIND).bind(file.lead.as_str()).bind(epoch).bind(body))
        .await?;
    row.map(|row| file.reader(&row).get("seq")).transpose()
}

async fn outcome(file: &InUse, head: Seq) -> Result<RewindOutcome, StoreError> {
    const STOPPED: &str = "SELECT body->>'id' AS id FROM log WHERE hidden_by = ?1 AND kind = 'worker_spawned' ORDER BY seq";
    let agents = file
        .db
        .rows(query("SELECT id, epoch FROM agents ORDER BY n"))
        .await?;
    let stopped = file.db.rows(query(STOPPED).bind(head)).await?;
    let agent = |row| {
        let row = file.reader(row);
        Ok::<_, StoreError>((row.parse("id")?, row.get("epoch")?))
    };
    Ok(RewindOutcome {
        head,
        agents: agents.iter().map(agent).collect::<Result<_, _>>()?,
        stopped: stopped
            .iter()
            .map(|row| file.reader(row).parse("id"))
            .collect::<Result<_, _>>()?,
    })
}
