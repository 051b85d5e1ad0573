//! Rewinding, in one statement.

use planck_common::{
    AgentId, Seq, SessionId, Timestamp,
    event::{self, json},
};
use sqlx::query;

use super::{SqliteStore, decode::Reader, fault::Fault, files::InUse};
use crate::store::{Rewound, StoreError};

const REWIND: &str = "INSERT INTO rewind (epoch, first, at, body) VALUES (?1, ?2, ?3, ?4)";

impl SqliteStore {
    pub(super) async fn rewind_to(
        &self,
        session: &SessionId,
        epoch: i64,
        to: Seq,
        by: &str,
    ) -> Result<Rewound, StoreError> {
        let file = self.file(session).await?;
        let body = json(&event::Rewound {
            to,
            by: by.to_owned(),
        });
        let statement = query(REWIND)
            .bind(epoch)
            .bind(to)
            .bind(Timestamp::now().millis())
            .bind(body.as_str());
        match file.db.execute(statement).await {
            Ok(_) => {}
            Err(Fault::Aborted(why)) if why == "no_message" => {
                return Err(StoreError::BadRequest(format!(
                    "{to} is the id of no message"
                )));
            }
            Err(Fault::Aborted(_)) => return already(&file, epoch, &body).await,
            Err(fault) => return Err(fault.into()),
        }
        let head = rewound_at(&file, epoch, &body).await?;
        outcome(
            &file,
            head.ok_or_else(|| StoreError::StaleEpoch(file.lead.to_string()))?,
        )
        .await
    }
}

/// A rewind whose answer was lost may have been carried out, if nothing moved the lease since.
async fn already(file: &InUse, epoch: i64, body: &str) -> Result<Rewound, StoreError> {
    let stale = || StoreError::StaleEpoch(file.lead.to_string());
    outcome(
        file,
        rewound_at(file, epoch, body).await?.ok_or_else(stale)?,
    )
    .await
}

async fn rewound_at(file: &InUse, epoch: i64, body: &str) -> Result<Option<Seq>, StoreError> {
    const FIND: &str = "SELECT l.seq FROM log l JOIN agents a ON a.id = l.agent_id
        WHERE l.agent_id = ?1 AND l.epoch = ?2 + 1 AND a.epoch = ?2 + 1 AND l.kind = 'rewound' AND l.body = ?3";
    let row = file
        .db
        .row(query(FIND).bind(file.lead.as_str()).bind(epoch).bind(body))
        .await?;
    row.map(|row| {
        Reader {
            row: &row,
            path: file.db.path(),
        }
        .get("seq")
    })
    .transpose()
}

async fn outcome(file: &InUse, head: Seq) -> Result<Rewound, StoreError> {
    const UNBORN: &str = "SELECT body->>'id' AS id FROM log WHERE hidden_by = ?1 AND kind = 'worker_spawned' ORDER BY seq";
    let path = file.db.path();
    let agents = file
        .db
        .rows(query("SELECT id, epoch FROM agents ORDER BY n"))
        .await?;
    let unborn = file.db.rows(query(UNBORN).bind(head)).await?;
    let agent = |row| {
        let row = Reader { row, path };
        Ok((row.agent_id("id")?, row.get("epoch")?))
    };
    let unborn: Result<Vec<AgentId>, StoreError> = unborn
        .iter()
        .map(|row| Reader { row, path }.agent_id("id"))
        .collect();
    Ok(Rewound {
        head,
        agents: agents
            .iter()
            .map(agent)
            .collect::<Result<_, StoreError>>()?,
        unborn: unborn?,
    })
}
