//! Converts rows of the tables to the types of this crate.

use planck_common::{
    Seq, Timestamp,
    command::{InputMode, SessionActivity},
    event::InputKind,
    message::Sender,
    usage::Usage,
};
use serde::de::DeserializeOwned;
use sqlx::{Row as _, postgres::PgRow};

use super::database::classify;
use crate::{
    AgentRecord, InputOutcome, NewInput, SessionRecord, StoreError, StoredInput,
    glance::{Glance, Traces},
    stored,
};

/// A row whose columns are read by name.
pub struct Columns<'r>(pub &'r PgRow);

impl Columns<'_> {
    pub fn get<'a, T>(&'a self, name: &str) -> Result<T, StoreError>
    where
        T: sqlx::Decode<'a, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        self.0.try_get(name).map_err(|error| classify(&error))
    }

    pub fn count(&self, name: &str) -> Result<u32, StoreError> {
        Ok(u32::try_from(self.get::<i32>(name)?).unwrap_or(0))
    }

    /// Parses a column that this store wrote as text.
    pub fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(
        &self,
        name: &str,
    ) -> Result<T, StoreError> {
        self.get::<&str>(name)?
            .parse()
            .map_err(|error| unreadable(name, &error))
    }

    pub fn parse_optional<T: std::str::FromStr<Err: std::fmt::Display>>(
        &self,
        name: &str,
    ) -> Result<Option<T>, StoreError> {
        let text = self.get::<Option<&str>>(name)?;
        text.map(|text| text.parse().map_err(|error| unreadable(name, &error)))
            .transpose()
    }

    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T, StoreError> {
        serde_json::from_str(self.get(name)?).map_err(|error| unreadable(name, &error))
    }

    /// Converts a column to a value of a closed set with `find`. Returns an error for an unknown
    /// value, which a newer version may have written.
    pub fn named<T>(&self, name: &str, find: impl Fn(&str) -> Option<T>) -> Result<T, StoreError> {
        let text = self.get::<&str>(name)?;
        find(text).ok_or_else(|| unreadable(name, &format!("unknown `{text}`")))
    }

    pub fn time(&self, name: &str) -> Result<Timestamp, StoreError> {
        self.get(name).map(Timestamp::from_millis)
    }

    pub fn usage(&self) -> Result<Usage, StoreError> {
        let tokens =
            |name: &str| Ok::<_, StoreError>(u64::try_from(self.get::<i64>(name)?).unwrap_or(0));
        Ok(Usage {
            input_tokens: tokens("input_tokens")?,
            output_tokens: tokens("output_tokens")?,
            cache_read_tokens: tokens("cache_read_tokens")?,
            cache_write_tokens: tokens("cache_write_tokens")?,
            cost_usd: self.get("cost_usd")?,
        })
    }
}

fn unreadable(column: &str, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Broken(format!(
        "cannot read column {column} of the database: {error}"
    ))
}

/// Returns the error for a result of an SQL function that this version does not know.
pub fn unknown_verdict(verdict: &str) -> StoreError {
    StoreError::Broken(format!("unknown verdict `{verdict}` of the database"))
}

/// The columns that [`session`] reads, from `sessions s` and the orchestrator's row `l`.
pub const SESSION: &str = "s.id, s.name, s.state, s.spec, s.metadata, s.next_seq, s.agents, s.input_tokens, s.output_tokens, \
s.cache_read_tokens, s.cache_write_tokens, s.cost_usd, s.created_at, s.updated_at, l.node_id AS owner";

pub fn session(row: &PgRow) -> Result<SessionRecord, StoreError> {
    let row = Columns(row);
    Ok(SessionRecord {
        id: row.parse("id")?,
        name: row.parse("name")?,
        state: row.named("state", stored::session_state)?,
        spec: row.json("spec")?,
        head: row.get::<Seq>("next_seq")? - 1,
        agents: row.count("agents")?,
        totals: row.usage()?,
        metadata: row.json("metadata")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
        owner: row.parse_optional("owner")?,
    })
}

pub fn session_row(row: &PgRow) -> Result<planck_common::command::SessionRow, StoreError> {
    let columns = Columns(row);
    let activity = columns.named("activity", SessionActivity::find)?;
    let traces = Traces {
        prompt: columns.get("prompt")?,
        answer: columns.get("answer")?,
        end: columns.get("ended")?,
    };
    Ok(session(row)?.row(Glance::of(activity, traces)))
}

pub fn agent(row: &PgRow) -> Result<AgentRecord, StoreError> {
    let row = Columns(row);
    let mut spec: planck_common::spec::AgentSpec = row.json("spec")?;
    spec.name = row.get("name")?;
    Ok(AgentRecord {
        session: row.parse("session_id")?,
        id: row.parse("id")?,
        team: row.parse("team_id")?,
        spec,
        state: row.named("state", stored::agent_state)?,
        totals: row.usage()?,
        node: row.parse_optional("node_id")?,
        epoch: row.get("epoch")?,
        last_seq: row.get("last_seq")?,
        incarnation: row.get("incarnation")?,
    })
}

pub fn input(row: &PgRow) -> Result<StoredInput, StoreError> {
    let row = Columns(row);
    let input = NewInput {
        id: row.parse("id")?,
        agent: row.parse("agent_id")?,
        kind: row.named("kind", InputKind::find)?,
        mode: row.named("mode", InputMode::find)?,
        sender: sender(&row)?,
        by: author(&row)?,
        reply_to: row.parse_optional("reply_to")?,
        content: row.get("content")?,
        fresh: row.get("fresh")?,
        at: row.time("at")?,
    };
    Ok(StoredInput {
        input,
        head: row.get("head")?,
        turn: row
            .get::<Option<i32>>("turn")?
            .and_then(|turn| u32::try_from(turn).ok()),
        outcome: outcome(&row, "outcome")?,
        answer: row.get("answer")?,
        waiting: row.get("waiting")?,
    })
}

/// Reads the outcome of an input from the named column.
pub fn outcome(row: &Columns<'_>, column: &str) -> Result<Option<InputOutcome>, StoreError> {
    Ok(row.get::<Option<&str>>(column)?.map(InputOutcome::from))
}

/// Returns the name of who sent a prompt. The column holds it if no agent is the sender.
fn author(row: &Columns<'_>) -> Result<Option<String>, StoreError> {
    match row.get::<Option<&str>>("sender")? {
        Some(_) => Ok(None),
        None => row.get("sender_name"),
    }
}

pub fn sender(row: &Columns<'_>) -> Result<Option<Sender>, StoreError> {
    let name: Option<String> = row.get("sender_name")?;
    let id = row.parse_optional("sender")?;
    Ok(id.map(|id| Sender {
        id,
        name: name.unwrap_or_default(),
    }))
}
