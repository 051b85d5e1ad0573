//! Converts rows to the types of this crate. A value that cannot be parsed means that the file is
//! damaged.

use std::path::Path;

use planck_common::{
    AgentId, InputId, NodeId, SessionId, SessionName, TeamId, Timestamp,
    command::{AgentState, InputMode, SessionActivity, SessionState},
    envelope::EventPlace,
    event::{EventKind, InputKind},
    message::Sender,
    spec::{AgentSpec, SessionSpec},
    usage::Usage,
};
use serde::de::DeserializeOwned;
use sqlx::{Decode, Row, Sqlite, Type, sqlite::SqliteRow};

use super::fault;
use crate::{
    AgentRecord, InputOutcome, LogRow, NewInput, SessionRecord, StoreError, StoredInput, stored,
};

/// A row, with the path of its file for error messages.
#[derive(Clone, Copy)]
pub struct RowReader<'a> {
    pub row: &'a SqliteRow,
    pub path: &'a Path,
}

impl<'a> RowReader<'a> {
    pub fn get<T: Decode<'a, Sqlite> + Type<Sqlite>>(&self, column: &str) -> Result<T, StoreError> {
        self.row
            .try_get(column)
            .map_err(|error| self.broken(column, error))
    }

    /// Parses a text column. Reports the file as damaged if `parse` fails.
    pub fn parse<T, E: std::fmt::Display>(
        &self,
        column: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<T, StoreError> {
        parse(self.get(column)?).map_err(|error| self.broken(column, error))
    }

    pub fn parse_optional<T, E: std::fmt::Display>(
        &self,
        column: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, StoreError> {
        let text: Option<&str> = self.get(column)?;
        text.map(parse)
            .transpose()
            .map_err(|error| self.broken(column, error))
    }

    /// Converts a text column to a value of a closed set with `find`.
    fn find<T>(&self, column: &str, find: impl Fn(&str) -> Option<T>) -> Result<T, StoreError> {
        self.parse(column, |text| find(text).ok_or("an unknown name"))
    }

    fn json<T: DeserializeOwned>(&self, column: &str) -> Result<T, StoreError> {
        self.parse(column, |text| serde_json::from_str(text))
    }

    fn broken(&self, column: &str, error: impl std::fmt::Display) -> StoreError {
        fault::damaged(self.path, format!("malformed {column}: {error}")).into()
    }

    /// Reads a count or a row number. Fails if the number is negative, or too large to be exact in
    /// JSON.
    pub fn number(&self, column: &str) -> Result<i64, StoreError> {
        const LARGEST: i64 = 1 << 53;
        let number = self.get(column)?;
        if (0..=LARGEST).contains(&number) {
            Ok(number)
        } else {
            Err(self.broken(column, format!("{number} is no count")))
        }
    }

    pub fn usage(&self) -> Result<Usage, StoreError> {
        let tokens = |column| Ok::<_, StoreError>(self.number(column)?.unsigned_abs());
        let cost_usd: f64 = self.get("cost_usd")?;
        if !cost_usd.is_finite() {
            return Err(self.broken("cost_usd", "it is no number"));
        }
        Ok(Usage {
            input_tokens: tokens("input_tokens")?,
            output_tokens: tokens("output_tokens")?,
            cache_read_tokens: tokens("cache_read_tokens")?,
            cache_write_tokens: tokens("cache_write_tokens")?,
            cost_usd,
        })
    }

    pub fn timestamp(&self, column: &str) -> Result<Timestamp, StoreError> {
        // 9999-12-31T23:59:59.999Z, the latest time that can be formatted as text.
        const LATEST: i64 = 253_402_300_799_999;
        let millis = self.number(column)?;
        if millis <= LATEST {
            Ok(Timestamp::from_millis(millis))
        } else {
            Err(self.broken(column, format!("{millis} is no time")))
        }
    }

    pub fn node(&self) -> Result<Option<NodeId>, StoreError> {
        self.parse_optional("node_id", NodeId::parse)
    }

    pub fn agent_id(&self, column: &str) -> Result<AgentId, StoreError> {
        self.parse(column, AgentId::parse)
    }

    pub fn agent_state(&self, column: &str) -> Result<AgentState, StoreError> {
        self.find(column, stored::agent_state)
    }

    pub fn session_state(&self) -> Result<SessionState, StoreError> {
        self.find("state", stored::session_state)
    }

    pub fn activity(&self) -> Result<SessionActivity, StoreError> {
        self.find("activity", SessionActivity::find)
    }

    pub fn session(&self) -> Result<SessionRecord, StoreError> {
        Ok(SessionRecord {
            id: self.parse("id", SessionId::parse)?,
            name: self.parse("name", SessionName::parse)?,
            state: self.session_state()?,
            spec: self.json::<SessionSpec>("spec")?,
            head: self.number("next_seq")?.max(1) - 1,
            agents: self.get("agents")?,
            totals: self.usage()?,
            metadata: self.json("metadata")?,
            created_at: self.timestamp("created_at")?,
            updated_at: self.timestamp("updated_at")?,
            owner: self.node()?,
        })
    }

    pub fn agent(&self, session: &SessionId, team: &TeamId) -> Result<AgentRecord, StoreError> {
        let mut spec: AgentSpec = self.json("spec")?;
        spec.name = self.get("name")?;
        Ok(AgentRecord {
            session: session.clone(),
            id: self.agent_id("id")?,
            team: team.clone(),
            spec,
            state: self.agent_state("state")?,
            totals: self.usage()?,
            node: self.node()?,
            epoch: self.number("epoch")?,
            last_seq: self.number("last_seq")?,
            incarnation: self.number("incarnation")?,
        })
    }

    pub fn input(&self) -> Result<StoredInput, StoreError> {
        let input = NewInput {
            id: self.parse("id", InputId::parse)?,
            agent: self.agent_id("agent_id")?,
            kind: self.find("kind", InputKind::find)?,
            mode: self.find("mode", InputMode::find)?,
            sender: self.sender()?,
            by: self.author()?,
            reply_to: self.parse_optional("reply_to", InputId::parse)?,
            content: self.get("content")?,
            fresh: self.get("fresh")?,
            at: self.timestamp("at")?,
        };
        Ok(StoredInput {
            input,
            head: self.number("head")?,
            turn: self.get("turn")?,
            outcome: self.outcome()?,
            answer: self.get("answer")?,
            waiting: self.get("waiting")?,
        })
    }

    pub fn outcome(&self) -> Result<Option<InputOutcome>, StoreError> {
        let name: Option<String> = self.get("outcome")?;
        Ok(name.as_deref().map(InputOutcome::from))
    }

    pub fn sender(&self) -> Result<Option<Sender>, StoreError> {
        let id = self.parse_optional("sender", AgentId::parse)?;
        id.map(|id| {
            Ok(Sender {
                id,
                name: self.get("sender_name")?,
            })
        })
        .transpose()
    }

    /// Returns the name of who sent a prompt. The column holds it if no agent is the sender.
    fn author(&self) -> Result<Option<String>, StoreError> {
        match self.get::<Option<&str>>("sender")? {
            Some(_) => Ok(None),
            None => self.get("sender_name"),
        }
    }

    pub fn place(&self) -> Result<EventPlace, StoreError> {
        Ok(EventPlace {
            turn: self.get("turn")?,
            request: self.get("request")?,
            at: self.timestamp("at")?,
        })
    }

    /// Returns the row, or `None` if only a newer version knows its kind.
    pub fn log_row(&self) -> Result<Option<LogRow>, StoreError> {
        let Some(kind) = EventKind::find(self.get("kind")?) else {
            return Ok(None);
        };
        Ok(Some(LogRow {
            seq: self.number("seq")?,
            kind,
            place: self.place()?,
            body: self.get("body")?,
        }))
    }
}
